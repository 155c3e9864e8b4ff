"""Cases of streams that meet: merge, join, multi_reduce (Trident rules 1.1 and 8)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipelines.trident import (
    INNER,
    OUTER,
    PRESERVE,
    Count,
    DeltaState,
    MultiReducer,
    Split,
    Stream,
    Sum,
    TridentTopology,
    mixed,
)
from tests.conformance.case import Case, keep, rows, topology_of

TWO = {"left": "key string, val1 bigint, val2 bigint", "right": "x string, val1 bigint"}
MET: dict[str, list[list[tuple[Any, ...]]]] = {
    "left": [[("a", 1, 2), ("b", 3, 4), ("a", 5, 6)], [("c", 7, 8)], []],
    "right": [[("a", 10), ("c", 20)], [("c", 30), ("c", 40)], [("a", 50)]],
}


def of(stream: Stream) -> TridentTopology:
    return topology_of(stream)


def joined(**how: Any) -> Any:
    return lambda left, right: keep(of(left).join(left, "key", right, "x", ["key", "a", "b", "c"], **how))


MERGES = {
    "merge": Case(
        "1.1, merge: the names of the first",
        {"one": "a bigint, b string", "two": "c bigint, d string"},
        lambda one, two: keep(of(one).merge(one, two)),
        {"one": [[(1, "x")], [(2, "y")]], "two": [[(3, "z")], []]},
        {"out": rows("a b", (1, "x"), (3, "z"), (2, "y"))},
    ),
    "merge, named": Case(
        "1.1, merge(outputFields, ...)",
        {"one": "a bigint", "two": "b bigint", "three": "c bigint"},
        lambda one, two, three: keep(of(one).merge(one, two, three, outputs="n").aggregate("n", Sum(), "sum")),
        {"one": [[(1,)]], "two": [[(2,)], [(20,)]], "three": [[(3,)], [], [(300,)]]},
        {"out": rows("sum", (6,), (20,), (300,))},
    ),
    "merge of branches": Case(
        "1.1, merge of one spout's streams",
        "n bigint",
        lambda s: keep(of(s).merge(s.filter("n > 1"), s.filter("n > 2"), s)),
        [[(1,), (2,), (3,)]],
        {"out": rows("n", (1,), (2,), (2,), (3,), (3,), (3,))},
        spark=True,
    ),
    "merge into a state": Case(
        "7.6: the streams of one component share a txid",
        {"one": "sentence string", "two": "line string"},
        lambda one, two: (
            of(one)
            .merge(one, two)
            .each("sentence", Split(), "word")
            .group_by("word")
            .persistent_aggregate(DeltaState("counts"), Count(), "n")
        ),
        {"one": [[("to be",)], [("or",)]], "two": [[("be be",)], [], [("not or",)]]},
        {"counts": rows("word n", ("be", 3), ("not", 1), ("or", 2), ("to", 1))},
    ),
}

JOINS = {
    "join": Case(
        "8, the documentation's example: inner, compact",
        TWO,
        joined(),
        MET,
        {"out": rows("key a b c", ("a", 1, 2, 10), ("a", 5, 6, 10), ("c", 7, 8, 30), ("c", 7, 8, 40))},
    ),
    "join, outer": Case(
        "8, JoinType.OUTER for every side",
        TWO,
        joined(kind=OUTER),
        MET,
        {
            "out": rows(
                "key a b c",
                ("a", 1, 2, 10),
                ("a", 5, 6, 10),
                ("b", 3, 4, None),
                ("c", None, None, 20),
                ("c", 7, 8, 30),
                ("c", 7, 8, 40),
                ("a", None, None, 50),
            )
        },
    ),
    "join, mixed: the left may not be absent": Case(
        "8, JoinType.mixed(INNER, OUTER)",
        TWO,
        joined(kind=mixed(INNER, OUTER)),
        MET,
        {
            "out": rows(
                "key a b c",
                ("a", 1, 2, 10),
                ("a", 5, 6, 10),
                ("b", 3, 4, None),
                ("c", 7, 8, 30),
                ("c", 7, 8, 40),
            )
        },
    ),
    "join, mixed: the right may not be absent": Case(
        "8, JoinType.mixed(OUTER, INNER)",
        TWO,
        joined(kind=[OUTER, INNER]),
        MET,
        {
            "out": rows(
                "key a b c",
                ("a", 1, 2, 10),
                ("a", 5, 6, 10),
                ("c", None, None, 20),
                ("c", 7, 8, 30),
                ("c", 7, 8, 40),
                ("a", None, None, 50),
            )
        },
    ),
    "join, preserve": Case(
        "8, PRESERVE: all fields of each stream, the join fields null for a missing side",
        {"left": "v bigint, key string", "right": "x string, w bigint"},
        lambda left, right: keep(
            of(left).join(left, "key", right, "x", ["v", "k1", "k2", "w"], kind=OUTER, mode=PRESERVE)
        ),
        {"left": [[(1, "a"), (2, "b")]], "right": [[("b", 20), ("c", 30)]]},
        {"out": rows("v k1 k2 w", (None, None, "c", 30), (1, "a", None, None), (2, "b", "b", 20))},
    ),
    "join on null": Case(
        "8: null equals null",
        TWO,
        joined(kind=OUTER),
        {"left": [[(None, 1, 2), ("a", 3, 4)]], "right": [[(None, 10)]]},
        {"out": rows("key a b c", (None, 1, 2, 10), ("a", 3, 4, None))},
    ),
    "join on two fields": Case(
        "8",
        {"left": "a string, b bigint, v bigint", "right": "w bigint, d bigint, c string"},
        lambda left, right: keep(of(left).join(left, ["a", "b"], right, ["c", "d"], ["a", "b", "v", "w"])),
        {"left": [[("x", 1, 10), ("x", 2, 20)]], "right": [[(5, 2, "x"), (6, 1, "y")]]},
        {"out": rows("a b v w", ("x", 2, 20, 5))},
    ),
    "join of three": Case(
        "8, the last side fastest; List form",
        {"one": "k string, a bigint", "two": "k string, b bigint", "three": "k string, c bigint"},
        lambda *streams: keep(
            of(streams[0]).join(list(streams), ["k", "k", "k"], ["k", "a", "b", "c"], kind=mixed(INNER, OUTER, INNER))
        ),
        {
            "one": [[("x", 1), ("y", 2), ("z", 3)]],
            "two": [[("x", 10), ("x", 11)]],
            "three": [[("x", 100), ("y", 200), ("w", 300)]],
        },
        {"out": rows("k a b c", ("x", 1, 10, 100), ("x", 1, 11, 100), ("y", 2, None, 200))},
    ),
    "join of two branches": Case(
        "8: streams of one spout",
        "word string, n bigint",
        lambda s: keep(
            of(s).join(s, "word", s.group_by("word").aggregate("n", Sum(), "total"), "word", ["word", "n", "total"])
        ),
        [[("a", 1), ("b", 2), ("a", 3)], [("a", 5)]],
        {"out": rows("word n total", ("a", 1, 4), ("a", 3, 4), ("b", 2, 2), ("a", 5, 5))},
    ),
    "join does not cross batches": Case(
        "8: per batch only",
        TWO,
        joined(),
        {"left": [[("a", 1, 2)], []], "right": [[], [("a", 10)]]},
        {"out": []},
    ),
    "join of the same names": Case(
        "8, outputs are named by position",
        {"left": "k string, v bigint", "right": "k string, v bigint"},
        lambda left, right: keep(of(left).join(left, "k", right, "k", ["k", "v", "w"])),
        {"left": [[("a", 1)]], "right": [[("a", 2)]]},
        {"out": rows("k v w", ("a", 1, 2))},
    ),
}


def difference() -> MultiReducer:
    """The sum of the first stream's values less that of the second's, and how many tuples there were."""
    return MultiReducer(
        lambda: (0, 0),
        lambda state, stream, n: (state[0] + (n if stream == 0 else -n), state[1] + 1),
        lambda state: [state],
        returns=["bigint", "bigint"],
    )


class Matches(MultiReducer):
    """Grouped: how often the group is there in each stream; emits every tuple of the second at once."""

    def init(self, word: str) -> dict[int, int]:
        assert word is None or isinstance(word, str)
        return {}

    def execute(self, state: dict[int, int], stream: int, group: tuple[Any, ...], *values: Any) -> Iterator[Any]:
        state[stream] = state.get(stream, 0) + 1
        if stream == 1:
            yield (*group, f"saw {values[0]}")

    def complete(self, state: dict[int, int], group: tuple[Any, ...]) -> tuple[Any, str]:
        return (*group, f"{state.get(0, 0)}:{state.get(1, 0)}")


MULTI_REDUCES = {
    "multi_reduce": Case(
        "1.1, multiReduce",
        {"one": "a bigint, x string", "two": "b bigint"},
        lambda one, two: keep(of(one).multi_reduce([one, two], ["a", "b"], difference(), ["diff", "n"])),
        {"one": [[(5, "x"), (6, "y")], []], "two": [[(1,)], [], [(3,)]]},
        {"out": rows("diff n", (10, 3), (0, 0), (-3, 1))},
    ),
    "multi_reduce of grouped streams": Case(
        "1.1, multiReduce of GroupedStreams: the outputs are named by the caller",
        {"one": "word string", "two": "n bigint, w string"},
        lambda one, two: keep(
            of(one).multi_reduce(
                [one.group_by("word"), two.group_by("w")], [["word"], "n"], Matches(), "word string, text string"
            )
        ),
        {"one": [[("a",), ("a",), (None,)], []], "two": [[(7, "a"), (8, "b")], []]},
        {"out": rows("word text", (None, "1:0"), ("a", "2:1"), ("a", "saw 7"), ("b", "0:1"), ("b", "saw 8"))},
    ),
}

CASES = {**MERGES, **JOINS, **MULTI_REDUCES}
