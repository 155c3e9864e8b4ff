"""The original's own tests and JStorm's (Trident rules, section 10)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipelines.trident import (
    Aggregator,
    CombinerAggregator,
    Count,
    DeltaState,
    FilterNull,
    FixedState,
    MapGet,
    RowFunction,
    Split,
    Stream,
    Sum,
    TupleCollectionGet,
    row_function,
)
from tests.conformance.case import Case, keep, rows, topology_of

SENTENCES = [
    "the cow jumped over the moon",
    "the man went to the store and bought some candy",
    "four score and seven years ago",
    "how many apples can you eat",
    "to be or not to be the person",
]


def loops(number: int) -> list[list[tuple[Any, ...]]]:
    """JStorm's FixedLimitBatchSpout: the five sentences again and again, three to a batch, two at the end of a loop."""
    return [[(sentence,) for sentence in part] for _ in range(number) for part in (SENTENCES[:3], SENTENCES[3:])]


def count_as_aggregator() -> Aggregator:
    return Aggregator(lambda: 0, lambda state, tuple_: state + 1, lambda state: state)


def integration(s: Stream) -> None:
    """TridentIntegrationTest's topologies over one state."""
    topology = topology_of(s)
    counts = (
        s.each("sentence", Split(), "word")
        .group_by("word")
        .persistent_aggregate(DeltaState("counts"), Count(), "count")
    )
    counts.parallelism_hint(6)
    topology.new_query_stream("all_tuples").broadcast().state_query(
        counts, "args", TupleCollectionGet(), ["word", "count"]
    ).project(["word", "count"]).group_by("word").aggregate("count", Sum(), "count").aggregate(
        ["word", "count"], in_order(), ["word", "count"]
    )
    (
        topology.new_query_stream("words")
        .each("args", Split(), "word")
        .group_by("word")
        .state_query(counts, "word", MapGet(), "count")
        .aggregate("count", Sum(), "sum")
        .project("sum")
    )
    (
        topology.new_query_stream("numwords")
        .each("args", Split(), "word")
        .aggregate(count_as_aggregator(), "count")
        .parallelism_hint(2)
        .project("count")
    )


def in_order() -> Aggregator:
    """All tuples, sorted: an answer's rows have no order of their own."""
    return Aggregator(list, lambda state, *row: [*state, row], sorted, returns=["string", "bigint"])


FED = [[("hello the man said",)], [("the",)]]
AFTER_FED = (("hello", 1), ("man", 1), ("said", 1), ("the", 2))
FOO = [[("the foo",)]]
AFTER_FOO = (("foo", 1), ("hello", 1), ("man", 1), ("said", 1), ("the", 3))
MOON = [[("the man on the moon",)], [("where are you",)]]
AFTER_MOON = (
    *(("are", 1), ("hello", 1), ("man", 2), ("moon", 1), ("on", 1), ("said", 1), ("the", 4)),
    *(("where", 1), ("you", 1)),
)


def jstorm_map(s: Stream) -> None:
    counts = (
        s.flat_map(Split(), "word")
        .map(RowFunction(str.upper, ("string",)))
        .filter(RowFunction(lambda word: word == "THE"))
        .peek(lambda row: None)
        .group_by("word")
        .persistent_aggregate(DeltaState("counts"), Count(), "n")
        .parallelism_hint(16)
    )
    asked = topology_of(s).new_query_stream("words").flat_map(Split()).group_by("args")
    asked.state_query(counts, "args", MapGet(), "n").filter("n", FilterNull()).aggregate("n", Sum(), "sum")


def jstorm_word_count(s: Stream) -> None:
    counts = (
        s.each("sentence", Split(), "word").group_by("word").persistent_aggregate(DeltaState("counts"), Count(), "n")
    )
    counts.parallelism_hint(16)
    asked = topology_of(s).new_query_stream("words").each("args", Split(), "word").group_by("word")
    asked.state_query(counts, "word", MapGet(), "n").filter("n", FilterNull()).aggregate("n", Sum(), "sum")


WORDS_A_LOOP = {
    word: sum(sentence.split().count(word) for sentence in SENTENCES)
    for sentence in SENTENCES
    for word in sentence.split()
}

TWEETERS = {
    "foo.com/blog/1": ["sally", "bob", "tim", "george", "nathan"],
    "engineering.twitter.com/blog/5": ["adam", "david", "sally", "nathan"],
    "tech.backtype.com/blog/123": ["tim", "mike", "john"],
}
FOLLOWERS = {
    "sally": ["bob", "tim", "alice", "adam", "jim", "chris", "jai"],
    "bob": ["sally", "nathan", "jim", "mary", "david", "vivian"],
    "tim": ["alex"],
    "nathan": ["sally", "bob", "adam", "harry", "chris", "vivian", "emily", "jordan"],
    "adam": ["david", "carissa"],
    "mike": ["john", "bob"],
    "john": ["alice", "nathan", "jim", "mike", "bob"],
}


@row_function("string")
def expand_list(values: list[str] | None) -> Iterator[str]:
    yield from values or ()


def one() -> CombinerAggregator:
    return CombinerAggregator(lambda tuple_: 1, lambda a, b: 1, lambda: 1)


