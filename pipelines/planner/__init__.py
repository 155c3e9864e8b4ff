"""From a graph to what Spark runs. Names load on first use: a topology can be planned and drawn without Spark."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelines.planner.plan import TopologyPlan

__all__ = ["TopologyPlan"]

_LAZY = {"TopologyPlan": "pipelines.planner.plan"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
