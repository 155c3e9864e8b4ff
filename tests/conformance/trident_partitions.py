"""Cases of repartitions and of what works on each partition (Trident rules 1.2 and 1.5)."""

from __future__ import annotations

from typing import Any

from pipelines.trident import Collect, Count, DeltaState, FirstN, ReducerAggregator, RowFunction, Split, Stream, Sum
from tests.conformance.case import Case, keep, rows, topology_of

WORDS = "word string, n bigint"
FED: list[list[tuple[Any, ...]]] = [[("a", 1), ("b", 2), ("a", 3), ("c", 4)], [], [("b", 5)]]


def sizes(stream: Stream, tasks: int = 3) -> object:
    """How many tuples each task has: a row a task and batch, empty ones too."""
    return keep(stream.partition_aggregate(Count(), "size").parallelism_hint(tasks))


def totals(stream: Stream) -> object:
    """Partial sums a word and task, summed again: right however the tuples were dealt."""
    partial = stream.group_by("word").partition_aggregate("n", Sum(), "part").parallelism_hint(3)
    return keep(partial.group_by("word").aggregate("part", Sum(), "total"))


def different_tasks(dealt: Stream) -> None:
    """Consumers of one repartition, in four, two tasks and one."""
    keep(dealt.partition_aggregate("n", Sum(), "sum").parallelism_hint(4), "four")
    keep(dealt.partition_aggregate("n", Sum(), "sum").parallelism_hint(2), "two")
    keep(dealt, "rows")
    keep(dealt.max_by("n"), "one")


def dealt_again(dealt: Stream) -> None:
    """Repartitions behind a broadcast to four tasks, as such and in front of aggregates and a join."""
    keep(dealt.partition_aggregate("n", Sum(), "sum").parallelism_hint(4), "four")
    keep(dealt.shuffle(), "shuffled")
    keep(dealt.identity_partition().partition_aggregate("n", Sum(), "sum").parallelism_hint(2), "aligned")
    keep(dealt.broadcast().project("n").parallelism_hint(2), "again")
    keep(dealt.group_by("word").aggregate("n", Sum(), "sum").parallelism_hint(3), "grouped")
    keep(dealt.aggregate("n", Sum(), "sum").parallelism_hint(4), "whole")
    keep(topology_of(dealt).join(dealt, "word", dealt, "word", ["word", "n", "m"]).parallelism_hint(2), "joined")


def by_size(a: dict[str, Any], b: dict[str, Any]) -> int:
    """Compares tuples by n, nulls as zero."""
    return int((a["n"] or 0) - (b["n"] or 0))


def backwards(a: str, b: str) -> int:
    """Compares words from their ends."""
    return (a[::-1] > b[::-1]) - (a[::-1] < b[::-1])


def last_seen() -> ReducerAggregator:
    """The last value, which depends on the order of the tuples."""
    return ReducerAggregator(lambda: None, lambda last, n: n, returns="bigint")


TOTALS = rows("word total", ("a", 4), ("b", 2), ("c", 4), ("b", 5))

