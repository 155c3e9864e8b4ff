"""Sums of a log state that never go round the corner: added up wide, refused where they no longer fit their column.

DataFusion adds bigints modulo 2^64, and decimals of 38 digits modulo 2^128. A total that does not fit is an error of whoever
reads or folds it. It is to be an error of the batch that makes it so: each commit keeps in its record a bound for the absolute
value of any total, which grows by the commit's greatest partial value. While it fits nothing can overflow; when it does not, the
totals of all keys are added up exactly, with the commit's rows, and the bound is set again. The rows of a commit by Spark are not
seen: its plan refuses partial values beyond an allowance, by which the bound grows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from pipelines import spark_functions as F
from pipelines.aggregators.base import Total
from pipelines.errors import BatchError
from pipelines.state.far_times import shown_rows
from pipelines.state.kinds import LOG
from pipelines.state.literals import KeyValueError, canonical, keys_condition, quoted, range_condition
from pipelines.state.record import BATCH, REPLAY, RESET, SLICE
from pipelines.state.schema import ROLL_UP, SLICE_COLUMN, StateSchema
from pipelines.state.snapshot import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pipelines.state.record import CommitRecord
    from pipelines.state.table import StateTable

_NAMED_KEYS = 200
_EXACT = Context(prec=100)
Key = tuple[Any, ...]
_COUNTING = (BATCH, SLICE, REPLAY)
Bounds = dict[str, int]
"""By value column the bound, in units of its last digit."""


class Room(NamedTuple):
    """The bounds behind a commit, worked out ahead of it.

    Attributes:
        version: of the table that they were worked out for.
    """

    version: int
    bounds: Bounds


class StateOverflowError(BatchError):
    """A total of a state no longer fits its column: what would make it so is refused, and never counted wrong."""

    def __init__(self, state: str, column: str, kind: str, key: Mapping[str, Any] | None = None) -> None:
        self.state, self.column, self.kind, self.key = state, column, kind, key
        of = f" of {dict(key)!r}" if key else ""
        super().__init__(
            f'state "{state}": the total "{column}"{of} does not fit its type {kind}',
            hint="sum a wider type, in a state of a new name: CAST(field AS decimal(38, 0)), or double; or "
            "leave the rows out with a gate",
        )


class Summed(NamedTuple):
    """A sum in a log state: the SQL of its partial values, the column that they are in, and their type."""

    numbers: str
    column: str
    kind: pa.DataType
    part: str = ""
    """The field of the column, if that is a struct."""


def total_of(kind: pa.DataType) -> Total:
    """Return how numbers of a stored value are added up in SQL: wide, then as the type that is stored, or not at all."""

    def total(numbers: str, part: str) -> str:
        own = kind.field(part).type if part else kind
        wide = f"sum({_wide(numbers, own)})"
        if pa.types.is_integer(own):
            return f"CAST({wide} AS BIGINT)"
        return f"CAST({wide} AS DECIMAL({own.precision}, {own.scale}))" if pa.types.is_decimal(own) else wide

    return total


@contextmanager
def fitting(state: str, column: str) -> Iterator[None]:
    """Raise a total that DataFusion cannot return as the stored type as an error of ours."""
    try:
        yield
    except Exception as error:  # delta-rs has one exception class for whatever fails in a query
        text = str(error)
        if (
            "Can't cast value" in text
            or ("Overflow" in text and "ecimal" in text)
            or "out of range" in text
            or "too large to store" in text
        ):
            raise StateOverflowError(state, column, "(of the column)") from error
        raise


def _wide(numbers: str, kind: pa.DataType) -> str:
    """Cast numbers to a type that holds any sum of them."""
    if pa.types.is_integer(kind):
        return f"CAST({numbers} AS DECIMAL(38, 0))"
    return f"CAST({numbers} AS DECIMAL(76, {kind.scale}))" if pa.types.is_decimal(kind) else numbers


def summed(declared: StateSchema, schema: pa.Schema) -> dict[str, Summed]:
    """Return the sums of a log state that have an end, by name: `column`, or `column.part`."""
    sums: dict[str, Summed] = {}
    for value in declared.values if declared.layout == LOG else ():
        kind = schema.field(value.name).type

        def total(numbers: str, part: str, column: str = value.name, kind: pa.DataType = kind) -> str:
            own = kind.field(part).type if part else kind
            if pa.types.is_integer(own) or pa.types.is_decimal(own):
                sums[f"{column}.{part}" if part else column] = Summed(numbers, column, own, part)
            return numbers

        value.make().fold_sql(quoted(value.name), total)
    return sums


def checked_bounds(
    table: DeltaTable,
    state: StateTable,
    declared: StateSchema,
    rows: pa.Table,
    gone: str | None,
    history: Sequence[CommitRecord] | None = None,
) -> Bounds | None:
    """Return the bounds behind a commit; None for a state without sums.

    Args:
        table: the snapshot that commits.
        rows: all columns of the table.
        gone: the rows that the commit removes, as a condition.
        history: of the table up to the snapshot; None: it is looked for.
    """
    sums = summed(declared, rows.schema)
    if not sums:
        return None
    known, added = _known(table, state.history() if history is None else history, sums), _greatest(rows, sums)
    if known is not None:
        # A key may come once for each slice.
        slices = max(1, len(pc.unique(rows[SLICE_COLUMN])))
        bounds = {name: known[name] + added[name] * slices for name in sums}
        if all(bound <= _limit(sums[name].kind) for name, bound in bounds.items()):
            return bounds
    return _exact(table, state, declared, rows, sums, gone)


def check_fit(
    state: str, declared: StateSchema, types: Mapping[str, pa.DataType], totals: Mapping[Key, dict[str, Any]]
) -> None:
    """See that totals which were added up in Python, where numbers have no end, fit their columns."""
    stored = pa.schema([(value.name, types[value.name]) for value in declared.values if value.name in types])
    known = declared.model_copy(update={"values": tuple(value for value in declared.values if value.name in types)})
    for name, sum_column in summed(known, stored).items():
        for key, row in totals.items():
            total = row[sum_column.column][sum_column.part] if sum_column.part else row[sum_column.column]
            if abs(_units(total, sum_column.kind)) > _limit(sum_column.kind):
                raise StateOverflowError(state, name, str(sum_column.kind), dict(zip(declared.keys, key, strict=True)))


# The part of the room that is left which a commit by Spark may take without anything being added up.
_ALLOWANCE = 1024
TOO_LARGE = "tridelta: a partial value leaves no room"


class Allowance(NamedTuple):
    """The amounts that a commit by Spark may add to each sum, and the bounds after it."""

    sums: dict[str, Summed]
    most: dict[str, int]
    bounds: Bounds

    def guarded(self, frame: DataFrame) -> DataFrame:
        """Return the rows; the job fails at a partial value beyond it."""
        for name, sum_column in self.sums.items():
            column = F.col(f"`{sum_column.column}`")
            value = column[sum_column.part] if sum_column.part else column
            # As text, and each by itself: a literal number has no 38 digits, and Spark's minus keeps 34 of a decimal.
            ends = (_text(sign * self.most[name], sum_column.kind) for sign in (-1, 1))
            least, most = (F.lit(end).cast(_spark_type(sum_column.kind)) for end in ends)
            kept = F.when((value > most) | (value < least), F.raise_error(F.lit(f"{TOO_LARGE}: {name}"))).otherwise(
                value
            )
            frame = frame.withColumn(
                sum_column.column, column.withField(sum_column.part, kept) if sum_column.part else kept
            )
        return frame


def allowances(
    table: DeltaTable, state: StateTable, declared: StateSchema, sums: dict[str, Summed], slices: int
) -> Iterator[Allowance]:
    """Yield what a commit by Spark may add to each total.

    First a small part of the room that the bound leaves; if that was too little, all the room that the exact totals
    leave, which are added up for it.

    Args:
        sums: those of the table.
        slices: of the rows; a key may come once for each.
    """
    if not sums:
        return
    snapshot = Snapshot(table)
    known = _known(table, state.history(), sums)
    limits = {name: _limit(sum_column.kind) for name, sum_column in sums.items()}
    if known is None or any(known[name] > limits[name] // 2 for name in sums):
        known = _greatest_totals(snapshot, declared, sums, snapshot.live)
    part = {name: max(0, limits[name] - known[name]) // _ALLOWANCE for name in sums}
    bounds = {name: known[name] + part[name] for name in sums}
    yield Allowance(sums, {name: part[name] // slices for name in sums}, bounds)
    exact = _greatest_totals(snapshot, declared, sums, snapshot.live)
    yield Allowance(sums, {name: max(0, limits[name] - exact[name]) // slices for name in sums}, limits)


def _text(units: int, kind: pa.DataType) -> str:
    return f"{_EXACT.scaleb(Decimal(units), -kind.scale):f}" if pa.types.is_decimal(kind) else str(units)


def _spark_type(kind: pa.DataType) -> str:
    return f"decimal({kind.precision},{kind.scale})" if pa.types.is_decimal(kind) else "bigint"


def _known(table: DeltaTable, history: Sequence[CommitRecord], sums: Iterable[str]) -> Bounds | None:
    """Return the bounds that the last commit which counts rows has recorded, those of an empty table; None: not known.

    What a RESTORE has left there is not what the commits before it speak of.
    """
    until = (commit for commit in reversed(history) if commit.version <= table.version())
    last = next((commit for commit in until if commit.kind in (*_COUNTING, RESET) or commit.restored is not None), None)
    if last is not None and last.kind in _COUNTING:
        bounds = last.record.bounds if last.record else None
        return bounds if bounds is not None and bounds.keys() == set(sums) else None
    # Adding up the rows of a first batch, in Python, takes longer than its commit.
    return dict.fromkeys(sums, 0) if not table.file_uris() else None


def _limit(kind: pa.DataType) -> int:
    return 10**kind.precision - 1 if pa.types.is_decimal(kind) else (2**63 - 1)


def _greatest(rows: pa.Table, sums: Mapping[str, Summed]) -> Bounds:
    """Return the greatest absolute partial value of each sum."""
    greatest = {}
    for name, sum_column in sums.items():
        ends = pc.min_max(_values(rows, sum_column)).as_py()
        greatest[name] = max(abs(_units(end, sum_column.kind)) for end in ends.values())
    return greatest


def _units(value: Any, kind: pa.DataType) -> int:
    """Return a number as a whole one, in units of its last digit; 0 for none."""
    if value is None:
        return 0
    return int(_EXACT.scaleb(value, kind.scale)) if pa.types.is_decimal(kind) else int(value)


def _exact(
    table: DeltaTable,
    state: StateTable,
    declared: StateSchema,
    rows: pa.Table,
    sums: Mapping[str, Summed],
    gone: str | None,
) -> Bounds:
    """Add up all that the table holds with the commit's rows; what does not fit can only be a key of theirs."""
    snapshot = Snapshot(table)
    # The roll-up says once more what slices hold, and goes with them.
    where = snapshot.live if gone is None else f"{SLICE_COLUMN} <> '{ROLL_UP}' AND NOT ({gone})"
    totals = _stored_totals(snapshot, declared, rows, sums, where)
    _add_up(totals, _keys(rows, declared), {name: _values(rows, sum_column) for name, sum_column in sums.items()}, sums)
    bounds = _greatest_totals(snapshot, declared, sums, where)
    for key, of_key in totals.items():
        for name, total in of_key.items():
            if abs(total) > _limit(sums[name].kind):
                shown = dict(zip(declared.keys, key, strict=True))
                raise StateOverflowError(state.name, name, str(sums[name].kind), shown)
            bounds[name] = max(bounds[name], abs(total))
    return bounds


