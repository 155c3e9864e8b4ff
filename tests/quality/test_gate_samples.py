"""Some of the rows that a gate's row rules find wrong, as results bring them along."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pipelines.nimbus.telemetry.figures import CheckFigures
from pipelines.quality import Gate, GateResult, compile_gate, drop, fail, warn
from pipelines.quality.samples import MOST, MOST_CHARACTERS, with_samples

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GATE = Gate(
    "clean",
    [
        warn("column_values_to_be_between", column="n", max_value=9, name="small"),
        fail("column_values_to_not_be_null", column="s", name="there"),
        drop("column_values_to_be_in_set", column="s", value_set=["a", "b"], name="known"),
        warn("table_row_count_to_be_between", min_value=1000, name="many"),
    ],
)


@pytest.fixture(scope="module")
def df(spark: SparkSession) -> DataFrame:
    rows = [(n, "a", "u") for n in range(30)] + [(1, None, "v"), (2, "b", "v"), (3, "x" * 5000, "w")]
    return spark.createDataFrame(rows, "n int, s string, _slice string").coalesce(2).cache()


def judged(df: DataFrame, actions: tuple[str, ...] = ("warn", "drop", "fail")) -> dict[str, GateResult]:
    compiled = compile_gate(GATE, df.schema)
    annotated = compiled.annotate(df)
    found = annotated.groupBy("_slice").agg(*compiled.metrics()).collect()
    results = {row["_slice"]: compiled.verdict(row.asDict()) for row in found}
    return with_samples(compiled, annotated, results, ["n", "s"], "_slice", actions)


def test_each_slice_brings_some_of_its_own_wrong_rows(df: DataFrame) -> None:
    results = judged(df)
    rows = {
        (slice_, check.name): check.detail["sample"]
        for slice_, result in results.items()
        for check in result.checks
        if "sample" in check.detail
    }
    assert set(rows) == {("u", "small"), ("v", "there"), ("w", "known")}
    assert len(rows["u", "small"]) == MOST
    assert all(row["n"] > 9 and row["s"] == "a" for row in rows["u", "small"])
    assert rows["v", "there"] == [{"n": 1, "s": None}]
    (cut,) = rows["w", "known"]
    assert set(cut) == {"row"}
    assert len(cut["row"]) == MOST_CHARACTERS + 3
    assert results["u"].checks[0].unexpected == 20


def test_rows_are_asked_of_the_wanted_checks_alone(df: DataFrame) -> None:
    assert [one.name for result in judged(df, ("fail",)).values() for one in result.checks if one.detail] == ["there"]


def test_where_all_hold_nothing_is_read(df: DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = compile_gate(Gate("g", [warn("column_values_to_be_between", column="n", max_value=99)]), df.schema)
    annotated = compiled.annotate(df)
    result = compiled.verdict(annotated.agg(*compiled.metrics()).collect()[0].asDict())
    monkeypatch.delattr("pipelines.quality.samples._collected")
    assert with_samples(compiled, annotated, {"": result}, ["n"]) == {"": result}


def test_a_beat_carries_the_rows_as_far_as_they_are_small() -> None:
    figures = CheckFigures()
    wrong = {"success": False, "rows": 9, "unexpected": 3}
    figures.add(1, {**wrong, "detail": {"sample": [{"s": "x" * 1900}] * 3, "mostly": 0.5}})
    assert len(figures.detail["sample"]) == 2
    assert set(figures.detail) == {"sample"}
    # A batch whose rows were not read again leaves the last ones.
    figures.add(2, wrong)
    assert len(figures.detail["sample"]) == 2