def reach(s: Stream) -> None:
    """TridentReachTest."""
    keep(s)
    topology = topology_of(s)
    tweeters = topology.new_static_state(
        FixedState("tweeters", "url string, names array<string>", "url", list(TWEETERS.items()))
    )
    followers = topology.new_static_state(
        FixedState("followers", "tweeter string, names array<string>", "tweeter", list(FOLLOWERS.items()))
    )
    (
        topology.new_query_stream("reach")
        .state_query(tweeters, "args", MapGet(), "tweeters")
        .each("tweeters", expand_list, "tweeter")
        .shuffle()
        .state_query(followers, "tweeter", MapGet(), "followers")
        .parallelism_hint(2)
        .each("followers", expand_list, "follower")
        .group_by("follower")
        .aggregate(one(), "one")
        .parallelism_hint(2)
        .aggregate("one", Sum(), "reach")
    )


def slower(a: dict[str, Any], b: dict[str, Any]) -> int:
    return int(a["speed"]) - int(b["speed"])


SHUFFLED = [4, 10, 7, 1, 9, 2, 8, 3, 6, 5]

CASES = {
    "TridentIntegrationTest 1, 2, 4: first feed": Case(
        "10, TridentIntegrationTest",
        "sentence string",
        integration,
        FED,
        {"counts": rows("word count", *AFTER_FED)},
        answers=(
            ("all_tuples", [("x",)], rows("word count", *AFTER_FED)),
            ("words", [("the",)], rows("sum", (2,))),
            ("words", [("hello",)], rows("sum", (1,))),
            ("numwords", [("the",)], rows("count", (1,))),
            ("numwords", [("",)], rows("count", (0,))),
            ("numwords", [("1 2 3 4 5 6 7 8",)], rows("count", (8,))),
        ),
    ),
    "TridentIntegrationTest 1: then": Case(
        "10, TridentIntegrationTest.testMemoryMapGetTuples",
        "sentence string",
        integration,
        [*FED, *FOO],
        {"counts": rows("word count", *AFTER_FOO)},
        answers=(("all_tuples", [("x",)], rows("word count", *AFTER_FOO)),),
    ),
    "TridentIntegrationTest 2: then": Case(
        "10, TridentIntegrationTest.testWordCount",
        "sentence string",
        integration,
        [*FED, *MOON],
        {"counts": rows("word count", *AFTER_MOON)},
        answers=(
            ("words", [("the",)], rows("sum", (4,))),
            ("words", [("man",)], rows("sum", (2,))),
            ("words", [("man where you the",)], rows("sum", (8,))),
        ),
    ),
    "TridentMapTest": Case(
        "10, JStorm's TridentMapTest",
        "sentence string",
        jstorm_map,
        loops(4),
        {"counts": rows("word n", ("THE", 20))},
        answers=(("words", [("THE",)], rows("sum", (20,))), ("words", [("the tHe thE",)], rows("sum", (0,)))),
    ),
    "TridentWordCountTest": Case(
        "10, JStorm's TridentWordCountTest",
        "sentence string",
        jstorm_word_count,
        loops(3),
        {"counts": rows("word n", *((word, 3 * n) for word, n in sorted(WORDS_A_LOOP.items())))},
        answers=(("words", [("the",)], rows("sum", (15,))), ("words", [("be store kujou",)], rows("sum", (9,)))),
    ),
    "TridentReachTest": Case(
        "10, JStorm's TridentReachTest",
        "n bigint",
        reach,
        [[(1,)]],
        {"out": rows("n", (1,))},
        answers=(
            ("reach", [("aaa",)], rows("reach", (0,))),
            ("reach", [("foo.com/blog/1",)], rows("reach", (16,))),
            ("reach", [("engineering.twitter.com/blog/5",)], rows("reach", (14,))),
        ),
    ),
    "TridentMinMaxOfDevicesTest": Case(
        "10, JStorm's TridentMinMaxOfDevicesTest",
        "device_id bigint, count bigint",
        lambda s: (keep(s.min_by("device_id"), "least"), keep(s.max_by("count"), "most")),
        [list(zip(SHUFFLED, reversed(SHUFFLED), strict=True)), list(zip(reversed(SHUFFLED), SHUFFLED, strict=True))],
        {
            "least": rows("device_id count", (1, 8), (1, 8)),
            "most": rows("device_id count", (6, 10), (6, 10)),
        },
    ),
    "TridentMinMaxOfVehiclesTest": Case(
        "10, JStorm's TridentMinMaxOfVehiclesTest",
        "vehicle string, speed bigint, efficiency double",
        lambda s: (
            keep(s.min(slower), "slowest"),
            keep(s.max(slower), "fastest"),
            keep(s.min_by("efficiency"), "worst"),
            keep(s.max_by("efficiency"), "best"),
        ),
        [[(f"v{n}", n, 100.0 / n) for n in SHUFFLED]],
        {
            "slowest": rows("vehicle speed efficiency", ("v1", 1, 100.0)),
            "fastest": rows("vehicle speed efficiency", ("v10", 10, 10.0)),
            "worst": rows("vehicle speed efficiency", ("v10", 10, 10.0)),
            "best": rows("vehicle speed efficiency", ("v1", 1, 100.0)),
        },
    ),
}