def _add_up(
    totals: dict[Key, dict[str, int]],
    keys: Iterable[Key],
    columns: Mapping[str, pa.ChunkedArray],
    sums: Mapping[str, Summed],
    wanted: Mapping[Key, None] | None = None,
) -> None:
    """Add the partial values of some rows, by the name of their sum, to the totals of their keys.

    Args:
        wanted: leave other keys out: a query for many keys gives some more.
    """
    values = {name: column.to_pylist() for name, column in columns.items()}
    for number, key in enumerate(keys):
        if wanted is not None and key not in wanted:
            continue
        total = totals.setdefault(key, dict.fromkeys(sums, 0))
        for name, summed in sums.items():
            total[name] += _units(values[name][number], summed.kind)


def _stored_totals(
    snapshot: Snapshot, declared: StateSchema, rows: pa.Table, sums: Mapping[str, Summed], where: str
) -> dict[Key, dict[str, int]]:
    """Return what the table holds of the keys of some rows."""
    wanted = dict.fromkeys(_keys(rows, declared))
    named = [dict(zip(declared.keys, key, strict=True)) for key in wanted]
    types = snapshot.types
    by_name = len(named) <= _NAMED_KEYS and not any(pa.types.is_nested(types[name]) for name in declared.keys)
    try:
        condition = (keys_condition if by_name else range_condition)(named, declared.keys, types)
    except KeyValueError:
        # A date or time that Python does not have: a text here, by which no row is found.
        condition = "true"
    columns = [quoted(name) for name in declared.keys]
    columns += [f"{sum_column.numbers} AS _p{index}" for index, sum_column in enumerate(sums.values())]
    totals: dict[Key, dict[str, int]] = {}
    for part in snapshot.stream(f"SELECT {', '.join(columns)} FROM state WHERE {condition} AND {where}"):
        columns_of = {name: part[f"_p{index}"] for index, name in enumerate(sums)}
        _add_up(totals, _keys(part, declared), columns_of, sums, wanted)
    return totals


