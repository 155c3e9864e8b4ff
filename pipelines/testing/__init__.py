"""For tests of one's own topologies: the same batches on a plain-Python reference engine and on the real ones."""

from typing import TYPE_CHECKING

from pipelines.lazy import lazy

if TYPE_CHECKING:
    from pipelines.testing.engines import query_topology as query_topology
    from pipelines.testing.engines import run_topology as run_topology
    from pipelines.testing.flow_reference import TICK as TICK
    from pipelines.testing.flows import run_flow as run_flow
    from pipelines.testing.reference import ReferenceEngine as ReferenceEngine

__getattr__, __all__ = lazy(__name__, __file__)
