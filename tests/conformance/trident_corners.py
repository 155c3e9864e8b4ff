"""Corners of the rules, several in one topology: what one run of an engine shows at once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import Any

from pipelines.trident import (
    LOG,
    MAP,
    NON_TRANSACTIONAL,
    OPAQUE,
    OUTER,
    PRESERVE,
    TRANSACTIONAL,
    Aggregator,
    Average,
    Collect,
    CombinerAggregator,
    Count,
    DeltaState,
    DistinctCount,
    FirstN,
    FixedState,
    MapGet,
    Max,
    Min,
    QueryFunction,
    ReducerAggregator,
    RowFunction,
    SnapshotGet,
    Split,
    StateUpdater,
    Stream,
    Sum,
    TupleCollectionGet,
    mixed,
)
from tests.conformance.case import Case, keep, rows, topology_of

WORDS = "w string, n bigint"
NAN = float("nan")


def total() -> ReducerAggregator:
    return ReducerAggregator(lambda: 0, lambda x, n: x + (n or 0))


def silent() -> Aggregator:
    return Aggregator(lambda: 0, lambda state, n: state, lambda state: None)


def emit_large(state: list[int], n: int | None) -> Iterator[int]:
    state.append(n or 0)
    if (n or 0) >= 20:
        yield -n  # type: ignore[operator]


def aggregates(s: Stream) -> None:
    keep(
        s.filter("n", RowFunction(lambda n: (n or 0) > 100)).aggregate([Count("c"), Sum("n", "x"), Min("n", "m")]),
        "dropped",
    )
    keep(s.group_by("w").aggregate(Count(), "c").aggregate(["c"], Sum(), "all").aggregate("all", Max(), "m"), "twice")
    by_word = s.group_by("w")
    keep(
        by_word.chained_agg()
        .aggregate(Count(), "c")
        .aggregate("n", total(), "r")
        .aggregate("n", Max(), "m")
        .chain_end(),
        "grouped",
    )
    both = s.chained_agg().aggregate("n", FirstN(2, "n"), "x")
    keep(both.aggregate("n", FirstN(2, "n", reverse=True), "y").chain_end(), "crossed")
    keep(both.aggregate("n", silent(), "y").chain_end(), "crossed_with_none")
    keep(both.chain_end(), "alone")
    keep(by_word.aggregate("n", FirstN(1, "n", reverse=True), "m"), "first")
    keep(s.apply_assembly(FirstN(9, "n")).aggregate(Count(), "c"), "more_than_there_are")
    keep(by_word.aggregate("n", Aggregator(list, emit_large, lambda state: [sum(state)]), "x"), "early_and_late")
    least = CombinerAggregator(lambda n: n, min, lambda: None)
    by_word.persistent_aggregate(DeltaState("least"), "n", least, "m")


def partitions(s: Stream) -> None:
    def sizes(dealt: Stream, name: str, tasks: int = 4) -> None:
        keep(dealt.partition_aggregate(Count(), "size").parallelism_hint(tasks), name)

    sizes(s.direct("n"), "direct")
    sizes(s.project("same").shuffle(), "shuffled")
    sizes(s.batch_global(), "batch_global", 3)
    sizes(s.direct("n").filter("w", RowFunction(lambda w: True)).parallelism_hint(4).global_(), "global", 2)
    keep(s.project([]).shuffle().partition_aggregate(Count(), "size").parallelism_hint(3), "without_fields")
    copies = s.broadcast().filter("w", RowFunction(lambda w: True)).parallelism_hint(3)
    keep(copies.global_().aggregate("n", Sum(), "x"), "copies")
    chain = s.direct("n").group_by("w").chained_agg().aggregate(Count(), "c")
    keep(chain.partition_aggregate("n", Sum(), "x").chain_end().parallelism_hint(2), "chain_by_task")
    keep(s.direct("n").max(lambda a, b: len(a["w"]) - len(b["w"])).project("w").parallelism_hint(2), "longest")


EXTREMES = "w string, f double, d date, a array<int>, p struct<x:int,y:string>"
VALUES = [
    ("r", float("inf"), date(2020, 1, 1), [1, 2], {"x": 1, "y": "b"}),
    ("q", NAN, date(2020, 1, 1), [1, None, 9], {"x": 1, "y": None}),
    ("z", float("-inf"), None, [1], {"x": 2, "y": "a"}),
    ("é", None, None, None, None),
]


def extremes(s: Stream) -> None:
    for field, name in (("w", "word"), ("f", "double"), ("d", "date"), ("a", "array"), ("p", "struct")):
        keep(s.min_by(field).project("w"), f"least_{name}")
        keep(s.max_by(field).project("w"), f"most_{name}")


def equal_keys(s: Stream) -> None:
    """Minus zero is zero for tasks, groups and states, and not a number is itself."""
    for number, by in enumerate((["k"], ["d", "e"])):
        parts = s.partition_by(by).group_by(by).partition_aggregate(Count(), "c").parallelism_hint(5)
        keep(parts.project("c"), f"parts_{number}")
    for layout in (LOG, MAP):
        numbers = s.filter("k", RowFunction(lambda k: k == k))  # else the case would not equal itself
        state = numbers.group_by("k").persistent_aggregate(DeltaState(layout, layout=layout), "n", Sum(), "x")
        keep(state.new_values_stream().project("x"), f"new_of_{layout}")


def meetings(a: Stream, b: Stream, c: Stream) -> None:
    topology, names = topology_of(a), ["k", "x", "y", "z"]
    keep(topology.join([a, b, c], ["k", "k", "k"], names, kind=OUTER), "outer")
    keep(topology.join([a, b, c], ["k", "k", "k"], names, kind=mixed(OUTER, "inner", OUTER)), "mixed")
    all_fields = ["k1", "x", "k2", "y", "z", "k3"]
    keep(topology.join([a, b, c], ["k", "k", "k"], all_fields, kind=OUTER, mode=PRESERVE), "preserve")
    keep(topology.join(a, ["x", "k"], c, ["z", "k"], ["x", "k"]), "of_all_fields")
    merged = topology.merge([a.project("x"), b.project("y"), c.project("z")], outputs=["v"])
    keep(merged.group_by("v").aggregate(Count(), "n"), "merged")
    keep(topology.merge(a, a).aggregate("x", Sum(), "x"), "with_itself")
    counts = b.group_by("k").persistent_aggregate(DeltaState("sums"), "y", Sum(), "total").new_values_stream()
    keep(topology.join(counts, "k", a, "k", ["k", "total", "x"]), "behind_a_persist")


KEYS = "a bigint, b date, c double, d boolean, e decimal(6,2), n bigint"
KEY = (1, date(2020, 1, 1), 0.5, True, Decimal("1.10"))
BY_KEY = rows("a b c d e count x lo hi", (None,) * 5 + (1, 1, 1, 1), (*KEY, 3, 12, 3, 9))


def states_of_all_kinds(s: Stream) -> None:
    """What the stream's states hold, and those that never get a tuple."""
    every = [Count("count"), Sum("n", "x"), Min("n", "lo"), Max("n", "hi")]
    for kind in (TRANSACTIONAL, OPAQUE, NON_TRANSACTIONAL):
        for layout in (LOG, MAP):
            by = s.group_by(["a", "b", "c", "d", "e"])
            by.persistent_aggregate(DeltaState(f"{kind}_{layout}", kind, layout), every)
    unfinished = [Average("n", "m"), DistinctCount("n", "d"), Collect("n", "l")]
    s.group_by("a").persistent_aggregate(DeltaState("unfinished"), unfinished)
    s.persistent_aggregate(DeltaState("whole"), [Count("c"), Max("n", "m")])
    s.persistent_aggregate(DeltaState("reduced"), "n", total(), "x")
    none = s.filter("n", RowFunction(lambda n: False))
    none.persistent_aggregate(DeltaState("no_log"), [Count("c"), Max("n", "m"), Collect("n", "l")])
    none.persistent_aggregate(DeltaState("no_map", layout=MAP), Count(), "c")
    none.group_by("a").persistent_aggregate(DeltaState("no_keys"), Count(), "c")
    keep(none, "no_rows")