def _greatest_totals(snapshot: Snapshot, declared: StateSchema, sums: Mapping[str, Summed], where: str) -> Bounds:
    """Return the greatest absolute total of any key."""
    columns = [
        f"sum({_wide(sum_column.numbers, sum_column.kind)}) AS _t{index}"
        for index, sum_column in enumerate(sums.values())
    ]
    keys = ", ".join(quoted(name) for name in declared.keys)
    totals = f"SELECT {', '.join(columns)} FROM state WHERE {where}" + (f" GROUP BY {keys}" if keys else "")
    most = ", ".join(f"max(_t{index}) AS _most{index}, min(_t{index}) AS _least{index}" for index in range(len(sums)))
    ends = snapshot.query(f"SELECT {most} FROM ({totals})").to_pylist()[0]
    return {
        name: max(abs(_units(ends[f"{end}{index}"], sum_column.kind)) for end in ("_most", "_least"))
        for index, (name, sum_column) in enumerate(sums.items())
    }


def _keys(rows: pa.Table, declared: StateSchema) -> Iterator[Key]:
    if not declared.keys:
        return iter([()] * rows.num_rows)
    shown = shown_rows(rows.select(list(declared.keys)))
    return (tuple(canonical(row[name]) for name in declared.keys) for row in shown)


def _values(rows: pa.Table, summed: Summed) -> pa.ChunkedArray:
    return pc.struct_field(rows[summed.column], summed.part) if summed.part else rows[summed.column]
