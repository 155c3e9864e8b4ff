"""Logical partitions on Spark: repartitions, aggregates and extremes per task, merges; the plain engine says what is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pipelines.aggregators import CombinerAggregator, Count, ReducerAggregator, Sum
from pipelines.planner.aggregates import BestPass, ReducePass
from pipelines.planner.compile import Compiler
from pipelines.planner.step import task_by
from pipelines.planner.values import Where
from pipelines.sources import FixedBatches
from pipelines.testing import run_topology
from pipelines.trident import DeltaState, MultiReducer, RowFunction, Stream, TridentTopology
from tests.planner.plans import Run, frame_of, rows_of, source

SCHEMA = "k string, n bigint"
WORDS = "the man on the moon is a man who is there"
ROWS = [*((k, n) for n, k in enumerate(WORDS.split(" "))), (None, 99), ("a", None)]
LISTED = ReducerAggregator(lambda: "", lambda text, n: f"{text},{n}", returns="string")
TOTAL = CombinerAggregator(lambda n: n or 0, lambda a, b: a + b, lambda: 0)
COUNTED = MultiReducer(lambda: 0, lambda c, side, n: c + 1, lambda c: c, returns="bigint")

Build = Callable[[Stream], Stream]


def per_task(stream: Stream) -> Stream:
    """What a task holds, shown by all kinds of aggregators."""
    chain = stream.chained_agg().partition_aggregate("n", LISTED, "all").partition_aggregate("n", TOTAL, "t")
    return chain.partition_aggregate(Count(), "c").chain_end().parallelism_hint(3)


def new_values(stream: Stream) -> Stream:
    return stream.partition_persist(DeltaState("kept")).new_values_stream()


def merged(stream: Stream, build: Build) -> Stream:
    return stream._topology.merge(stream, build(stream))


def reduced(stream: Stream, build: Build) -> Stream:
    """How many tuples of each of two streams a task holds."""
    count = MultiReducer(
        lambda: [0, 0], lambda held, at, n: held.__setitem__(at, held[at] + 1), tuple, returns=["bigint", "bigint"]
    )
    both = stream._topology.multi_reduce([stream, build(stream)], ["n", "n"], count, ["first", "second"])
    return both.parallelism_hint(3)


CASES: dict[str, Build] = {
    "shuffle": lambda s: per_task(s.shuffle()),
    "partition_by": lambda s: per_task(s.partition_by("k")),
    "local_or_shuffle": lambda s: per_task(s.partition_by("k").filter("true").parallelism_hint(3).local_or_shuffle()),
    "local_or_shuffle to others": lambda s: per_task(s.partition_by("k").local_or_shuffle()),
    "global_": lambda s: per_task(s.global_()),
    "batch_global": lambda s: per_task(s.batch_global()),
    "broadcast": lambda s: per_task(s.broadcast()),
    "identity": lambda s: per_task(s.partition_by("k").filter("true").parallelism_hint(3).identity_partition()),
    "by a column": lambda s: per_task(s.partition(lambda k, n: n - 20)),
    "by a function": lambda s: per_task(s.partition(RowFunction(lambda k, n: -len(k or "")))),
    "direct": lambda s: per_task(s.direct("n")),
    "columns": lambda s: s.partition_by("k").partition_aggregate("n", Sum(), "s").parallelism_hint(3),
    "grouped": lambda s: s.shuffle().group_by("k").partition_aggregate("n", LISTED, "all").parallelism_hint(3),
    "combined": lambda s: s.partition_by("k").partition_aggregate("n", TOTAL, "s").parallelism_hint(3),
    "min_by": lambda s: s.partition_by("k").min_by("n").parallelism_hint(3),
    "max_by ties": lambda s: s.each("n", lambda n: n % 2, "odd").shuffle().max_by("odd").parallelism_hint(3),
    "min by comparator": lambda s: (
        s.each("n", lambda n: n % 2, "odd").shuffle().min_by("odd", lambda a, b: a - b).parallelism_hint(2)
    ),
    "max of tuples": lambda s: s.partition_by("k").max(lambda a, b: (a["n"] or 0) - (b["n"] or 0)).parallelism_hint(2),
    "behind an aggregate": lambda s: (
        s.group_by("k").aggregate("n", Sum(), "n").partition_aggregate("n", TOTAL, "t").parallelism_hint(3)
    ),
    "behind a whole aggregate": lambda s: per_task(s.aggregate("n", Sum(), "n").parallelism_hint(3)),
    "merged": lambda s: per_task(
        s._topology.merge(s.partition_by("k").filter("n < 5"), s.global_().filter("n > 5")).parallelism_hint(3)
    ),
    "merged twice": lambda s: per_task(
        s._topology.merge(s._topology.merge(s.project(["k", "n"]), s).filter("n > 1"), s).global_()
    ),
    "merged of many": lambda s: per_task(s._topology.merge(s, *(s.filter("n < 3") for _ in range(40))).global_()),
    "new values": lambda s: per_task(new_values(s.shuffle())),
    "new values reduced beside their tuples": lambda s: reduced(s.shuffle(), new_values),
    "new values merged with their tuples": lambda s: per_task(merged(s.shuffle(), new_values)),
    "one of two": lambda s: per_task(per_task(s.shuffle()).each("c", lambda c: c, "n").shuffle()),
}


def reference(build: Build) -> list[tuple[Any, ...]]:
    """The tuples by the plain interpreter."""
    s = stream()
    build(s).partition_persist(DeltaState("out"))
    found = run_topology(s._topology, {"s": [ROWS]})["out"]
    return sorted((tuple(row.values()) for row in found), key=repr)


def stream() -> Stream:
    return TridentTopology("t").new_stream("s", FixedBatches(SCHEMA, []))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_tasks_hold_what_the_plain_engine_says(spark: SparkSession, name: str) -> None:
    assert rows_of(CASES[name](stream()), {"s": source(spark, SCHEMA, ROWS)}) == reference(CASES[name])


def test_new_values_of_tuples_ask_for_the_tasks_of_the_tuples() -> None:
    """Those of keys are dealt by their keys."""
    kept, counted = stream().shuffle(), stream().shuffle()
    counts = counted.group_by("k").persistent_aggregate(DeltaState("counts"), Count(), "c").new_values_stream()
    for shuffled, new, needs in ((kept, new_values(kept), {"_task"}), (counted, counts, set())):
        tasks = new.partition_aggregate(Count(), "per_task").parallelism_hint(3)
        assert Compiler(tasks._topology.graph, (tasks.node,), Run(), {})._needs[shuffled.node] == needs


@pytest.mark.slow
def test_slices_and_tasks(spark: SparkSession) -> None:
    """Each slice has all tasks, those without tuples too; a slice without tuples as well."""
    slices = ("x", "y", "z")
    frames = {"s": source(spark, SCHEMA, ROWS, slices=["x" if n % 2 else "y" for n in range(len(ROWS))])}
    for aggregator in (Count(), CombinerAggregator(lambda _: 1, lambda a, b: a + b, lambda: 0)):
        s = stream().partition_by("k").partition_aggregate(aggregator, "c").parallelism_hint(3)
        found = rows_of(s, frames, Run(slices))
        assert len(found) == 9
        assert sum(c for c, _ in found) == len(ROWS)
        assert [c for c, slice_ in found if slice_ == "z"] == [0, 0, 0]
        in_stream = rows_of(s, frames, Run())
        assert [one for one in found if one[1] != "z"] == in_stream, "a stream's slices are those that have tuples"
        few = [one for one in rows_of(s, {"s": frames["s"].where("k = 'man'")}) if one[0]]
        assert len(few) < 3, "one task has both"
        assert len(rows_of(s, {"s": frames["s"].where("k = 'man'")})) == 3 * len({slice_ for _, slice_ in few})
    extremes = stream().max_by("n")
    assert rows_of(extremes, frames, Run(slices)) == [("there", 10, "y"), (None, 99, "x")]


@pytest.mark.slow
def test_slices_and_tasks_of_a_reducer(spark: SparkSession) -> None:
    """A stream gives a row for each task of a slice that has tuples, as a backfill does."""
    frames = {"s": source(spark, SCHEMA, ROWS, slices=["x" if n == 3 else "y" for n in range(len(ROWS))])}
    s = stream().partition_by("k")
    counted = s._topology.multi_reduce([s], ["n"], COUNTED, "c").parallelism_hint(3)
    found = rows_of(counted, frames, Run(("x", "y")))
    assert rows_of(counted, frames, Run()) == found
    assert [c for c, slice_ in found if slice_ == "x"] == [0, 0, 1]


def test_a_reducer_of_a_slice_begins_in_all_tasks() -> None:
    schema = pa.schema([("_slice", pa.string()), ("_task", pa.int32()), ("c", pa.int64())])
    run = ReducePass(Where("reduce", "here"), schema, 2, 0, COUNTED, (1,), 1, all_tasks=(1, 3))
    rows = [{"_k0": "x", "_k1": task, "_side": 0, "_s0": {"_0": 7}} for task in (2, 2, 0)]
    made = [tuple(row.values()) for batch in run(iter([pa.RecordBatch.from_pylist(rows)])) for row in batch.to_pylist()]
    assert sorted(made) == [("x", 0, 1), ("x", 1, 0), ("x", 2, 2)]
    assert not list(run(iter([])))


def test_the_order_of_arrival_survives_a_repartition(spark: SparkSession) -> None:
    rows = [("a", n) for n in range(2000)]
    frame = source(spark, SCHEMA, rows).coalesce(1)
    s = stream().shuffle().each("n", RowFunction(lambda n: n % 7, ("bigint",)), "m").parallelism_hint(4).global_()
    listed = s.partition_aggregate("n", LISTED, "all")
    assert rows_of(listed, {"s": frame}) == [("".join(f",{n}" for n in range(2000)),)]
    last = max(n for n in range(2000) if n % 7 == 6)
    assert rows_of(s.max_by("m").project(["n", "m"]), {"s": frame}) == [(last, 6)]


def test_fields_without_a_hash_do_not_deal(spark: SparkSession) -> None:
    frame = spark.sql(
        "SELECT id AS n, array(map('a', 1)) AS m, struct(1 AS x, map('a', 1) AS y) AS p, parse_json('1') AS v FROM range(20)"
    )
    dealt, by_n = task_by(frame, frame.columns, 5).alias("dealt"), task_by(frame, ["n"], 5).alias("by_n")
    none = task_by(frame, ["m", "p", "v"], 5).alias("none")
    for row in frame.select(dealt, by_n, none).collect():
        assert row.dealt == row.by_n
        assert row.none == 0


def test_what_needs_no_tasks_has_none(spark: SparkSession) -> None:
    """Word counts: no order, no tasks, nothing in Python, one shuffle."""
    s = stream().partition_by("k").filter("n > 0").parallelism_hint(1).group_by("k").aggregate("n", Sum(), "s")
    plan = frame_of(s, {"s": source(spark, SCHEMA, ROWS)})._jdf.queryExecution().executedPlan().toString()
    assert plan.count("Exchange hashpartitioning") == 1
    assert not [word for word in ("monotonically", "_task", "_order", "Python", "InArrow") if word in plan]


@pytest.mark.parametrize("largest", [True, False])
def test_of_equals_the_last_is_kept(largest: bool) -> None:
    """Tuples that one tuple was split into have the same place, and come in their order; then partitions meet in any."""
    schema = pa.schema([("k", pa.string()), ("n", pa.int64()), ("_order", pa.int64())])
    best = BestPass(Where("best", "here"), schema, 0, ("k", "n"), 1, largest, lambda a, b: a - b)

    def kept(*batches: list[tuple[str, int, int]]) -> list[dict[str, Any]]:
        columns = (list(zip(*rows, strict=True)) for rows in batches)
        made = best(pa.record_batch([pa.array(c) for c in of_batch], schema=schema) for of_batch in columns)
        return [row for batch in made for row in batch.to_pylist()]

    assert kept([("a", 1, 7), ("b", 1, 7)], [("c", 1, 7)]) == [{"k": "c", "n": 1, "_order": 7}]
    assert kept([("late", 1, 8)], [("early", 1, 7)]) == [{"k": "late", "n": 1, "_order": 8}]