class Held(QueryFunction):
    """How many are asked at once; drops what asks for "none"."""

    returns = "bigint"

    def batch_retrieve(self, state: Any, arguments: list[tuple[Any, ...]]) -> list[int]:
        return [len(arguments)] * len(arguments)

    def execute(self, arguments: tuple[Any, ...], result: int) -> list[int] | None:
        return [result] if arguments[0] != "none" else None


class Last(StateUpdater):
    """Keeps the last n of a word and how many there were; a null removes it. Emits how many there were before."""

    keys, values = "w string", "n bigint, seen bigint"

    def update_state(self, state: Any, tuples: list[tuple[Any, ...]]) -> Iterator[tuple[str, int]]:
        for w, n in tuples:
            old = state.multi_get([(w,)])[0] or (0, 0)
            if n is None:
                state.multi_remove([(w,)])
            else:
                state.multi_put([(w,)], [(n, old[1] + 1)])
            yield w, old[1]


def queries(s: Stream) -> None:
    topology = topology_of(s)
    keep(s.state_query("sums", "w", MapGet(), ["was", "times"]).project(["w", "was"]), "before")
    sums = s.group_by("w").persistent_aggregate(DeltaState("sums"), [Sum("n", "x"), Count("c")])
    whole = s.persistent_aggregate(DeltaState("whole"), [Count("c"), Sum("n", "x")])
    asked = s.state_query(sums, "w", MapGet(), ["c", "x"]).project(["w", "n", "c", "x"])
    keep(asked, "behind")
    keep(
        s.each("w", RowFunction(lambda w: [f"{w}?"], ("string",)), "v")
        .state_query(sums, "v", MapGet(), "x")
        .project("x"),
        "absent",
    )
    one = s.aggregate(Count(), "b")
    keep(one.state_query(whole, None, SnapshotGet(), ["x", "c"]), "snapshot")
    keep(one.state_query(sums, None, TupleCollectionGet(), ["x"]), "tuples")
    keep(s.state_query(sums, "w", Held(), "k").project(["w", "k"]), "at_once")
    fixed = FixedState("given", "v double, x string, y bigint", ["x", "y"], [(0.5, "a", 1), (1.5, None, 8)])
    keep(s.state_query(topology.new_static_state(fixed), ["w", "n"], MapGet(), "v").project("v"), "fixed")
    updated = s.partition_persist(DeltaState("last", OPAQUE), Last(), "w string, was bigint")
    keep(updated.new_values_stream(), "emitted")