REPARTITIONS = {
    "partition aggregate in one task": Case(
        "1.2, partitionAggregate",
        WORDS,
        lambda s: keep(s.partition_aggregate("n", Sum(), "sum")),
        FED,
        {"out": rows("sum", (10,), (0,), (5,))},
    ),
    "partition aggregate, a row a task": Case(
        "1.3: exactly one tuple a partition, empty ones too",
        WORDS,
        lambda s: sizes(s.direct("n")),
        [[("a", 0), ("a", 3), ("a", 1)], []],
        {"out": rows("size", (0,), (1,), (2,), (0,), (0,), (0,))},
    ),
    "partition aggregate, a reducer a task": Case(
        "1.3: init() of an empty partition",
        WORDS,
        lambda s: keep(s.direct("n").partition_aggregate("n", last_seen(), "last").parallelism_hint(2)),
        [[("a", 0), ("a", 2), ("a", 4)], [("b", 1), ("b", 6)]],
        {"out": rows("last", (None,), (4,), (1,), (6,))},
    ),
    "partition aggregate, grouped": Case(
        "1.3: grouped, only the groups that are there",
        WORDS,
        lambda s: keep(s.direct("n").group_by("word").partition_aggregate(Count(), "c").parallelism_hint(2)),
        [[("a", 0), ("a", 2), ("a", 1), ("b", 1)], []],
        {"out": rows("word c", ("a", 1), ("a", 2), ("b", 1))},
    ),
    "chain a partition": Case(
        "1.4, PARTITION",
        WORDS,
        lambda s: keep(
            s.direct("n")
            .chained_agg()
            .aggregate(Count(), "c")
            .partition_aggregate("n", Sum(), "sum")
            .chain_end()
            .parallelism_hint(2)
        ),
        [[("a", 0), ("a", 2), ("a", 1)]],
        {"out": rows("c sum", (1, 1), (2, 2))},
    ),
    "partition_by": Case(
        "1.5: equal values go to the same task",
        WORDS,
        lambda s: (
            keep(s.partition_by("word").group_by("word").partition_aggregate("n", Sum(), "total").parallelism_hint(3)),
            keep(
                s.partition_by("word").partition_aggregate(Count(), "size").parallelism_hint(3).aggregate(Count(), "t"),
                "tasks",
            ),
        ),
        FED,
        {"out": TOTALS, "tasks": rows("t", (3,), (3,), (3,))},
    ),
    "fields with maps in them": Case(
        "1.5: what has no hash does not deal",
        "n bigint, m array<map<string,int>>, p struct<x:int,m:map<string,int>>",
        lambda s: (
            keep(s.shuffle().partition_aggregate(Count(), "c").parallelism_hint(2).aggregate("c", Sum(), "all")),
            keep(s.partition_by(["m", "p"]).partition_aggregate(Count(), "c").parallelism_hint(2), "by_them"),
            keep(s.filter("n", RowFunction(lambda n: n < 3)).parallelism_hint(2).project("n"), "filtered"),
        ),
        [[(1, [{"a": 1}], {"x": 1, "m": {"a": 1}}), (2, None, None), (3, [], {"x": 2, "m": None})]],
        {"out": rows("all", (3,)), "by_them": rows("c", (0,), (3,)), "filtered": rows("n", (1,), (2,))},
    ),
    "partition_by null": Case(
        "1.5: null hash fields are legal",
        WORDS,
        lambda s: keep(s.partition_by("word").group_by("word").partition_aggregate(Count(), "c").parallelism_hint(4)),
        [[(None, 1), (None, 2), ("a", 3)]],
        {"out": rows("word c", (None, 2), ("a", 1))},
    ),
    "shuffle": Case("1.5, shuffle", WORDS, lambda s: totals(s.shuffle()), FED, {"out": TOTALS}),
    "shuffle, the tuples of each task": Case(
        "1.5: shuffle deals by a hash of all fields",
        WORDS,
        lambda s: sizes(s.shuffle()),
        [[("w", n) for n in range(30)]],
        {"out": rows("size", (7,), (7,), (16,))},
    ),
    "local_or_shuffle": Case(
        "1.5, localOrShuffle keeps the task where the number of tasks stays",
        WORDS,
        lambda s: sizes(s.direct("n").filter(RowFunction(lambda w, n: True)).parallelism_hint(3).local_or_shuffle()),
        [[("a", 0), ("a", 3), ("a", 1)]],
        {"out": rows("size", (0,), (1,), (2,))},
    ),
    "identity_partition": Case(
        "1.5, IdentityGrouping: task i to task i",
        WORDS,
        lambda s: sizes(s.direct("n").filter(RowFunction(lambda w, n: True)).parallelism_hint(3).identity_partition()),
        [[("a", 0), ("a", 3), ("a", 1)]],
        {"out": rows("size", (0,), (1,), (2,))},
    ),
    "global_": Case(
        "1.5, global: all tuples to the lowest task",
        WORDS,
        lambda s: sizes(s.global_()),
        FED,
        {"out": rows("size", (0,), (0,), (4,), (0,), (0,), (0,), (0,), (0,), (1,))},
    ),
    "batch_global": Case(
        "1.5, batchGlobal: one task a batch",
        WORDS,
        lambda s: sizes(s.batch_global()),
        FED,
        {"out": rows("size", (0,), (0,), (4,), (0,), (0,), (0,), (0,), (0,), (1,))},
    ),
    "batch_global, task by task": Case(
        "1.5, batchGlobal: the batch with txid k goes to task k % n, whose windows are its own",
        WORDS,
        lambda s: keep(s.batch_global().tumbling_window(2, "n", Collect(), "ns").parallelism_hint(2)),
        [[("a", 1)], [("a", 2)], [("a", 3)], [("a", 4)]],
        {"out": rows("ns", ([1, 3],), ([2, 4],))},
    ),
    "broadcast": Case(
        "1.5, broadcast: to every task",
        WORDS,
        lambda s: (
            keep(s.broadcast().project("n").parallelism_hint(3)),
            keep(s.broadcast().partition_aggregate("n", Sum(), "sum").parallelism_hint(2), "sums"),
        ),
        [[("a", 1), ("b", 2)]],
        {"out": rows("n", (1,), (1,), (1,), (2,), (2,), (2,)), "sums": rows("sum", (3,), (3,))},
    ),
    "broadcast to one task": Case(
        "1.5, broadcast", WORDS, lambda s: keep(s.broadcast()), [[("a", 1)]], {"out": rows("word n", ("a", 1))}
    ),
    "direct": Case(
        "architecture, trident: direct grouping is a column that names the partition",
        WORDS,
        lambda s: keep(s.direct("n").partition_aggregate("n", Sum(), "sum").parallelism_hint(3)),
        [[("a", -1), ("b", 5), ("c", 10), (None, None), ("d", 3)]],
        {"out": rows("sum", (3,), (4,), (10,))},
    ),
    "partition by a row function": Case(
        "1.2, partition(CustomStreamGrouping)",
        WORDS,
        lambda s: sizes(s.partition(RowFunction(lambda word, n: len(word), ("int",)))),
        [[("", 0), ("bb", 0), ("ccc", 0), ("eeeee", 0), ("ff", 0)]],
        {"out": rows("size", (0,), (2,), (3,))},
    ),
    "partition by a function of columns": Case(
        "1.2, partition(CustomStreamGrouping)",
        WORDS,
        lambda s: sizes(s.partition(lambda word, n: -n)),
        [[("a", 1), ("b", 2), ("c", 4), ("d", None)]],
        {"out": rows("size", (1,), (1,), (2,))},
        spark=True,
    ),
    "two repartitions in a row": Case(
        "1.5: an identity node stands between them",
        WORDS,
        lambda s: totals(s.local_or_shuffle().shuffle().global_().partition_by(["word", "n"])),
        FED,
        {"out": TOTALS},
    ),
    "one repartition, different numbers of tasks": Case(
        "3.9: each bolt has its own number",
        WORDS,
        lambda s: different_tasks(s.direct("n")),
        [[("a", 0), ("b", 1), ("c", 2), ("d", 3)], []],
        {
            "four": rows("sum", (0,), (1,), (2,), (3,), (0,), (0,), (0,), (0,)),
            "two": rows("sum", (2,), (4,), (0,), (0,)),
            "rows": rows("word n", ("a", 0), ("b", 1), ("c", 2), ("d", 3)),
            "one": rows("word n", ("d", 3)),
        },
    ),
    "one broadcast, different numbers of tasks": Case(
        "1.5, broadcast: to every task of each bolt",
        WORDS,
        lambda s: different_tasks(s.broadcast()),
        [[("a", 1), ("b", 2)]],
        {
            "four": rows("sum", (3,), (3,), (3,), (3,)),
            "two": rows("sum", (3,), (3,)),
            "rows": rows("word n", ("a", 1), ("b", 2)),
            "one": rows("word n", ("b", 2)),
        },
    ),
    "one broadcast, dealt again": Case(
        "1.5: an identity operation, of one task, stands in front of a second repartition, and takes a copy per task",
        WORDS,
        lambda s: dealt_again(s.broadcast()),
        [[("a", 1), ("b", 2)]],
        {
            "four": rows("sum", (3,), (3,), (3,), (3,)),
            "shuffled": rows("word n", ("a", 1), ("b", 2)),
            "aligned": rows("sum", (3,), (3,)),
            "again": rows("n", (1,), (1,), (2,), (2,)),
            "grouped": rows("word sum", ("a", 1), ("b", 2)),
            "whole": rows("sum", (3,)),
            "joined": rows("word n m", ("a", 1, 1), ("b", 2, 2)),
        },
    ),
    "a hint does not change an aggregate of the batch": Case(
        "3.9",
        WORDS,
        lambda s: (
            keep(s.shuffle().aggregate("n", Sum(), "sum").parallelism_hint(4)),
            s.shuffle()
            .group_by("word")
            .persistent_aggregate(DeltaState("totals"), "n", Sum(), "total")
            .parallelism_hint(6),
        ),
        FED,
        {"out": rows("sum", (10,), (0,), (5,)), "totals": rows("word total", ("a", 4), ("b", 7), ("c", 4))},
    ),
    "first n of several tasks": Case(
        "1.3, FirstN: of each partition, then of those",
        WORDS,
        lambda s: keep(
            s.direct("n").filter(RowFunction(lambda w, n: True)).parallelism_hint(3).apply_assembly(FirstN(2, "n"))
        ),
        [[("a", 7), ("b", 3), ("c", 5), ("d", 4)], []],
        {"out": rows("word n", ("b", 3), ("d", 4))},
    ),
}

