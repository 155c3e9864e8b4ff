"""Small flows for `benchmarks.crowd`: each with a source of stamped rows and a table that keeps them."""

from __future__ import annotations

from collections.abc import Callable

from pipelines.catalog.flow import FlowSettings, FlowSpec
from pipelines.sources import JsonFiles
from pipelines.trident import DeltaState, TridentTopology

MOST = 200
NAMES = tuple(f"crowd_{number:03d}" for number in range(MOST))
SCHEMA = "born double, n bigint"


def _named(name: str) -> Callable[[FlowSettings], TridentTopology]:
    def build(settings: FlowSettings) -> TridentTopology:
        topology = TridentTopology(name)
        topology.new_stream(name, JsonFiles(settings.data / name, SCHEMA)).partition_persist(DeltaState(f"{name}_kept"))
        return topology

    return build


FLOWS = tuple(FlowSpec(name, "A flow in a crowd.", _named(name)) for name in NAMES)