def asked(s: Stream) -> None:
    topology = topology_of(s)
    words = s.each("t", Split(), "w").group_by("w").persistent_aggregate(DeltaState("words"), Count(), "c")
    found = (
        topology.new_query_stream("sum").each("args", Split(), "w").group_by("w").state_query(words, "w", MapGet(), "c")
    )
    found.aggregate("c", Sum(), "sum")
    every = topology.new_query_stream("top").state_query(words, None, TupleCollectionGet(), ["w", "c"])
    every.apply_assembly(FirstN(1, "c", reverse=True)).project(["w", "c"])
    known = topology.new_query_stream("known").each("args", Split(), "w").state_query(words, "w", MapGet(), "c")
    known.filter("c", RowFunction(lambda c: c is not None)).group_by("w").aggregate("c", Sum(), "c")


def asked_behind(orders: Stream, prices: Stream) -> None:
    latest = prices.group_by("item").persistent_aggregate(DeltaState("prices"), "price", Max(), "p")
    keep(orders.state_query(latest, "item", MapGet(), "p"))


def windows(s: Stream) -> None:
    keep(s.aggregate("n", Sum(), "x").tumbling_window(2, "x", Collect(), "l"), "of_aggregates")
    top = s.tumbling_window(3, "n", Max(), "m").persistent_aggregate(DeltaState("top"), "m", Max(), "m")
    # Its own windows' state: which of their batches it sees is open.
    keep(s.state_query(top, None, SnapshotGet(), "top").project("n"), "asked")


