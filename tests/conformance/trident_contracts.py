"""Cases of the three aggregator contracts and of chains (Trident rules 1.3 and 1.4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipelines.trident import (
    Aggregator,
    Average,
    Collect,
    CombinerAggregator,
    Count,
    DeltaState,
    DistinctCount,
    FirstN,
    Max,
    ReducerAggregator,
    Sum,
)
from tests.conformance.case import Case, keep, rows


def product() -> CombinerAggregator:
    return CombinerAggregator(lambda n: n, lambda a, b: a * b, lambda: 1)


def longest() -> CombinerAggregator:
    """None is no value: `combine` is never given it."""
    return CombinerAggregator(
        lambda w: w, lambda a, b: max(a, b, key=lambda w: (len(w), w)), lambda: None, returns="string"
    )


def one() -> CombinerAggregator:
    """Trident's One: 1 if there is any tuple."""
    return CombinerAggregator(lambda tuple_: 1, lambda a, b: 1, lambda: 0)


class Largest(ReducerAggregator):
    """A reducer by methods."""

    returns = "bigint"

    def init(self) -> int:
        return -1

    def reduce(self, current: int, n: int) -> int:
        return max(current, n)


class CountAsAggregator(Aggregator):
    """Trident's (rules 1.3, testing): state in place, one row at the end."""

    def init(self, batch: Any) -> list[int]:
        assert batch is not None
        return [0]

    def aggregate(self, state: list[int], tuple_: tuple[()]) -> None:
        assert tuple_ == ()
        state[0] += 1

    def complete(self, state: list[int]) -> int:
        return state[0]


def complete_pairs(state: list[int]) -> Iterator[tuple[int, str]]:
    for n in sorted(state):
        yield n, "x" * n


def pairs() -> Aggregator:
    """Two output fields, n rows; the state is returned anew."""
    return Aggregator(list, lambda state, n: [*state, n], complete_pairs, returns=["bigint", "string"])


def emit_large(state: dict[str, int], n: int) -> Iterator[int]:
    state["seen"] = state.get("seen", 0) + 1
    if n > 1:
        yield n


def at_once() -> Aggregator:
    """Emits while it aggregates, and at the end how many tuples it has seen, as a negative number."""
    return Aggregator(dict, emit_large, lambda state: [-state.get("seen", 0)], returns="bigint")


def silent() -> Aggregator:
    return Aggregator(lambda: None, lambda state, n: None, lambda state: None)


def twice() -> Aggregator:
    """Two rows, whatever the tuples."""
    return Aggregator(lambda: 0, lambda state, n: state + n, lambda state: [state, state + 1])


WORDS = "word string, n bigint"
WORD_BATCHES: list[list[tuple[Any, ...]]] = [[("a", 2), ("b", 3), ("a", 5)], [], [("b", 7), (None, 4)]]

