"""A tuple that a step dropped is seen by nothing behind it, whatever Spark would run first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pipelines.sources import FixedBatches
from pipelines.trident import FixedState, MapGet, RowFunction, Split, Stream, TridentTopology
from tests.planner.plans import Run, frame_of, rows_of, source
from tests.planner.test_state_frames import Held

SCHEMA = "code string, text string"
ROWS = [("7", "a"), ("2", "b"), ("x", "")]
DIGITS = RowFunction(str.isdigit)
NUMBER = "cast(code as int) > 3"


def joined(stream: Stream) -> Stream:
    topology = stream._topology
    other = topology.new_stream("other", FixedBatches("t string", []))
    return topology.join([stream, other], ["text", "t"], ["t", "code"])


def digits_of(code: str, text: str) -> Any:
    return [text] if code.isdigit() else []


DROPPING: dict[str, Callable[[Stream], Stream]] = {
    "a Python filter": lambda s: s.filter("code", DIGITS),
    "a filter over columns with a function of Spark's": lambda s: s.filter("code", F.udf(str.isdigit, "boolean")),
    "a Python function": lambda s: s.each(["code", "text"], RowFunction(digits_of, ("string",)), "made"),
    "a Python flat_map": lambda s: s.flat_map(
        RowFunction(lambda *row: [row] if row[0].isdigit() else [], ("string", "string")), ["code", "text"]
    ),
    "a generator over columns": lambda s: s.each("text", Split(), "word"),
    "a join": joined,
    "a filter of what a generator made": lambda s: s.each("code", Split(), "word").filter("word < 'x'"),
}
RAISING: dict[str, Any] = {
    "SQL": (lambda s: s.filter(NUMBER)),
    "columns": (lambda s: s.filter("code", lambda code: code.cast("int") > 3)),
    "Python": (lambda s: s.filter("code", RowFunction(lambda code: int(code) > 3))),
    "SQL over a new field": (lambda s: s.each("code", lambda code: code.cast("int"), "n").filter("n > 3")),
    "SQL behind a merge": (lambda s: s._topology.merge(s, s).filter(NUMBER)),
}


def started() -> Stream:
    return TridentTopology("t").new_stream("s", FixedBatches(SCHEMA, []))


@pytest.mark.slow
@pytest.mark.parametrize("drops", DROPPING.values(), ids=DROPPING)
def test_a_filter_is_not_given_what_was_dropped(spark: SparkSession, drops: Callable[[Stream], Stream]) -> None:
    frames = {"s": source(spark, SCHEMA, ROWS), "other": source(spark, "t string", [("a",), ("b",)])}
    for name, build in RAISING.items():
        made = build(drops(started()))
        at = made.output_fields.index("code")
        assert {row[at] for row in rows_of(made, frames)} == {"7"}, name


def test_a_filter_is_not_given_a_value_of_a_state_that_no_tuple_asks_for(spark: SparkSession) -> None:
    stream = started()
    held = FixedState("held", "k string, v string", "k", [("a", "7"), ("y", "x")])
    made = stream.state_query(stream._topology.new_static_state(held), "text", MapGet(), "v").project("v")
    run = Run(held=(Held(spark, "k string, v string", 1, [("a", "7"), ("y", "x")]), None))
    assert rows_of(made.filter("cast(v as int) > 3"), {"s": source(spark, SCHEMA, ROWS)}, run) == [("7",)]


def test_filters_in_front_are_pushed_into_the_source(spark: SparkSession, tmp_path: Path) -> None:
    file = str(tmp_path / "rows")
    source(spark, SCHEMA, ROWS).write.parquet(file)
    frames = {"s": spark.read.parquet(file)}
    both = started().filter("code > '1'").filter("text", lambda text: text == "a")

    for made in (both, both.filter("code", DIGITS), both.each("text", Split(), "word").filter("word < 'x'")):
        plan = frame_of(made, frames)._jdf.queryExecution().executedPlan().toString()
        assert "GreaterThan(code,1), EqualTo(text,a)" in plan, plan
        assert "Exchange" not in plan
