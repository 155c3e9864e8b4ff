"""For tests of one's own topologies: the same batches on a plain-Python reference engine and on the real ones."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pipelines.testing.engines import query_topology, run_topology
    from pipelines.testing.flows import run_flow
    from pipelines.testing.reference import ReferenceEngine

TICK: Final = "TICK"
"""One second of the clock, in the script of an event flow."""

__all__ = ["TICK", "ReferenceEngine", "query_topology", "run_flow", "run_topology"]

# Loaded on first use: a topology's definition may import TICK without the engines.
_LAZY = {
    "ReferenceEngine": "pipelines.testing.reference",
    "query_topology": "pipelines.testing.engines",
    "run_flow": "pipelines.testing.flows",
    "run_topology": "pipelines.testing.engines",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
