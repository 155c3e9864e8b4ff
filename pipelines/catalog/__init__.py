"""The flows that this deployment runs.

To add one: write a module that makes a `FlowSpec`, and name it in `FLOWS`. Or keep flows in a package of your own, in a module
that has a `FLOWS` too, and name the module in TRIDELTA_FLOWS (several with commas).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from pipelines.catalog.flights import FLIGHTS
from pipelines.catalog.flights_flows import FLIGHTS_FLOWS
from pipelines.catalog.flow import DailySlices, FlowSettings, FlowSpec, QueryAsset, Ranking
from pipelines.catalog.own_code import imported
from pipelines.errors import DefinitionError, TrideltaError, UnknownFlowError
from pipelines.trident import TridentTopology

MODULES = "TRIDELTA_FLOWS"

FLOWS: tuple[FlowSpec, ...] = (FLIGHTS, *FLIGHTS_FLOWS)


def flows() -> tuple[FlowSpec, ...]:
    """Return all flows, in the order of the catalog; those of TRIDELTA_FLOWS behind the catalog's own.

    Raises:
        DefinitionError: if a module of TRIDELTA_FLOWS cannot be imported, has no `FLOWS`, or names a flow twice or one of others.
        FlowCodeError: if such a module fails while it is imported.
    """
    specs, faults = found()
    if faults:
        raise faults[0]
    return specs


def found() -> tuple[tuple[FlowSpec, ...], tuple[DefinitionError, ...]]:
    """Return the flows that can be loaded, in the order of `flows`, and what is wrong with the modules of the others."""
    specs, faults = list(FLOWS), []
    for module in _modules():
        try:
            specs += _flows_of(module, {spec.name for spec in specs})
        except DefinitionError as error:
            faults.append(error)
    return tuple(specs), tuple(faults)


def _modules() -> list[str]:
    return [part.strip() for part in os.environ.get(MODULES, "").split(",") if part.strip()]


def _flows_of(module: str, taken: set[str]) -> tuple[FlowSpec, ...]:
    loaded = imported(module, MODULES)
    if not hasattr(loaded, "FLOWS"):
        raise DefinitionError(f"{MODULES} names {module}, which has no FLOWS", hint="FLOWS = (FlowSpec(...), ...)")
    given = loaded.FLOWS
    made = tuple(given) if isinstance(given, Iterable) else (given,)
    for item in made if isinstance(given, list | tuple) else (given,):
        if not isinstance(item, FlowSpec):
            problem = f"{MODULES}: FLOWS of {module} holds {type(item).__name__}, and must be a list of FlowSpec"
            raise DefinitionError(problem, hint="FLOWS = (FlowSpec(...), ...)")
    names = [spec.name for spec in made]
    for name in names:
        if name in taken or names.count(name) > 1:
            where = "is in the catalog already" if name in taken else "stands in its FLOWS twice"
            raise DefinitionError(f'{MODULES}: the flow "{name}" of {module} {where}', hint="give it a name of its own")
    return made


def flow(name: str) -> FlowSpec:
    """Return the flow of this name. What is wrong with a module of others is their problem alone.

    Raises:
        UnknownFlowError: if the catalog has none.
        DefinitionError, FlowCodeError: as `flows`, if it is in none of the modules that can be loaded.
    """
    specs, faults = found()
    for spec in specs:
        if spec.name == name:
            return spec
    if faults:
        raise faults[0]
    raise UnknownFlowError(name, [entry.name for entry in specs])


def check_states(topology: TridentTopology) -> None:
    """See that no other flow of the catalog writes a state of this one. A flow that cannot be built is passed over.

    Raises:
        DefinitionError: one does.
    """
    states = {node.state.name for node in topology.persists}
    for spec in found()[0]:
        twice: list[str] = []
        with suppress(TrideltaError):
            if spec.name != topology.name:
                twice = sorted(states & {node.state.name for node in spec.topology().persists})
        if twice:
            raise DefinitionError(
                f'the state "{twice[0]}" of flow {topology.name} has the name of the state "{twice[0]}" of flow {spec.name}',
                hint="give one of them another name: each state is one table",
            )


__all__ = ["DailySlices", "FlowSettings", "FlowSpec", "QueryAsset", "Ranking", "check_states", "flow", "flows", "found"]
