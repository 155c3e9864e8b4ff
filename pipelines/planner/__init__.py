"""From a graph to what Spark runs. Names load on first use: a topology can be planned and drawn without Spark."""

from typing import TYPE_CHECKING

from pipelines.lazy import lazy

if TYPE_CHECKING:
    from pipelines.planner.plan import TopologyPlan as TopologyPlan

__getattr__, __all__ = lazy(__name__, __file__)
