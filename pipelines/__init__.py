"""Tridelta's engine: usable from a notebook with Spark alone. Names load on first use, so importing it costs nothing."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelines.execution.runtime import Runtime
    from pipelines.spark.session import spark_session
    from pipelines.state.lake import Lake

__all__ = ["Lake", "Runtime", "spark_session"]

_LAZY = {
    "Lake": "pipelines.state.lake",
    "Runtime": "pipelines.execution.runtime",
    "spark_session": "pipelines.spark.session",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
