"""Tridelta's engine: usable from a notebook with Spark alone. Names load on first use, so importing it costs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.lazy import lazy

if TYPE_CHECKING:
    from pipelines.execution.runtime import Runtime
    from pipelines.spark.session import spark_session
    from pipelines.state.lake import Lake

__all__ = ["Lake", "Runtime", "spark_session"]

__getattr__ = lazy(
    __name__,
    {
        ".execution.runtime": ("Runtime",),
        ".spark.session": ("spark_session",),
        ".state.lake": ("Lake",),
    },
)
