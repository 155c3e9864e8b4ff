"""Tridelta's engine: usable from a notebook with Spark alone. Names load on first use, so importing it costs nothing."""

from typing import TYPE_CHECKING

from pipelines.lazy import lazy

if TYPE_CHECKING:
    from pipelines.execution.runtime import Runtime as Runtime
    from pipelines.spark.session import spark_session as spark_session
    from pipelines.state.lake import Lake as Lake

__getattr__, __all__ = lazy(__name__, __file__)
