"""For tests of one's own topologies: the same batches on a plain-Python reference engine and on the real ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pipelines.lazy import lazy

if TYPE_CHECKING:
    from pipelines.testing.engines import query_topology, run_topology
    from pipelines.testing.flows import run_flow
    from pipelines.testing.reference import ReferenceEngine

TICK: Final = "TICK"
"""One second of the clock, in the script of an event flow."""

__all__ = ["TICK", "ReferenceEngine", "query_topology", "run_flow", "run_topology"]

__getattr__ = lazy(
    __name__,
    {
        ".engines": ("query_topology", "run_topology"),
        ".flows": ("run_flow",),
        ".reference": ("ReferenceEngine",),
    },
)
