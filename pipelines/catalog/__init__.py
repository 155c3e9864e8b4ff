"""The flows that this deployment runs. To add one: write a module that makes a `FlowSpec`, and name it in `FLOWS`."""

from __future__ import annotations

from pipelines.catalog.flights import FLIGHTS
from pipelines.catalog.flights_flows import FLIGHTS_FLOWS
from pipelines.catalog.flow import DailySlices, FlowSettings, FlowSpec, QueryAsset, Ranking
from pipelines.errors import UnknownFlowError

FLOWS: tuple[FlowSpec, ...] = (FLIGHTS, *FLIGHTS_FLOWS)


def flows() -> tuple[FlowSpec, ...]:
    """All flows, in the order of the catalog."""
    return FLOWS


def flow(name: str) -> FlowSpec:
    """The flow of this name.

    Raises:
        UnknownFlowError: if the catalog has none.
    """
    for one in flows():
        if one.name == name:
            return one
    raise UnknownFlowError(name, [one.name for one in flows()])


__all__ = ["DailySlices", "FlowSettings", "FlowSpec", "QueryAsset", "Ranking", "flow", "flows"]
