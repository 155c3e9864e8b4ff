"""The states that a topology persists into or reads, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from pipelines.aggregators.ordering import freeze
from pipelines.errors import DefinitionError, FieldError, FunctionError, SourceSchemaError
from pipelines.graph import nodes
from pipelines.graph.fields import added, checked_name, parse_ddl
from pipelines.state.kinds import KINDS, LAYOUTS, TRANSACTIONAL

if TYPE_CHECKING:
    from pipelines.trident.stream import Stream


@dataclass(frozen=True)
class DeltaState:
    """A Delta table of the lake that a topology persists into (docs/architecture.md#state-tables).

    Args:
        name: the state's name, `[a-z][a-z0-9_]*`; the table is `<lake>/states/<name>`.
        kind: what a replayed txid does: `TRANSACTIONAL` (is skipped), `OPAQUE` (replaces what it wrote before) or
            `NON_TRANSACTIONAL` (is applied again).
        layout: `LOG`, `MAP` or `ROWS`; None takes the operation's own: log for the built-in aggregators, map for
            aggregators written in Python and updaters, rows for the tuples themselves.
        partitions: a fixed parallelism of what writes it (Trident rules 3.9); None: as hinted.

    Raises:
        BadNameError: if the name is not legal.
        DefinitionError: for a kind, layout or number of partitions that there is not.
    """

    name: str
    kind: str = TRANSACTIONAL
    layout: str | None = None
    partitions: int | None = None

    def __post_init__(self) -> None:
        checked_name("state", self.name)
        if self.kind not in KINDS:
            raise DefinitionError(f'state "{self.name}": no such kind {self.kind!r}; there are: {", ".join(KINDS)}')
        if self.layout is not None and self.layout not in LAYOUTS:
            raise DefinitionError(
                f'state "{self.name}": no such layout {self.layout!r}; there are: {", ".join(LAYOUTS)}'
            )
        if self.partitions is not None and (not isinstance(self.partitions, int) or self.partitions < 1):
            raise DefinitionError(f'state "{self.name}": partitions is {self.partitions!r}, not a positive number')

    def with_layout(self, operation: str, possible: Sequence[str]) -> DeltaState:
        """Return the state with its layout chosen: the one that was asked for, or the first of those possible.

        Raises:
            FunctionError: if the operation cannot write the layout that was asked for.
        """
        layout = self.layout or possible[0]
        if layout not in possible:
            raise FunctionError(
                operation,
                f'state "{self.name}" has layout {layout}, which this operation cannot write',
                hint=f"it writes: {', '.join(possible)}",
            )
        return replace(self, layout=layout)


@dataclass(frozen=True)
class FixedState:
    """A state that is given in the program and never changes, for `new_static_state`.

    Args:
        name: the state's name.
        schema: all columns as DDL, e.g. `"url string, tweeters array<string>"`.
        keys: the key columns, one name or a list; none: a state of one row.
        rows: tuples in the order of the schema, or dicts.

    Raises:
        BadNameError, FieldError, DefinitionError: if the name, the keys or a row do not fit.
    """

    name: str
    schema: str
    keys: str | Sequence[str] = ()
    rows: Sequence[Sequence[Any] | Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        checked_name("state", self.name)
        keys = (self.keys,) if isinstance(self.keys, str) else tuple(self.keys)
        for key in added("FixedState", keys, ()):
            if key not in self.fields:
                raise FieldError("FixedState", key, self.fields)
        for name, value in (("keys", keys), ("rows", tuple(self._row(row) for row in self.rows))):
            object.__setattr__(self, name, value)
        self._check_types()
        self._check_keys()

    def _check_types(self) -> None:
        from pipelines.sources.fixed import checked_rows

        try:
            checked_rows(self.name, self.schema, cast("Sequence[Sequence[Any]]", self.rows))
        except SourceSchemaError as error:
            raise DefinitionError(
                f'state "{self.name}": a row does not fit the schema {self.schema}: {error.problem}'
            ) from None

    def _check_keys(self) -> None:
        """Refuse a second row of a key: a query would double the tuples that ask for it."""
        places = [self.fields.index(key) for key in self.keys]
        seen: set[Any] = set()
        for row in cast("tuple[tuple[Any, ...], ...]", self.rows):
            key = freeze([row[place] for place in places])
            if key in seen:
                what = f"of the key {tuple(row[place] for place in places)!r}" if places else "of a state without keys"
                raise DefinitionError(
                    f'state "{self.name}": {row!r} is a second row {what}',
                    hint="give each key one row, or name its keys",
                )
            seen.add(key)

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(name for name, _ in parse_ddl(self.schema))

    @property
    def types(self) -> dict[str, str | None]:
        """The columns' Spark SQL types."""
        return dict(parse_ddl(self.schema))

    def _row(self, row: Sequence[Any] | Mapping[str, Any]) -> tuple[Any, ...]:
        values = tuple(row.get(name) for name in self.fields) if isinstance(row, Mapping) else tuple(row)
        if len(values) != len(self.fields) or (isinstance(row, Mapping) and set(row) - set(self.fields)):
            raise DefinitionError(f'state "{self.name}": {row!r} does not fit the schema {self.schema}')
        return values


@dataclass(frozen=True)
class TridentState:
    """The handle of a state; `state_query` takes it.

    `keys` are the key fields (none for a stream-wide aggregate), `values` the value fields (of a static state in the
    lake both are empty: its table is looked at when the topology starts), `node` the one that writes or names it.
    """

    spec: DeltaState | FixedState
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

    def new_values_stream(self) -> Stream:
        """Return what each batch has made of the state, as a stream: the keys that it touched, with their new values.

        A state of tuples gives the tuples; one with an updater gives what the updater emitted. A batch that touched nothing
        gives nothing.

        Raises:
            FunctionError: of a static state, or of one whose updater has no outputs.
        """
        node = self.source._topology.graph[self.node]
        if not isinstance(node, nodes.PersistNode):
            raise FunctionError("new_values_stream", f'state "{self.name}" is static: nothing writes it here')
        fields = node.fields if node.updater is None else node.outputs
        if not fields:
            raise FunctionError("new_values_stream", f'the updater of state "{self.name}" has no output fields')
        return self.source._add(nodes.NewValuesNode, fields=fields)

    def to_stream(self) -> Stream:
        """Return the same as `new_values_stream()`."""
        return self.new_values_stream()

    def parallelism_hint(self, tasks: int) -> TridentState:
        """Give a hint as `Stream.parallelism_hint` does, for the operation that writes the state."""
        self.source.parallelism_hint(tasks)
        return self

    def set_resources(self, **kinds: float) -> TridentState:
        """Set resources as `Stream.set_resources` does, for the operation that writes the state."""
        self.source.set_resources(**kinds)
        return self


def state_name(state: TridentState | DeltaState | FixedState | str) -> str:
    """Return the name of a state given by handle, by spec or by name."""
    return checked_name("state", state) if isinstance(state, str) else state.name
