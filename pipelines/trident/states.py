"""How a topology names the state that it persists into."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipelines.errors import DefinitionError
from pipelines.graph.fields import checked_name

if TYPE_CHECKING:
    from pipelines.trident.stream import Stream

TRANSACTIONAL = "transactional"
OPAQUE = "opaque"
NON_TRANSACTIONAL = "non_transactional"
LOG, MAP, ROWS = "log", "map", "rows"


@dataclass(frozen=True)
class DeltaState:
    """A Delta table of the lake that a topology persists into (design, section 6).

    Args:
        name: the state's name, `[a-z][a-z0-9_]*`; the table is `<lake>/states/<name>`.
        kind: what a replayed txid does: `TRANSACTIONAL` (skipped).
        layout: `LOG` (persistent aggregates) or `ROWS` (partition persist); None chooses by the operation.

    Raises:
        BadNameError: if the name is not legal.
        DefinitionError: for a kind or layout that there is not.
    """

    name: str
    kind: str = TRANSACTIONAL
    layout: str | None = None

    def __post_init__(self) -> None:
        checked_name("state", self.name)
        if self.kind != TRANSACTIONAL:
            raise DefinitionError(f'state "{self.name}": no such kind {self.kind!r}; there is: {TRANSACTIONAL}')
        if self.layout not in (None, LOG, ROWS):
            raise DefinitionError(f'state "{self.name}": no such layout {self.layout!r}; there are: {LOG}, {ROWS}')


@dataclass(frozen=True)
class TridentState:
    """The handle of a state that a topology writes; `state_query` takes it.

    `keys` are the key fields (none for a stream-wide aggregate), `values` the value fields, `node` the one that writes.
    """

    spec: DeltaState
    keys: tuple[str, ...]
    values: tuple[str, ...]
    node: int
    source: Stream = field(compare=False, repr=False)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def fields(self) -> tuple[str, ...]:
        """Keys, then values."""
        return self.keys + self.values


def state_name(state: TridentState | DeltaState | str) -> str:
    """The name of a state given by handle, by spec or by name."""
    return checked_name("state", state) if isinstance(state, str) else state.name
