"""Cases of states: layouts and kinds, updaters, new values, static states, query functions (rules 1.2, 1.3, 4.3, 6)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from pipelines.trident import (
    MAP,
    NON_TRANSACTIONAL,
    OPAQUE,
    CombinerAggregator,
    Count,
    DeltaState,
    FixedState,
    MapGet,
    Max,
    QueryFunction,
    ReducerAggregator,
    RowFunction,
    SnapshotGet,
    StateUpdater,
    Stream,
    Sum,
    TridentState,
    TupleCollectionGet,
)
from tests.conformance.case import Case, keep, rows, topology_of

WORDS = "word string, n bigint"
FED: list[list[tuple[Any, ...]]] = [[("a", 1), ("b", 2), ("a", 3)], [], [("a", 5), (None, 7)]]


def product() -> CombinerAggregator:
    return CombinerAggregator(lambda n: n, lambda a, b: a * b, lambda: 1)


def digits() -> ReducerAggregator:
    """Reduces from 0: depends on how often init() is called."""
    return ReducerAggregator(lambda: 100, lambda total, n: total + n)


class Latest(StateUpdater):
    """The last n of each word; emits each word with the number before."""

    keys = "word string"
    values = "n bigint"

    def update_state(self, state: Any, tuples: list[tuple[Any, ...]]) -> Iterable[Any]:
        before = dict(zip([key for key, _ in tuples], state.multi_get([(key,) for key, _ in tuples]), strict=True))
        state.multi_put([(key,) for key, _ in tuples], [n for _, n in tuples])
        return list(before.items())


class Tally(StateUpdater):
    """Counts and sums by multi_update; a word with n = 0 is removed."""

    keys = "word string"
    values = "times bigint, total bigint"

    def update_state(self, state: Any, tuples: list[tuple[Any, ...]]) -> None:
        for word, n in tuples:
            if n == 0:
                state.multi_remove([(word,)])
            else:
                state.multi_update([(word,)], [lambda old, n=n: ((old or (0, 0))[0] + 1, (old or (0, 0))[1] + n)])


class Total(StateUpdater):
    """A state without keys (Snapshottable)."""

    values = "total bigint"

    def update_state(self, state: Any, tuples: list[tuple[Any, ...]]) -> Iterator[Any]:
        yield state.update(lambda old: (old or 0) + sum(n for (n,) in tuples))


class Seen(StateUpdater):
    """When a word was seen last, and how often on each day: a state of a time and a map."""

    keys, values = "word string", "at timestamp, days map<date, bigint>"

    def update_state(self, state: Any, tuples: list[tuple[Any, ...]]) -> Iterator[Any]:
        for word, at in tuples:
            last, days = state.multi_get([(word,)])[0] or (at, {})
            yield word, last, days.get(at.date(), 0)
            days = {**days, at.date(): days.get(at.date(), 0) + 1}
            state.multi_put([(word,)], [(max(last, at), days)])


class LastSeen(QueryFunction):
    """By key and among all tuples, of a state of a time and a map."""

    returns = ("timestamp", "bigint", "bigint")

    def batch_retrieve(self, state: Any, arguments: list[tuple[Any, ...]]) -> list[Any]:
        later = [(len([at for _, at, _ in state.tuples() if at > asked])) for _, asked in arguments]
        return list(zip(state.multi_get([(word,) for word, _ in arguments]), later, strict=True))

    def execute(self, arguments: tuple[Any, ...], result: Any) -> Iterator[Any]:
        (at, days), later = result
        yield max(at, arguments[1]), days[arguments[1].date()], later


class ByTime(StateUpdater):
    """A state by time: what it holds is all there, its own changes too."""

    keys, values = "at timestamp", "n bigint"

    def update_state(self, state: Any, tuples: list[tuple[Any, ...]]) -> Iterator[Any]:
        for _, at in tuples:
            state.multi_put([(at,)], [(state.multi_get([(at,)])[0] or 0) + 1])
        for at, n in sorted(state.tuples()):
            yield at, n


class Known(QueryFunction):
    """One row for each value up to the stored one; none where there is none."""

    def batch_retrieve(self, state: Any, arguments: list[tuple[Any, ...]]) -> list[Any]:
        return state.multi_get(arguments)

    def execute(self, arguments: tuple[Any, ...], result: Any) -> Iterator[Any]:
        yield from range(result or 0)


class Position(QueryFunction):
    """Several outputs, of all tuples of the state."""

    returns = ("bigint", "string")

    def batch_retrieve(self, state: Any, arguments: list[tuple[Any, ...]]) -> list[Any]:
        known = sorted(word for word, *_ in state.tuples() if word is not None)
        return [(len([word for word in known if word < asked]), known[-1] if known else None) for (asked,) in arguments]


def by_word(stream: Stream, state: DeltaState, *aggregate: Any) -> TridentState:
    return stream.group_by("word").persistent_aggregate(state, *aggregate)


EARLY, LATER = datetime(2024, 3, 10, 2, 30), datetime(2024, 3, 10, 23, 30)
DAY_AFTER = datetime(2024, 3, 11, 0, 15)
TIMES: list[list[tuple[Any, ...]]] = [[("a", EARLY), ("a", LATER)], [("b", DAY_AFTER), ("a", DAY_AFTER)]]


def as_word(s: Stream) -> Stream:
    return s.each("w", RowFunction(lambda w: w, ("string",)), "word").project("word")


def kinds(s: Stream) -> None:
    """The same count in every kind and layout."""
    for kind in (NON_TRANSACTIONAL, OPAQUE):
        by_word(s, DeltaState(f"log_{kind}", kind), Count(), "c")
        by_word(s, DeltaState(f"map_{kind}", kind, MAP), Count(), "c")
        s.partition_persist(DeltaState(f"rows_{kind}", kind), "n")
    by_word(s, DeltaState("map_transactional", layout=MAP), Count(), "c")


COUNTS = rows("word c", (None, 1), ("a", 3), ("b", 1))
VALUES = rows("n", (1,), (2,), (3,), (5,), (7,))

AGGREGATES = {
    "persistent combiner in Python": Case(
        "1.3, CombinerValueUpdater",
        WORDS,
        lambda s: by_word(s, DeltaState("out"), "n", product(), "p"),
        FED,
        {"out": rows("word p", (None, 7), ("a", 15), ("b", 2))},
    ),
    "persistent reducer": Case(
        "1.3, ReducerValueUpdater: starts from init() if nothing is stored",
        WORDS,
        lambda s: by_word(s, DeltaState("out"), "n", digits(), "t"),
        FED,
        {"out": rows("word t", (None, 107), ("a", 109), ("b", 102))},
    ),
    "persistent reducer of the whole stream": Case(
        "1.2, persistentAggregate(Reducer): Snapshottable",
        "n bigint",
        lambda s: s.persistent_aggregate(DeltaState("out"), "n", digits(), "t"),
        [[(1,), (2,)], [], [(3,)]],
        {"out": rows("t", (106,))},
    ),
    "a reducer whose stored value is null": Case(
        "1.3: ReducerValueUpdater starts from init() if null",
        "n bigint",
        lambda s: s.persistent_aggregate(
            DeltaState("out"), "n", ReducerAggregator(lambda: 100, lambda total, n: total + n if n else None), "t"
        ),
        [[(1,)], [(0,)], [(3,)]],
        {"out": rows("t", (103,))},
    ),
    "persistent aggregates of both sorts": Case(
        "1.2",
        WORDS,
        lambda s: by_word(
            s,
            DeltaState("out"),
            [Count("c"), ReducerAggregator(lambda: 0, lambda t, n: t + n, field="n", output="t"), Sum("n", "s")],
        ),
        FED,
        {"out": rows("word c t s", (None, 1, 7, 7), ("a", 3, 9, 9), ("b", 1, 2, 2))},
    ),
    "every kind and layout": Case(
        "6",
        WORDS,
        kinds,
        FED,
        {
            "map_transactional": COUNTS,
            **{f"{layout}_{kind}": COUNTS for layout in ("log", "map") for kind in (NON_TRANSACTIONAL, OPAQUE)},
            **{f"rows_{kind}": VALUES for kind in (NON_TRANSACTIONAL, OPAQUE)},
        },
    ),
    "built-in aggregators in a map": Case(
        "architecture, state tables, layouts",
        WORDS,
        lambda s: by_word(s, DeltaState("out", layout=MAP), [Count("c"), Sum("n", "s"), Max("n", "high")]),
        FED,
        {"out": rows("word c s high", (None, 1, 7, 7), ("a", 3, 9, 5), ("b", 1, 2, 2))},
    ),
}

UPDATERS = {
    "updater": Case(
        "1.2, partitionPersist(updater, functionFields)",
        WORDS,
        lambda s: keep(
            s.partition_persist(
                DeltaState("latest"), ["word", "n"], Latest(), "w string, was bigint"
            ).new_values_stream()
        ),
        [[("a", 1), ("b", 2), ("a", 3)], [], [("a", 5), (None, 7)]],
        {
            "latest": rows("word n", (None, 7), ("a", 5), ("b", 2)),
            "out": rows("w was", ("a", None), ("b", None), (None, None), ("a", 3)),
        },
    ),
    "updater that removes": Case(
        "6, MapState, RemovableMapState",
        WORDS,
        lambda s: s.partition_persist(DeltaState("out"), None, Tally()),
        [[("a", 1), ("b", 2), ("a", 3)], [("b", 0), ("c", 4)], [("b", 6)]],
        {"out": rows("word times total", ("a", 2, 4), ("b", 1, 6), ("c", 1, 4))},
    ),
    "updater of one value": Case(
        "6, Snapshottable",
        "n bigint",
        lambda s: keep(s.partition_persist(DeltaState("total"), "n", Total(), "now bigint").new_values_stream()),
        [[(1,), (2,)], [], [(3,)]],
        {"total": rows("total", (6,)), "out": rows("now", (3,), (6,))},
    ),
    "updater of times and maps": Case(
        "4.3: a user's code sees plain values",
        "word string, at timestamp",
        lambda s: keep(
            s.partition_persist(
                DeltaState("seen"), None, Seen(), "w string, last timestamp, n bigint"
            ).new_values_stream()
        ),
        TIMES,
        {
            "seen": rows(
                "word at days",
                ("a", DAY_AFTER, {EARLY.date(): 2, DAY_AFTER.date(): 1}),
                ("b", DAY_AFTER, {DAY_AFTER.date(): 1}),
            ),
            "out": rows("w last n", ("a", EARLY, 0), ("a", EARLY, 1), ("a", LATER, 0), ("b", DAY_AFTER, 0)),
        },
    ),
    "updater of a state by time": Case(
        "4.3, MapState",
        "word string, at timestamp",
        lambda s: keep(
            s.partition_persist(DeltaState("times"), None, ByTime(), "at timestamp, n bigint").new_values_stream()
        ),
        TIMES,
        {
            "times": rows("at n", (EARLY, 1), (LATER, 1), (DAY_AFTER, 2)),
            "out": rows("at n", (EARLY, 1), (LATER, 1), (EARLY, 1), (LATER, 1), (DAY_AFTER, 2)),
        },
    ),
    "updater in several tasks": Case(
        "1.2: a state's updater runs in each partition",
        WORDS,
        lambda s: s.partition_by("word").partition_persist(DeltaState("out"), None, Tally()).parallelism_hint(3),
        [[("a", 1), ("b", 2), ("a", 3), ("c", 4)], [("c", 6)]],
        {"out": rows("word times total", ("a", 2, 4), ("b", 1, 2), ("c", 2, 10))},
    ),
}

NEW_VALUES = {
    "new values of an aggregate": Case(
        "1.2, newValuesStream: the keys that the batch touched",
        WORDS,
        lambda s: keep(by_word(s, DeltaState("totals"), "n", Sum(), "total").new_values_stream()),
        FED,
        {
            "totals": rows("word total", (None, 7), ("a", 9), ("b", 2)),
            "out": rows("word total", ("a", 4), ("b", 2), (None, 7), ("a", 9)),
        },
    ),
    "new values of a map": Case(
        "1.2, newValuesStream",
        WORDS,
        lambda s: keep(by_word(s, DeltaState("t"), "n", digits(), "total").new_values_stream().project("total")),
        FED,
        {
            "t": rows("word total", (None, 107), ("a", 109), ("b", 102)),
            "out": rows("total", (102,), (104,), (107,), (109,)),
        },
    ),
    "new values of the whole stream": Case(
        "1.2, newValuesStream",
        "n bigint",
        lambda s: keep(s.persistent_aggregate(DeltaState("t"), "n", Sum(), "s").new_values_stream()),
        [[(1,), (2,)], [(4,)]],
        {"t": rows("s", (7,)), "out": rows("s", (3,), (7,))},
    ),
    "new values of rows": Case(
        "1.2, newValuesStream: the tuples themselves",
        WORDS,
        lambda s: keep(s.partition_persist(DeltaState("t"), "n").new_values_stream()),
        FED,
        {"t": VALUES, "out": VALUES},
    ),
    "an aggregate of new values": Case(
        "1.2, newValuesStream: an aggregate behind an aggregate",
        WORDS,
        lambda s: (
            by_word(s, DeltaState("totals"), "n", Sum(), "total")
            .new_values_stream()
            .persistent_aggregate(DeltaState("most"), "total", Max(), "most")
        ),
        FED,
        {"totals": rows("word total", (None, 7), ("a", 9), ("b", 2)), "most": rows("most", (9,))},
    ),
}


def price_list(s: Stream) -> TridentState:
    fixed = FixedState("prices", "word string, price double, tags array<string>", "word", [("a", 1.5, ["x", "y"])])
    return topology_of(s).new_static_state(fixed)


QUERIES = {
    "static state": Case(
        "1.1, newStaticState",
        WORDS,
        lambda s: keep(
            s.state_query(price_list(s), "word", MapGet(), ["price", "tags"]).project(["word", "tags", "price"])
        ),
        [[("a", 1), ("z", 2)]],
        {"out": rows("word tags price", ("a", ["x", "y"], 1.5), ("z", None, None))},
    ),
    "MapGet, an output named as the key": Case(
        "1.3, MapGet: the value, whatever its name",
        "w string",
        lambda s: (
            keep(s.state_query(by_word(as_word(s), DeltaState("counts"), Count(), "n"), "w", MapGet(), "word")),
            topology_of(s).new_query_stream("q", "w string").state_query("counts", "w", MapGet(), "word"),
        ),
        [[("a",), ("b",)], [("a",)]],
        {"counts": rows("word n", ("a", 2), ("b", 1)), "out": rows("w word", ("a", 1), ("b", 1), ("a", 2))},
        answers=(("q", [("a",), ("z",)], rows("w word", ("a", 2), ("z", None))),),
    ),
    "query function in Python": Case(
        "4.3: execute per tuple, 0 to n rows",
        WORDS,
        lambda s: keep(
            s.state_query(by_word(s, DeltaState("counts"), Count(), "c"), "word", Known(), "i bigint").project(
                ["word", "i"]
            )
        ),
        [[("a", 1), ("b", 2)], [], [("a", 3)]],
        {
            "counts": rows("word c", ("a", 2), ("b", 1)),
            "out": rows("word i", ("a", 0), ("b", 0), ("a", 0), ("a", 1)),
        },
    ),
    "query function over times and maps": Case(
        "4.3: a user's code sees plain values",
        "word string, at timestamp",
        lambda s: (
            keep(
                s.state_query(
                    s.partition_persist(DeltaState("seen"), None, Seen()),
                    ["word", "at"],
                    LastSeen(),
                    ["l", "n", "later"],
                ).project(["word", "l", "n", "later"])
            ),
            topology_of(s)
            .new_query_stream("q", "word string, at timestamp")
            .state_query("seen", ["word", "at"], LastSeen(), ["l", "n", "later"])
            .project(["word", "l", "n", "later"]),
        ),
        TIMES[:1],
        {
            "seen": rows("word at days", ("a", LATER, {EARLY.date(): 2})),
            "out": rows("word l n later", ("a", LATER, 2, 0), ("a", LATER, 2, 1)),
        },
        answers=(("q", [("a", EARLY)], rows("word l n later", ("a", LATER, 2, 1))),),
    ),
    "query function of several outputs": Case(
        "1.2, stateQuery",
        WORDS,
        lambda s: keep(
            s.state_query(
                by_word(s, DeltaState("counts"), Count(), "c"), "word", Position(), ["place", "last"]
            ).project(["word", "place", "last"])
        ),
        [[("b", 1), ("a", 2)], [("c", 3)]],
        {
            "counts": rows("word c", ("a", 1), ("b", 1), ("c", 1)),
            "out": rows("word place last", ("a", 0, "b"), ("b", 1, "b"), ("c", 2, "c")),
        },
    ),
    "grouped state query of a map": Case(
        "1.2, GroupedStream.stateQuery",
        WORDS,
        lambda s: keep(
            s.group_by("word").state_query(
                by_word(s, DeltaState("t"), "n", digits(), "total"), "word", MapGet(), "total"
            )
        ),
        [[("a", 1)], [("a", 2), ("b", 5)]],
        {
            "t": rows("word total", ("a", 103), ("b", 105)),
            "out": rows("word n total", ("a", 1, 101), ("a", 2, 103), ("b", 5, 105)),
        },
    ),
    "query of a map without keys": Case(
        "1.3, SnapshotGet",
        "n bigint",
        lambda s: keep(
            s.state_query(s.persistent_aggregate(DeltaState("t"), "n", digits(), "x"), None, SnapshotGet(), "sum")
        ),
        [[(1,)], [(2,), (3,)]],
        {"t": rows("x", (106,)), "out": rows("n sum", (1, 101), (2, 106), (3, 106))},
    ),
    "all tuples of a state": Case(
        "1.3, TupleCollectionGet",
        "word string",
        lambda s: keep(
            s.aggregate(Count(), "size").state_query(
                s.group_by("word").persistent_aggregate(DeltaState("counts"), Count(), "n"),
                None,
                TupleCollectionGet(),
                ["w", "c"],
            )
        ),
        [[("a",), ("b",)], [("a",)]],
        {
            "counts": rows("word n", ("a", 2), ("b", 1)),
            "out": rows("size w c", (2, "a", 1), (2, "b", 1), (1, "a", 2), (1, "b", 1)),
        },
    ),
}

CASES = {**AGGREGATES, **UPDATERS, **NEW_VALUES, **QUERIES}
