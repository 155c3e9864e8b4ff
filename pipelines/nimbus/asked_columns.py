"""A flow's setting `clustering`: the columns that most reads of its states name, as its owner says.

Reads are made anywhere, by anything that reads Delta: nobody sees them all, so they are told, not counted (docs/adr/0028).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipelines.errors import nearest
from pipelines.nimbus.errors import SubmitError

if TYPE_CHECKING:
    from pipelines.trident.topology import TridentTopology

SETTING = "clustering"


def asked_columns(flow: str, settings: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """State to the columns that reads name, most important first.

    Args:
        flow: Its name, for errors.
        settings: Of the flow; `clustering` is `{state: column}` or `{state: [column, ...]}`.

    Raises:
        SubmitError: It is neither.
    """
    found: dict[str, tuple[str, ...]] = {}
    for state, columns in (settings.get(SETTING) or {}).items():
        named = [columns] if isinstance(columns, str) else columns
        if not isinstance(named, list | tuple) or not all(isinstance(one, str) for one in named):
            raise SubmitError(
                flow, f'setting {SETTING}: "{state}" must be a column or a list of columns, not {columns!r}'
            )
        found[state] = tuple(named)
    return found


def check_asked_columns(topology: TridentTopology, settings: Mapping[str, Any]) -> None:
    """Whether a flow has the states and the columns that its setting names.

    Raises:
        SubmitError: A state that it does not write; a column that the state's files cannot lie by (a key of a log or map
            state, any column of a table of rows).
    """
    from pipelines.state.schema import ROWS

    asked = asked_columns(topology.name, settings)
    known: dict[str, Sequence[str]] = {
        node.state.name: node.fields if node.state.layout == ROWS else node.group for node in topology.persists
    }
    for state, columns in asked.items():
        if state not in known:
            states = ", ".join(sorted(known))
            problem = f'setting {SETTING}: the flow writes no state "{state}"{nearest(state, list(known))}; it writes {states}'
            raise SubmitError(topology.name, problem)
        for column in columns:
            if column not in known[state]:
                problem = f'setting {SETTING}: "{state}" cannot lie by "{column}"{nearest(column, list(known[state]))}'
                raise SubmitError(topology.name, f"{problem}; it can by {', '.join(known[state])}")
