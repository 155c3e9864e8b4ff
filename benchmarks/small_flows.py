"""Ten small flows, each with a source, a table of its rows and their sums by key."""

from __future__ import annotations

from collections.abc import Callable

from pipelines.catalog.flow import FlowSettings, FlowSpec
from pipelines.trident import TridentTopology
from tests.nimbus.deployed_flows import numbers

NAMES = tuple(f"small_{number}" for number in range(10))


def _named(name: str) -> Callable[[FlowSettings], TridentTopology]:
    return lambda settings: numbers(settings, name, f"{name}_kept", f"{name}_sums")


FLOWS = tuple(FlowSpec(name, "A small flow.", _named(name)) for name in NAMES)
