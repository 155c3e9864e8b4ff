"""Cases of the operations on one stream: functions, filters, projections, aggregates and states over columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipelines.aggregators import ColumnAggregator
from pipelines.quality import drop, warn
from pipelines.trident import (
    Average,
    Count,
    Debug,
    DeltaState,
    Equals,
    FilterNull,
    MapGet,
    Max,
    Min,
    Not,
    RowFunction,
    SnapshotGet,
    Split,
    Sum,
    arrow_function,
    row_function,
)
from tests.conformance.case import Case, keep, rows, topology_of


def all_of(field: str) -> list[ColumnAggregator]:
    """Every built-in aggregator."""
    return [Count("c"), Sum(field, "s"), Min(field, "low"), Max(field, "high"), Average(field, "mean")]


def count_up(b: int) -> Iterator[int]:
    yield from range(b)


def pairs(n: int) -> Iterator[tuple[int, str]]:
    for i in range(n):
        yield i, "x" * i


@arrow_function("bigint")
def doubled(values: Any) -> Any:
    import pyarrow.compute as pc

    return pc.multiply(values, 2)


@row_function("string")
def words(sentence: str) -> Iterator[str]:
    yield from sentence.split()


ABC = "a bigint, b bigint, c bigint"
NUMBERS = [(1, 2, 3), (4, 1, 6), (3, 0, 8)]

PER_TUPLE = {
    "each": Case(
        "9, each",
        ABC,
        lambda s: keep(s.each("b", count_up, "d bigint")),
        [NUMBERS],
        {"out": rows("a b c d", (1, 2, 3, 0), (1, 2, 3, 1), (4, 1, 6, 0))},
    ),
    "each, over columns": Case(
        "9, each",
        ABC,
        lambda s: keep(s.each("b", explode_sequence, "d").each("d", lambda d: d + 1, "e").project(["a", "d", "e"])),
        [NUMBERS],
        {"out": rows("a d e", (1, 0, 1), (1, 1, 2), (4, 0, 1))},
        spark=True,
    ),
    "each, a built-in with a plain form": Case(
        "1.3, Split",
        "sentence string",
        lambda s: keep(s.each("sentence", Split(), "word")),
        [[("to be",), ("",), (None,)], [("  be ",)]],
        {"out": rows("sentence word", ("to be", "be"), ("to be", "to"), ("  be ", "be"))},
    ),
    "each, several outputs": Case(
        "1.2, each",
        "n bigint",
        lambda s: keep(s.each("n", pairs, "i int, x string")),
        [[(2,), (0,), (1,)]],
        {"out": rows("n i x", (1, 0, ""), (2, 0, ""), (2, 1, "x"))},
    ),
    "each, several outputs over columns": Case(
        "1.2, each",
        "n bigint",
        lambda s: keep(s.each("n", lambda n: (n + 1, n * 2), ["more", "twice"])),
        [[(2,), (None,)]],
        {"out": rows("n more twice", (None, None, None), (2, 3, 4))},
        spark=True,
    ),
    "each, without inputs": Case(
        "1.2, each",
        "n bigint",
        lambda s: keep(s.each(RowFunction(lambda: iter_of("a", "b"), ("string",)), "x")),
        [[(1,)], [(2,)]],
        {"out": rows("n x", (1, "a"), (1, "b"), (2, "a"), (2, "b"))},
    ),
    "each, over Arrow arrays": Case(
        "architecture, public names, functions",
        "n bigint",
        lambda s: keep(s.each("n", doubled, "twice")),
        [[(2,), (None,)], [(5,)]],
        {"out": rows("n twice", (None, None), (2, 4), (5, 10))},
    ),
    "filter, three forms": Case(
        "9, filter",
        ABC,
        lambda s: (
            keep(s.filter("a = 1 and b = 2"), "sql"),
            keep(s.filter(["a", "b"], lambda a, b: (a == 1) & (b == 2)), "columns"),
            keep(s.each(["a", "b"], RowFunction(lambda a, b: a == 1 and b == 2)), "plain"),
        ),
        [[(1, 2, 3), (2, 1, 1), (2, 3, 4)]],
        {name: rows("a b c", (1, 2, 3)) for name in ("sql", "columns", "plain")},
        spark=True,
    ),
    "filter, null is false": Case(
        "1.2, filter",
        "n bigint",
        lambda s: (keep(s.filter("n > 1"), "sql"), keep(s.filter(RowFunction(lambda n: None)), "plain")),
        [[(None,), (1,), (2,)]],
        {"sql": rows("n", (2,)), "plain": []},
        spark=True,
    ),
    "filter, Python's truth": Case(
        "1.2, filter",
        "n bigint",
        lambda s: (
            keep(s.filter(RowFunction(lambda n: n)), "kept"),
            keep(s.filter(Not(RowFunction(lambda n: n))), "negated"),
            keep(s.filter([], RowFunction(lambda nothing: nothing == ())), "without_inputs"),
            keep(s.filter([], Not(RowFunction(lambda nothing: nothing != ()))), "negated_without_inputs"),
            topology_of(s).new_query_stream("kept", "n bigint").filter(RowFunction(lambda n: n)),
            topology_of(s).new_query_stream("negated", "n bigint").filter(Not(RowFunction(lambda n: n))),
        ),
        [[(0,), (1,), (2,), (None,)]],
        {
            "kept": rows("n", (1,), (2,)),
            "negated": rows("n", (None,), (0,)),
            "without_inputs": rows("n", (None,), (0,), (1,), (2,)),
            "negated_without_inputs": rows("n", (None,), (0,), (1,), (2,)),
        },
        answers=(
            ("kept", [(0,), (1,), (2,), (None,)], rows("n", (1,), (2,))),
            ("negated", [(0,), (1,), (2,), (None,)], rows("n", (0,), (None,))),
        ),
    ),
    "built-in filters": Case(
        "1.3, Equals, FilterNull, Negate",
        "a bigint, b bigint, c bigint",
        lambda s: (
            keep(s.filter(["a", "b"], Equals()), "equal"),
            keep(s.filter(Equals()), "all_equal"),
            keep(s.filter(["a", "b"], FilterNull()), "whole"),
            keep(s.filter(["a", "b"], Not(Equals())), "unequal"),
            keep(s.filter(Not(FilterNull())), "holes"),
            keep(s.each("a", Not(RowFunction(lambda a: a == 1))).each("b", Debug()), "others"),
        ),
        [[(1, 1, 1), (1, 1, 2), (None, None, 3), (1, None, 4), (5, 6, 7)]],
        {
            "equal": rows("a b c", (None, None, 3), (1, 1, 1), (1, 1, 2)),
            "all_equal": rows("a b c", (1, 1, 1)),
            "whole": rows("a b c", (1, 1, 1), (1, 1, 2), (5, 6, 7)),
            "unequal": rows("a b c", (1, None, 4), (5, 6, 7)),
            "holes": rows("a b c", (None, None, 3), (1, None, 4)),
            "others": rows("a b c", (None, None, 3), (5, 6, 7)),
        },
    ),
    "Not of SQL and of columns": Case(
        "1.3, Negate: null counts as false",
        "n bigint",
        lambda s: (keep(s.filter(Not("n > 1")), "sql"), keep(s.filter(Not(lambda n: n > 1)), "columns")),
        [[(None,), (1,), (2,)]],
        {"sql": rows("n", (None,), (1,)), "columns": rows("n", (None,), (1,))},
        spark=True,
    ),
    "map": Case(
        "1.2, map",
        "a string, n bigint",
        lambda s: (
            keep(s.map(RowFunction(lambda a, n: (a.upper(), n + 1), ("string", "bigint"))), "plain"),
            keep(s.map(lambda a, n: n * 10, "tens"), "columns"),
        ),
        [[("x", 1)], [("y", 2)]],
        {"plain": rows("a n", ("X", 2), ("Y", 3)), "columns": rows("tens", (10,), (20,))},
        spark=True,
    ),
    "flat_map": Case(
        "1.2, flatMap",
        "sentence string",
        lambda s: (keep(s.flat_map(words, "word"), "plain"), keep(s.flat_map(Split()), "columns")),
        [[("to be",), ("",)], [("or",)]],
        {"plain": rows("word", ("be",), ("to",), ("or",)), "columns": rows("sentence", ("be",), ("to",), ("or",))},
    ),
    "project, peek": Case(
        "1.2, project, peek",
        ABC,
        lambda s: keep(s.peek(lambda row: row["a"]).project(["c", "a"])),
        [NUMBERS],
        {"out": rows("c a", (3, 1), (6, 4), (8, 3))},
    ),
    "two branches": Case(
        "1.2",
        "n bigint",
        lambda s: (keep(s.each("n", doubled, "m"), "left"), keep(s.filter(RowFunction(lambda n: n > 1)), "right")),
        [[(1,), (2,)], [(3,)]],
        {"left": rows("n m", (1, 2), (2, 4), (3, 6)), "right": rows("n", (2,), (3,))},
    ),
    "gate": Case(
        "architecture, gates",
        "n bigint, word string",
        lambda s: keep(
            s.gate(
                drop("column_values_to_not_be_null", column="word"),
                warn("column_values_to_be_between", column="n", min_value=2),
            )
        ),
        [[(1, "a"), (2, None)], [(3, "b")]],
        {"out": rows("n word", (1, "a"), (3, "b"))},
        spark=True,
    ),
}

AGGREGATES = {
    "aggregate a batch": Case(
        "1.3, an empty batch gives the zero",
        "n bigint",
        lambda s: keep(s.aggregate(all_of("n"))),
        [[(1,), (2,), (None,)], [], [(5,)]],
        {"out": rows("c s low high mean", (3, 3, 1, 2, 1.5), (0, 0, None, None, None), (1, 5, 5, 5, 5.0))},
    ),
    "aggregate a batch by group": Case(
        "1.3, an empty batch gives nothing",
        "word string, n bigint",
        lambda s: keep(s.group_by("word").aggregate("n", Sum(), "s")),
        [[("a", 1), ("b", 2), ("a", 3)], [], [("a", 10), (None, 7), (None, 1)]],
        {"out": rows("word s", ("a", 4), ("b", 2), (None, 8), ("a", 10))},
    ),
    "persistent aggregate by key": Case(
        "1.2, persistentAggregate",
        "word string, n bigint",
        lambda s: s.group_by("word").persistent_aggregate(DeltaState("out"), all_of("n")),
        [[("a", 1), ("b", 2), ("a", 3)], [], [("a", None), (None, 7)]],
        {
            "out": rows(
                "word c s low high mean", (None, 1, 7, 7, 7, 7.0), ("a", 3, 4, 1, 3, 2.0), ("b", 1, 2, 2, 2, 2.0)
            )
        },
    ),
    "persistent aggregate by two keys": Case(
        "1.2, persistentAggregate",
        "word string, day date, n bigint",
        lambda s: s.group_by(["day", "word"]).persistent_aggregate(DeltaState("out"), "n", Max(), "high"),
        [[("a", None, 1), ("b", None, 2)], [("a", None, 3)]],
        {"out": rows("day word high", (None, "a", 3), (None, "b", 2))},
    ),
    "persistent aggregate of the whole stream": Case(
        "1.2, persistentAggregate",
        "n bigint",
        lambda s: s.persistent_aggregate(
            DeltaState("out"), [Count("c"), Count("with_n", field="n"), Average("n", "mean")]
        ),
        [[(1,), (2,)], [], [(None,), (6,)]],
        {"out": rows("c with_n mean", (4, 3, 3.0))},
    ),
    "persistent aggregate behind an aggregate": Case(
        "1.2",
        "word string",
        lambda s: (
            s.group_by("word").aggregate(Count(), "n").persistent_aggregate(DeltaState("out"), "n", Max(), "most")
        ),
        [[("a",), ("a",), ("b",)], [("b",), ("b",), ("b",)]],
        {"out": rows("most", (3,))},
    ),
    "rows": Case(
        "1.2, partitionPersist",
        "n bigint, word string",
        lambda s: s.partition_persist(DeltaState("out"), ["word", "n"]),
        [[(3, "c"), (1, "a"), (1, "a")], [], [(2, None)]],
        {"out": rows("word n", ("a", 1), ("a", 1), ("c", 3), (None, 2))},
    ),
    "state query behind the persist": Case(
        "architecture, state tables: a state query sees the batch's own updates",
        "word string",
        lambda s: keep(
            s.state_query(
                s.group_by("word").persistent_aggregate(DeltaState("counts"), Count(), "n"), "word", MapGet(), "seen"
            )
        ),
        [[("a",), ("b",)], [("a",), (None,)]],
        {
            "counts": rows("word n", (None, 1), ("a", 2), ("b", 1)),
            "out": rows("word seen", ("a", 1), ("b", 1), (None, 1), ("a", 2)),
        },
    ),
    "state query of several values": Case(
        "1.2, stateQuery",
        "word string, n bigint",
        lambda s: keep(
            s.group_by("word")
            .state_query(
                s.filter(RowFunction(lambda word, n: n > 1))
                .group_by("word")
                .persistent_aggregate(DeltaState("state"), [Sum("n", "total"), Count("times")]),
                "word",
                MapGet(),
                ["times", "total"],
            )
            .project(["word", "times", "total"])
        ),
        [[("a", 2), ("b", 1)]],
        {
            "state": rows("word total times", ("a", 2, 1)),
            "out": rows("word times total", ("a", 1, 2), ("b", None, None)),
        },
    ),
    "state query of a state without keys": Case(
        "1.3, SnapshotGet",
        "n bigint",
        lambda s: keep(
            s.state_query(s.persistent_aggregate(DeltaState("total"), "n", Sum(), "s"), None, SnapshotGet(), "sum")
        ),
        [[(1,)], [(2,), (3,)]],
        {"total": rows("s", (6,)), "out": rows("n sum", (1, 1), (2, 6), (3, 6))},
    ),
}

CASES = {**PER_TUPLE, **AGGREGATES}


def explode_sequence(b: Any) -> Any:
    """0 .. b-1 over columns."""
    from pyspark.sql import functions as F

    return F.explode(F.when(b > 0, F.sequence(F.lit(0), b - 1)).otherwise(F.array()))


def iter_of(*values: str) -> Iterator[str]:
    """A generator of the values."""
    yield from values