CASES = {
    "corners of aggregates": Case(
        "1.3, 1.4",
        WORDS,
        aggregates,
        [[("a", 1), ("a", 5), ("b", 2), ("b", None)], [], [("a", -1), ("b", 20)]],
        {
            "dropped": rows("c x m", *[(0, 0, None)] * 3),
            "twice": rows("m", (4,), (0,), (2,)),
            "grouped": rows("w c r m", ("a", 2, 6, 5), ("b", 2, 2, 2), ("a", 1, -1, -1), ("b", 1, 20, 20)),
            "crossed": rows("x y", (1, 2), (1, 5), (2, 2), (2, 5), (-1, -1), (-1, 20), (20, -1), (20, 20)),
            "crossed_with_none": [],
            "alone": rows("x", (1,), (2,), (-1,), (20,)),
            "first": rows("w m", ("a", 5), ("b", 2), ("a", -1), ("b", 20)),
            "more_than_there_are": rows("c", (4,), (0,), (2,)),
            "early_and_late": rows("w x", ("a", 6), ("b", 2), ("a", -1), ("b", -20), ("b", 20)),
            "least": rows("w m", ("a", -1), ("b", 2)),
        },
    ),
    "corners of partitions": Case(
        "1.2, 1.5, 3.9",
        "w string, n bigint, same string",
        partitions,
        [[("aa", -1, "s"), ("b", 7, "s"), ("cc", None, "s"), ("d", 4, "s")], []],
        {
            "direct": rows("size", (0,), (0,), (2,), (2,), (0,), (0,), (0,), (0,)),
            "shuffled": rows("size", (0,), (0,), (0,), (4,), (0,), (0,), (0,), (0,)),
            "batch_global": rows("size", (0,), (0,), (4,), (0,), (0,), (0,)),
            "global": rows("size", (0,), (4,), (0,), (0,)),
            "without_fields": rows("size", (0,), (0,), (4,), (0,), (0,), (0,)),
            "copies": rows("x", (30,), (0,)),
            "chain_by_task": rows("w c x", ("aa", 1, -1), ("b", 1, 7), ("cc", 1, 0), ("d", 1, 4)),
            "longest": rows("w", ("aa",), ("cc",)),
        },
    ),
    "corners of extremes": Case(
        "1.2, min and max: null is left out, not a number is the largest, the last of equals",
        EXTREMES,
        extremes,
        [VALUES],
        {
            f"{which}_{name}": rows("w", (found,))
            for name, *both in (
                ("word", "q", "é"),
                ("double", "z", "q"),
                ("date", "q", "q"),
                ("array", "z", "r"),
                ("struct", "q", "z"),
            )
            for which, found in zip(("least", "most"), both, strict=True)
        },
    ),
    "corners of keys": Case(
        "1.5, 6: equal values",
        "k double, d date, e decimal(20,3), n bigint",
        equal_keys,
        [
            [(0.0, date(2020, 1, 1), Decimal("1.5"), 1), (NAN, None, None, 3)],
            [(-0.0, date(2020, 1, 1), Decimal("1.500"), 2), (NAN, None, None, 4), (NAN, None, Decimal(-7), 5)],
        ],
        {
            "parts_0": rows("c", (1,), (1,), (1,), (2,)),
            "parts_1": rows("c", (1,), (1,), (1,), (1,), (1,)),
            "log": rows("k x", (0.0, 3)),
            "map": rows("k x", (0.0, 3)),
            "new_of_log": rows("x", (1,), (3,)),
            "new_of_map": rows("x", (1,), (3,)),
        },
    ),
    "corners of meetings": Case(
        "1.1, 8",
        {"a": "k string, x bigint", "b": "k string, y bigint", "c": "z bigint, k string"},
        meetings,
        {
            "a": [[("p", 1), ("q", 7), (None, 4)], []],
            "b": [[("p", 2), ("p", 3), ("s", 4)], [("p", 1)]],
            "c": [[(1, "p"), (4, "r"), (4, None)], [(9, "p")]],
        },
        {
            "outer": rows(
                "k x y z",
                (None, 4, None, 4),
                ("p", 1, 2, 1),
                ("p", 1, 3, 1),
                ("q", 7, None, None),
                ("r", None, None, 4),
                ("s", None, 4, None),
                ("p", None, 1, 9),
            ),
            "mixed": rows("k x y z", ("p", 1, 2, 1), ("p", 1, 3, 1), ("s", None, 4, None), ("p", None, 1, 9)),
            "preserve": rows(
                "k1 x k2 y z k3",
                (None, None, None, None, 4, "r"),
                (None, None, "s", 4, None, None),
                (None, 4, None, None, 4, None),
                ("p", 1, "p", 2, 1, "p"),
                ("p", 1, "p", 3, 1, "p"),
                ("q", 7, None, None, None, None),
                (None, None, "p", 1, 9, "p"),
            ),
            "of_all_fields": rows("x k", (1, "p"), (4, None)),
            "merged": rows("v n", (1, 2), (2, 1), (3, 1), (4, 4), (7, 1), (1, 1), (9, 1)),
            "with_itself": rows("x", (24,), (0,)),
            "sums": rows("k total", ("p", 6), ("s", 4)),
            "behind_a_persist": rows("k total x", ("p", 5, 1)),
        },
    ),
    "corners of states": Case(
        "6",
        KEYS,
        states_of_all_kinds,
        [[(*KEY, 3), (*KEY, None)], [], [(*KEY, 9), (*[None] * 5, 1)]],
        {
            **{
                f"{kind}_{layout}": BY_KEY
                for kind in (TRANSACTIONAL, OPAQUE, NON_TRANSACTIONAL)
                for layout in (LOG, MAP)
            },
            "unfinished": rows("a m d l", (None, 1.0, 1, [1]), (1, 6.0, 2, [3, 9])),
            "whole": rows("c m", (4, 9)),
            "reduced": rows("x", (13,)),
            "no_log": rows("c m l", (0, None, [])),
            "no_map": [],
            "no_keys": [],
            "no_rows": [],
        },
    ),
    "corners of queries": Case(
        "1.2, 4.3",
        WORDS,
        queries,
        [[("a", 1), ("a", 2), ("none", 1)], [], [("a", 4), (None, 8), ("none", None)]],
        {
            "sums": rows("w x c", (None, 8, 1), ("a", 7, 3), ("none", 1, 2)),
            "whole": rows("c x", (6, 16)),
            "before": rows("w was", *[("a", None)] * 2, ("none", None), (None, None), ("a", 3), ("none", 1)),
            "behind": rows(
                "w n c x",
                ("a", 1, 2, 3),
                ("a", 2, 2, 3),
                ("none", 1, 1, 1),
                (None, 8, 1, 8),
                ("a", 4, 3, 7),
                ("none", None, 2, 1),
            ),
            "absent": rows("x", *[(None,)] * 6),
            "snapshot": rows("b x c", (3, 4, 3), (0, 4, 3), (3, 16, 6)),
            "tuples": rows("b x", (3, 1), (3, 3), (0, 1), (0, 3), (3, 1), (3, 7), (3, 8)),
            "at_once": rows("w k", ("a", 3), ("a", 3), (None, 3), ("a", 3)),
            "fixed": rows("v", (None,), (None,), (0.5,), (None,), (None,), (1.5,)),
            "last": rows("w n seen", (None, 8, 1), ("a", 4, 3)),
            "emitted": rows("w was", ("a", 0), ("a", 1), ("none", 0), (None, 0), ("a", 2), ("none", 1)),
        },
    ),
    "a stream asks the state of one that is defined behind it": Case(
        "3.6: a state connects no streams",
        {"orders": "item string", "prices": "item string, price bigint"},
        asked_behind,
        {"prices": [[("tea", 5)], [("tea", 7)]], "orders": [[("tea",), ("ham",)]]},
        {"prices": rows("item p", ("tea", 7)), "out": rows("item p", ("ham", None), ("tea", 7))},
    ),
    "corners of windows": Case(
        "5",
        "n bigint",
        windows,
        [[(1,), (2,), (3,)], [], [(4,)], [(5,), (6,), (7,), (8,)]],
        {
            "of_aggregates": rows("l", ([0, 6],), ([4, 26],)),
            "top": rows("m", (6,)),
            "asked": rows("n", *((n,) for n in range(1, 9))),
        },
    ),
    "query answers": Case(
        "8",
        "t string",
        asked,
        [[("a b a",)], [("a",)]],
        {"words": rows("w c", ("a", 3), ("b", 1))},
        answers=(
            ("sum", [("a zz b a",), (None,), ("",), ("b",)], rows("sum", (8,))),
            ("sum", [], rows("sum", (0,))),
            ("top", [("x",)], rows("w c", ("a", 3))),
            ("known", [("zz",)], []),
        ),
    ),
}
