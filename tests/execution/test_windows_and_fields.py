"""Fields of a flow with windows that come, go and change their type while windows of before are in the checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import StateSchemaError
from pipelines.execution.checkpoint.window_state import WindowFieldError
from pipelines.flowmix import Average, Flow, Policy, Sum
from pipelines.sources import JsonFiles

pytestmark = pytest.mark.slow

NARROW, WIDE = "k int, v bigint, timestamp bigint", "k int, v bigint, w bigint, timestamp bigint"


FIRST = [{"k": 1, "v": v, "timestamp": at} for v, at in ((1, 0), (2, 1000), (4, 5000))]
SECOND = [{"k": 1, "v": v, "w": 10 * v, "timestamp": at} for v, at in ((8, 6000), (16, 9000), (0, 20_000))]
THIRD = [{"k": 1, "v": 0, "w": 0, "timestamp": 30_000}]


def arrived(folder: Path, *batches: list[dict[str, Any]]) -> Path:
    """A folder with a file per batch."""
    folder.mkdir(exist_ok=True)
    for number, batch in enumerate(batches):
        file = folder / f"{number}.json"
        if not file.exists():
            file.write_text("".join(json.dumps(row) + "\n" for row in batch), encoding="utf-8")
    return folder


def sums(schema: str, folder: Path, first: type = Sum) -> Any:
    """Windows in arrays with the key among their values, and windows over their results. The last events wait."""
    return (
        Flow("fields", windows="channels")
        .stream("events", JsonFiles(folder, schema), delay=1)
        .partition("k")
        .aggregate(Sum("k", "keys"), first("v", "sum"), trigger=Policy.count(2), evict=Policy.count(4))
        .aggregate(Average("sum", "mean"), Sum("k", "ks"), trigger=Policy.count(1), evict=Policy.count(99))
        .persist("sums")
        .build()
    )


def rows(lake: Lake, table: str, *fields: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in fields) for row in lake.state(table).scan().to_pylist()]


@pytest.mark.exhaustive
def test_a_field_that_is_new_is_null_in_what_the_windows_hold(spark: SparkSession, tmp_path: Path) -> None:
    """One that is gone, or has another type, is refused before the start, wherever the windows take it from."""
    lake, folder = Lake(tmp_path / "lake"), tmp_path / "files"
    runtime = Runtime(spark, lake, max_attempts=1)
    runtime.catch_up(sums(NARROW, arrived(folder, FIRST)))
    assert rows(lake, "sums", "mean", "ks") == [(3.0, 1)]
    runtime.catch_up(sums(WIDE, arrived(folder, FIRST, SECOND)))
    assert sorted(rows(lake, "sums", "mean", "ks")) == [(3.0, 1), (9.0, 2)]

    arrived(folder, FIRST, SECOND, THIRD)
    for other in (NARROW, WIDE.replace("v bigint", "v double"), WIDE.replace("k int", "k bigint")):
        with pytest.raises(StateSchemaError):
            runtime.catch_up(sums(other, folder))
    # Here the channel's columns are the same; the second window's come from the first one.
    with pytest.raises(WindowFieldError, match='field "sum" is double now') as caught:
        runtime.catch_up(sums(WIDE, folder, Average))
    assert (caught.value.query, caught.value.before) == ("events__1", "bigint")
    runtime.catch_up(sums(WIDE, folder))
    assert sorted(rows(lake, "sums", "mean", "ks")) == [(3.0, 1), (9.0, 2), (46 / 3, 3)]
