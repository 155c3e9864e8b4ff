"""A gate that stands right behind its source is judged with the source's row counts; its answers are those of any gate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.execution.report import BatchReport
from pipelines.quality import Check, drop, fail, warn
from pipelines.sources import JsonFiles
from pipelines.trident import Count, DeltaState, TridentTopology

SCHEMA = "day string, key string, n bigint"
ROWS: list[dict[str, Any]] = [
    {"day": "1", "key": "a", "n": 1},
    {"day": "1", "key": None, "n": 2},
    {"day": "2", "key": "b", "n": -1},
    {"day": None, "key": None, "n": -7},
    {"day": "2", "key": "abc", "n": 4},
]
BY_ROWS = [
    drop("expect_column_values_to_not_be_null", column="key"),
    drop("expect_column_values_to_be_between", column="n", min_value=0),
    warn("expect_column_value_lengths_to_equal", column="key", value=1),
]


def run(spark: SparkSession, root: Path, checks: list[Check], *, first: bool, sliced: bool) -> tuple[BatchReport, Lake]:
    """One batch of the rows above and a torn line, through a gate behind the source or behind a filter."""
    folder = root / "in"
    folder.mkdir(parents=True)
    (folder / "0.json").write_text("\n".join([*map(json.dumps, ROWS), '{"day": "1", "key": "torn", "n": "x"}']) + "\n")
    topology = TridentTopology("sales")
    stream = topology.new_stream("sold", JsonFiles(folder, SCHEMA), slice_by="day" if sliced else None)
    kept = (stream if first else stream.filter("true")).gate(*checks, name="sane")
    kept.partition_persist(DeltaState("rows"))
    kept.group_by("key").persistent_aggregate(DeltaState("counts"), Count(), "n")
    lake = Lake(root / "lake")
    (batch,) = Runtime(spark, lake).catch_up(topology).batches
    return batch, lake


def answers(batch: BatchReport, lake: Lake) -> dict[str, Any]:
    quarantine = lake.quarantine("sales").scan().to_pylist()
    return {
        "counts": (batch.received, batch.quarantined),
        "gates": batch.gates,
        "commits": [(commit.state, commit.rows) for commit in batch.commits],
        "rows": sorted(lake.state("rows").scan().to_pylist(), key=str),
        "totals": sorted(lake.state("counts").scan().to_pylist(), key=str),
        "refused": sorted((row["stage"], row["rule"], row["row"]) for row in quarantine),
    }


@pytest.mark.slow
@pytest.mark.parametrize("sliced", [False, True])
def test_a_gate_right_behind_the_source_answers_as_one_further_on(
    spark: SparkSession, tmp_path: Path, sliced: bool
) -> None:
    first = answers(*run(spark, tmp_path / "first", BY_ROWS, first=True, sliced=sliced))
    later = answers(*run(spark, tmp_path / "later", BY_ROWS, first=False, sliced=sliced))
    assert first == later
    # The torn line never reaches the gate, nor does a row without its slice.
    checks = first["gates"][0]["checks"]
    assert [check["rows"] for check in checks] == [4 if sliced else 5] * 3
    assert [check["unexpected"] for check in checks] == ([1, 1, 1] if sliced else [2, 2, 1])
    assert first["counts"] == (6, 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "check",
    [
        pytest.param(warn("expect_column_values_to_not_be_null", column="key", mostly=0.1), id="mostly"),
        pytest.param(drop("expect_column_values_to_be_unique", column="key"), id="unique"),
        pytest.param(
            warn("expect_column_max_to_be_between", column="n", max_value=3),
            id="aggregate",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            fail("expect_column_values_to_be_between", column="n", min_value=-100),
            id="fail",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_a_gate_that_judges_by_more_than_rows_is_judged_for_itself(
    spark: SparkSession, tmp_path: Path, check: Check
) -> None:
    first = answers(*run(spark, tmp_path / "first", [check], first=True, sliced=True))
    assert first == answers(*run(spark, tmp_path / "later", [check], first=False, sliced=True))
