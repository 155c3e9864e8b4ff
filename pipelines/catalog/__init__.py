"""The flows that this deployment runs.

To add one: write a module that makes a `FlowSpec`, and name it in `FLOWS`. Or keep flows in a package of your own, in a module
that has a `FLOWS` too, and name the module in TRIDELTA_FLOWS (several with commas).
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from pipelines.catalog.flights import FLIGHTS
from pipelines.catalog.flights_flows import FLIGHTS_FLOWS
from pipelines.catalog.flow import DailySlices, FlowSettings, FlowSpec, QueryAsset, Ranking
from pipelines.catalog.own_code import imported
from pipelines.errors import DefinitionError, UnknownFlowError

MODULES = "TRIDELTA_FLOWS"

FLOWS: tuple[FlowSpec, ...] = (FLIGHTS, *FLIGHTS_FLOWS)


def flows() -> tuple[FlowSpec, ...]:
    """Return all flows, in the order of the catalog; those of TRIDELTA_FLOWS behind the catalog's own.

    Raises:
        DefinitionError: if a module of TRIDELTA_FLOWS cannot be imported, has no `FLOWS`, or names a flow that is there.
        FlowCodeError: if such a module fails while it is imported.
    """
    found = list(FLOWS)
    for module in filter(None, (part.strip() for part in os.environ.get(MODULES, "").split(","))):
        found += _flows_of(module, {one.name for one in found})
    return tuple(found)


def _flows_of(module: str, taken: set[str]) -> tuple[FlowSpec, ...]:
    found = imported(module, MODULES)
    if not hasattr(found, "FLOWS"):
        raise DefinitionError(f"{MODULES} names {module}, which has no FLOWS", hint="FLOWS = (FlowSpec(...), ...)")
    given = found.FLOWS
    made = tuple(given) if isinstance(given, Iterable) else (given,)
    for one in made if isinstance(given, list | tuple) else (given,):
        if not isinstance(one, FlowSpec):
            problem = f"{MODULES}: FLOWS of {module} holds {type(one).__name__}, and must be a list of FlowSpec"
            raise DefinitionError(problem, hint="FLOWS = (FlowSpec(...), ...)")
    if twice := sorted(one.name for one in made if one.name in taken):
        raise DefinitionError(f'{MODULES}: the flow "{twice[0]}" of {module} is in the catalog already')
    return made


def flow(name: str) -> FlowSpec:
    """Return the flow of this name.

    Raises:
        UnknownFlowError: if the catalog has none.
    """
    for one in flows():
        if one.name == name:
            return one
    raise UnknownFlowError(name, [one.name for one in flows()])


__all__ = ["DailySlices", "FlowSettings", "FlowSpec", "QueryAsset", "Ranking", "flow", "flows"]