CONTRACTS = {
    "combiner in Python": Case(
        "1.3, CombinerAggregator: zero() of an empty batch",
        WORDS,
        lambda s: keep(s.aggregate("n", product(), "p")),
        WORD_BATCHES,
        {"out": rows("p", (30,), (1,), (28,))},
    ),
    "combiner in Python, whose zero is None": Case(
        "1.3, CombinerAggregator: a value in place of null",
        "word string",
        lambda s: keep(s.aggregate("word", longest(), "w string")),
        [[("be",), ("not",), ("to",)], []],
        {"out": rows("w", ("not",), (None,))},
    ),
    "combiner in Python, grouped": Case(
        "1.3, grouped: an empty batch emits nothing",
        WORDS,
        lambda s: keep(s.group_by("word").aggregate("n", product(), "p")),
        WORD_BATCHES,
        {"out": rows("word p", ("a", 10), ("b", 3), (None, 4), ("b", 7))},
    ),
    "combiner in Python, without fields": Case(
        "1.2: without input fields a function sees an empty tuple",
        "n bigint",
        lambda s: keep(s.aggregate(one(), "there")),
        [[(5,), (6,)], []],
        {"out": rows("there", (1,), (0,))},
    ),
    "reducer": Case(
        "1.3, ReducerAggregator: init() of an empty batch",
        "n bigint",
        lambda s: keep(s.aggregate("n", Largest(), "m")),
        [[(3,), (9,), (4,)], [], [(0,)]],
        {"out": rows("m", (9,), (-1,), (0,))},
    ),
    "reducer, grouped": Case(
        "1.3, grouped",
        WORDS,
        lambda s: keep(s.group_by("word").aggregate("n", Largest(), "m")),
        WORD_BATCHES,
        {"out": rows("word m", ("a", 5), ("b", 3), (None, 4), ("b", 7))},
    ),
    "reducer over two fields": Case(
        "1.3, ReducerAggregator",
        "a bigint, b bigint",
        lambda s: keep(s.aggregate(["a", "b"], ReducerAggregator(lambda: 0, lambda total, a, b: total + a * b), "dot")),
        [[(1, 2), (3, 4)]],
        {"out": rows("dot", (14,))},
    ),
    "aggregator": Case(
        "1.3, Aggregator; 10, CountAsAggregator",
        "n bigint",
        lambda s: keep(s.aggregate(CountAsAggregator(), "c")),
        [[(3,), (9,)], [], [(0,)]],
        {"out": rows("c", (2,), (0,), (1,))},
    ),
    "aggregator that takes the batch's number": Case(
        "1.3, init(batchId)",
        "n bigint",
        lambda s: keep(s.aggregate("n", Aggregator(lambda k: [k], lambda state, n: None, list, returns="bigint"), "k")),
        [[(7,)], [(7,)], [], [(7,)]],
        {"out": rows("k", (0,), (1,), (2,), (3,))},
    ),
    "aggregator, several outputs": Case(
        "1.3, Aggregator: any number of tuples",
        "n bigint",
        lambda s: keep(s.aggregate("n", pairs(), ["m", "x"])),
        [[(2,), (1,)], [], [(3,)]],
        {"out": rows("m x", (1, "x"), (2, "xx"), (3, "xxx"))},
    ),
    "aggregator that emits at once": Case(
        "1.3, Aggregator: emits at any time",
        "n bigint",
        lambda s: keep(s.aggregate("n", at_once(), "m")),
        [[(2,), (1,), (3,)], []],
        {"out": rows("m", (-3,), (2,), (3,), (0,))},
    ),
    "aggregator that emits nothing": Case(
        "1.3, Aggregator",
        "n bigint",
        lambda s: keep(s.aggregate("n", silent(), "m")),
        [[(2,)], []],
        {"out": []},
    ),
    "aggregator, grouped": Case(
        "1.3, grouped: init at the first tuple of each group",
        WORDS,
        lambda s: keep(s.group_by("word").aggregate("n", pairs(), "m bigint, x string").project(["word", "m"])),
        WORD_BATCHES,
        {"out": rows("word m", ("a", 2), ("a", 5), ("b", 3), (None, 4), ("b", 7))},
    ),
    "distinct count and collect": Case(
        "architecture, public names, aggregators",
        WORDS,
        lambda s: (
            keep(s.aggregate([DistinctCount("word", "words"), Collect("n", "all")])),
            s.group_by("word").persistent_aggregate(
                DeltaState("kept"), [DistinctCount("n", "d"), Collect("n", "values")]
            ),
        ),
        [*WORD_BATCHES, [("a", 2), ("a", None)]],
        {
            "out": rows("words all", (2, [2, 3, 5]), (0, []), (1, [4, 7]), (1, [2])),
            "kept": rows("word d values", (None, 1, [4]), ("a", 2, [2, 2, 5]), ("b", 2, [3, 7])),
        },
    ),
    "first n": Case(
        "1.3, FirstN",
        WORDS,
        lambda s: (
            keep(s.apply_assembly(FirstN(2, "n")), "least"),
            keep(s.apply_assembly(FirstN(1, "n", reverse=True)), "most"),
            keep(s.apply_assembly(FirstN(5)), "any"),
            keep(s.aggregate(["n"], FirstN(1, "n"), "first"), "alone"),
        ),
        [[("a", 5), ("b", 3), ("c", None), ("d", 4)], []],
        {
            "least": rows("word n", ("b", 3), ("d", 4)),
            "most": rows("word n", ("a", 5)),
            "any": rows("word n", ("a", 5), ("b", 3), ("c", None), ("d", 4)),
            "alone": rows("first", (3,)),
        },
    ),
    "first n, grouped": Case(
        "1.3, FirstN is an aggregator",
        WORDS,
        lambda s: keep(s.group_by("word").aggregate(["n", "word"], FirstN(1, "n"), ["least", "again"])),
        [[("a", 5), ("b", 3), ("a", 4)]],
        {"out": rows("word least again", ("a", 4, "a"), ("b", 3, "b"))},
    ),
}

CHAINS = {
    "chain of combiners": Case(
        "1.4, FULL_COMBINE",
        WORDS,
        lambda s: keep(s.chained_agg().aggregate(Count(), "c").aggregate("n", Sum(), "s").chain_end()),
        WORD_BATCHES,
        {"out": rows("c s", (3, 10), (0, 0), (2, 11))},
    ),
    "chain with a reducer": Case(
        "1.4, FULL",
        WORDS,
        lambda s: keep(
            s.chained_agg()
            .aggregate("n", Average(), "mean")
            .aggregate("n", Largest(), "m")
            .aggregate(one(), "o")
            .chain_end()
        ),
        WORD_BATCHES,
        {"out": rows("mean m o", (10 / 3, 5, 1), (None, -1, 0), (5.5, 7, 1))},
    ),
    "chain's cross product": Case(
        "1.4, cross product of what each emitted",
        "n bigint",
        lambda s: keep(
            s.chained_agg()
            .aggregate("n", twice(), "a")
            .aggregate(Count(), "c")
            .aggregate("n", twice(), "b")
            .chain_end()
        ),
        [[(1,), (2,)]],
        {"out": rows("a c b", (3, 2, 3), (3, 2, 4), (4, 2, 3), (4, 2, 4))},
    ),
    "chain with an aggregator that emits nothing": Case(
        "1.4, LATENT: fixed, the product is empty",
        "n bigint",
        lambda s: keep(s.chained_agg().aggregate(Count(), "c").aggregate("n", silent(), "x").chain_end()),
        [[(1,), (2,)], []],
        {"out": []},
    ),
    "chain, grouped": Case(
        "1.4",
        WORDS,
        lambda s: keep(
            s.group_by("word")
            .chained_agg()
            .aggregate("n", pairs(), ["m", "x"])
            .aggregate("n", Max(), "high")
            .chain_end()
        ),
        WORD_BATCHES,
        {
            "out": rows(
                "word m x high",
                ("a", 2, "xx", 5),
                ("a", 5, "xxxxx", 5),
                ("b", 3, "xxx", 3),
                (None, 4, "xxxx", 4),
                ("b", 7, "xxxxxxx", 7),
            )
        },
    ),
    "chain that reuses a name": Case(
        "1.4: a chain's outputs replace the fields",
        WORDS,
        lambda s: keep(s.chained_agg().aggregate("n", Sum(), "n").aggregate(Count(), "word").chain_end()),
        [[("a", 2), ("b", 3)]],
        {"out": rows("n word", (5, 2))},
    ),
}

CASES = {**CONTRACTS, **CHAINS}