EXTREMES = {
    "min_by and max_by": Case(
        "1.2: null is skipped, an empty partition gives nothing",
        WORDS,
        lambda s: (keep(s.min_by("n"), "least"), keep(s.max_by("n"), "most")),
        [[("a", 3), ("b", None), ("c", 1), ("d", 2)], [], [("e", None)]],
        {"least": rows("word n", ("c", 1)), "most": rows("word n", ("a", 3))},
    ),
    "of equals the last": Case(
        "1.2: ties",
        WORDS,
        lambda s: (keep(s.min_by("n"), "least"), keep(s.max_by("n"), "most")),
        [[("a", 1), ("b", 2), ("c", 1), ("d", 2)]],
        {"least": rows("word n", ("c", 1)), "most": rows("word n", ("d", 2))},
    ),
    "of equals that one tuple was split into the last": Case(
        "1.2: ties",
        WORDS,
        lambda s: (
            keep(s.each("word", Split(), "w").project(["w", "n"]).max_by("n"), "plain"),
            keep(s.each("word", Split(), "w").project(["w", "n"]).min(by_size), "compared"),
        ),
        [[("a b c", 1)]],
        {"plain": rows("w n", ("c", 1)), "compared": rows("w n", ("c", 1))},
    ),
    "min_by and max_by a partition": Case(
        "1.2: per partition, not global",
        WORDS,
        lambda s: (
            keep(s.direct("n").min_by("n").parallelism_hint(2), "least"),
            keep(s.direct("n").max_by("n").parallelism_hint(2).global_().max_by("n"), "most"),
        ),
        [[("a", 3), ("b", 4), ("c", 1), ("d", 2)], [("e", 5)]],
        {"least": rows("word n", ("c", 1), ("d", 2), ("e", 5)), "most": rows("word n", ("b", 4), ("e", 5))},
    ),
    "min_by with a comparator": Case(
        "1.2, minBy(field, comparator)",
        WORDS,
        lambda s: (keep(s.min_by("word", backwards), "least"), keep(s.max_by("word", backwards), "most")),
        [[("ab", 1), ("ba", 2), (None, 3), ("zc", 4), ("xa", 5)]],
        {"least": rows("word n", ("ba", 2)), "most": rows("word n", ("zc", 4))},
    ),
    "min and max of tuples": Case(
        "1.2, min(comparator), max(comparator)",
        WORDS,
        lambda s: (keep(s.min(by_size), "least"), keep(s.max(by_size), "most")),
        [[("a", 3), ("b", None), ("c", 1), ("d", 3)], []],
        {"least": rows("word n", ("b", None)), "most": rows("word n", ("d", 3))},
    ),
}

CASES = {**REPARTITIONS, **EXTREMES}
