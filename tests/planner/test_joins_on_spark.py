"""Joins, merges and multi-reducers on Spark; the plain engine says what is right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pipelines.sources import FixedBatches
from pipelines.testing import run_topology
from pipelines.trident import DeltaState, Stream, TridentTopology
from pipelines.trident.user_code import MultiReducer
from tests.planner.plans import Run, rows_of, source

SCHEMAS = {
    "a": "k string, n bigint, v string",
    "b": "w string, k string, n bigint",
    "c": "k string, x double, n bigint",
}
GIVEN: dict[str, list[tuple[Any, ...]]] = {
    "a": [("p", 1, "a1"), ("p", 1, "a2"), ("q", 1, "a3"), (None, 1, "a4"), ("only a", 1, "a5"), ("r", 2, "a6")],
    "b": [("b1", "p", 1), ("b2", "p", 1), ("b3", None, 1), ("b4", "q", 1), ("b5", "only b", 1), ("b6", "r", 3)],
    "c": [("p", 0.5, 1), (None, 1.5, 1), ("only c", 2.5, 1), ("q", None, 2)],
}


def streams(names: str) -> list[Stream]:
    topology = TridentTopology("t")
    return [topology.new_stream(name, FixedBatches(SCHEMAS[name], [])) for name in names]


def joined(names: str, kind: Sequence[str], mode: str) -> Stream:
    given = streams(names)
    keys = [["k", "n"]] * len(names)
    width = sum(3 for _ in names) if mode == "preserve" else 2 + len(names)
    return given[0]._topology.join(given, keys, [f"f{at}" for at in range(width)], kind=list(kind), mode=mode)


def kept(stream: Stream) -> list[tuple[Any, ...]]:
    """The stream's tuples by the plain interpreter."""
    names = [node.stream for node in stream._topology.spouts]
    stream.partition_persist(DeltaState("out"))
    found = run_topology(stream._topology, {name: [GIVEN[name]] for name in names})["out"]
    return sorted((tuple(row.values()) for row in found), key=repr)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["compact", "preserve"])
def test_all_kinds_of_joins(spark: SparkSession, mode: str) -> None:
    frames = {name: source(spark, SCHEMAS[name], rows) for name, rows in GIVEN.items()}
    for names in ("ab", "abc"):
        for kind in product(("inner", "outer"), repeat=len(names)):
            assert rows_of(joined(names, kind, mode), frames) == kept(joined(names, kind, mode)), (names, kind)


def test_nothing_crosses_slices(spark: SparkSession) -> None:
    frames = {
        name: source(spark, SCHEMAS[name], rows, slices=["x" if n % 2 else "y" for n in range(len(rows))])
        for name, rows in GIVEN.items()
    }
    inner = rows_of(joined("ab", ["inner", "inner"], "compact"), frames, Run(("x", "y")))
    assert inner == [("p", 1, "a1", "b1", "y"), ("p", 1, "a2", "b2", "x")]
    outer = rows_of(joined("abc", ["outer"] * 3, "compact"), frames, Run(("x", "y")))
    assert ("p", 1, "a1", "b1", 0.5, "y") in outer
    assert ("p", 1, "a2", "b2", None, "x") in outer
    assert (None, 1, "a4", None, 1.5, "x") in outer
    assert (None, 1, None, "b3", None, "y") in outer


def test_a_stream_joins_itself_and_merges(spark: SparkSession) -> None:
    [a] = streams("a")
    frames = {"a": source(spark, SCHEMAS["a"], GIVEN["a"])}
    run = Run()
    twice = a._topology.join(a.filter("n = 1"), "k", a.filter("v <> 'a1'"), "k", ["k", "n1", "v1", "n2", "v2"])
    assert rows_of(twice, frames, run) == sorted(
        [
            *[("p", 1, "a1", 1, "a2"), ("p", 1, "a2", 1, "a2"), ("q", 1, "a3", 1, "a3")],
            *[(None, 1, "a4", 1, "a4"), ("only a", 1, "a5", 1, "a5")],
        ],
        key=repr,
    )
    assert len(run.kept) == 1, "the source has two readers"
    a, b = streams("ab")
    merged = a._topology.merge(a.project(["v", "k", "n"]), b)
    both = {name: source(spark, SCHEMAS[name], GIVEN[name]) for name in "ab"}
    assert merged.output_fields == ("v", "k", "n")
    assert rows_of(merged, both) == sorted([(v, k, n) for k, n, v in GIVEN["a"]] + GIVEN["b"], key=repr)


class Both(MultiReducer):
    """Emits each value of the second stream with how many of the first came before it, at the end both counts."""

    def init(self, *group: Any) -> list[int]:
        return [0, 0]

    def execute(self, state: list[int], stream: int, *values: Any) -> Iterator[tuple[str, int]] | None:
        state[stream] += 1
        return iter_of((values[-1], state[0])) if stream else None

    def complete(self, state: list[int], *group: Any) -> list[tuple[str, int]]:
        return [(f"total {group}", state[0] * 100 + state[1])]


def iter_of(*rows: tuple[str, int]) -> Iterator[tuple[str, int]]:
    yield from rows


@pytest.mark.slow
def test_multi_reduce(spark: SparkSession) -> None:
    frames = {name: source(spark, SCHEMAS[name], GIVEN[name]) for name in "ab"}

    def whole(hint: int = 1) -> Stream:
        a, b = streams("ab")
        dealt = [a.partition_by("k"), b.partition_by("k")] if hint > 1 else [a, b]
        return a._topology.multi_reduce(dealt, ["k", "w"], Both(), "w string, n bigint").parallelism_hint(hint)

    def grouped() -> Stream:
        a, b = streams("ab")
        inputs = [["v"], ["n", "w"]]
        return a._topology.multi_reduce([a.group_by("k"), b.group_by("k")], inputs, Both(), "w string, n bigint")

    for build in (whole, lambda: whole(3), grouped):
        assert rows_of(build(), frames) == kept(build())
    odd = {"a": frames["a"].withColumn("v", F.struct(F.col("v").alias("first-name"))), "b": frames["b"]}
    assert len(rows_of(grouped(), odd)) == len(rows_of(grouped(), frames)), "a nested name that needs quotes"
    nothing = {name: frame.where("n = 9") for name, frame in frames.items()}
    assert rows_of(whole(), nothing) == [("total ()", 0)]
    assert rows_of(grouped(), nothing) == []
