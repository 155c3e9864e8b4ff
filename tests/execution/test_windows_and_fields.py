"""Fields of a flow with windows that come, go and change their type while windows of before are in the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import StateSchemaError
from pipelines.execution.window_fields import WindowFieldError
from pipelines.flowmix import Average, Flow, Policy, Sum
from pipelines.sources import FixedBatches

pytestmark = pytest.mark.slow

NARROW, WIDE = "k int, v bigint, timestamp bigint", "k int, v bigint, w bigint, timestamp bigint"


FIRST: list[Any] = [[(1, 1, 0), (1, 2, 1000), (1, 4, 5000)]]
WIDENED: list[Any] = [[(k, v, None, at) for k, v, at in FIRST[0]]]
SECOND: list[Any] = [[(1, 8, 80, 6000), (1, 16, 160, 9000), (1, 0, 0, 20_000)]]
THIRD: list[Any] = [[(1, 0, 0, 30_000)]]


def sums(schema: str, batches: list[Any], first: type = Sum) -> Any:
    """Windows in arrays with the key among their values, and windows over their results. The last events wait."""
    return (
        Flow("fields")
        .stream("events", FixedBatches(schema, batches), delay=1)
        .partition("k")
        .aggregate(Sum("k", "keys"), first("v", "sum"), trigger=Policy.count(2), evict=Policy.count(4))
        .aggregate(Sum("sum", "both"), Sum("k", "ks"), trigger=Policy.count(1), evict=Policy.count(99))
        .persist("sums")
        .build()
    )


def collected(schema: str, batches: list[Any]) -> Any:
    """Windows of whole events."""
    return (
        Flow("whole")
        .stream("events", FixedBatches(schema, batches), delay=1)
        .collect(trigger=Policy.count(2), evict=Policy.count(2))
        .persist("collected")
        .build()
    )


def rows(lake: Lake, table: str, *fields: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in fields) for row in lake.state(table).scan().to_pylist()]


def test_a_field_that_is_new_is_null_in_what_the_windows_hold(spark: SparkSession, tmp_path: Path) -> None:
    """One that is gone, or has another type, is refused before the start, wherever the windows take it from."""
    lake = Lake(tmp_path)
    runtime = Runtime(spark, lake, max_attempts=1)
    runtime.catch_up(sums(NARROW, FIRST))
    assert rows(lake, "sums", "both", "ks") == [(3, 1)]
    runtime.catch_up(sums(WIDE, [*WIDENED, *SECOND]))
    assert sorted(rows(lake, "sums", "both", "ks")) == [(3, 1), (3 + 15, 2)]

    without = [[(k, v, at) for k, v, _, at in batch] for batch in [*WIDENED, *SECOND, *THIRD]]
    with pytest.raises(StateSchemaError):
        runtime.catch_up(sums(NARROW, without))
    for other in (WIDE.replace("v bigint", "v double"), WIDE.replace("k int", "k bigint")):
        with pytest.raises(StateSchemaError):
            runtime.catch_up(sums(other, [*WIDENED, *SECOND, *THIRD]))
    # Here the channel's columns are the same; the second window's come from the first one.
    with pytest.raises(WindowFieldError, match='field "sum" is double now') as caught:
        runtime.catch_up(sums(WIDE, [*WIDENED, *SECOND, *THIRD], Average))
    assert (caught.value.query, caught.value.before) == ("events__1", "bigint")
    runtime.catch_up(sums(WIDE, [*WIDENED, *SECOND, *THIRD]))
    assert sorted(rows(lake, "sums", "both", "ks")) == [(3, 1), (3 + 15, 2), (3 + 15 + 30, 3)]


def test_events_that_wait_get_a_field_that_is_new(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    runtime = Runtime(spark, lake, max_attempts=1)
    runtime.catch_up(collected(NARROW, FIRST))
    runtime.catch_up(collected(WIDE, [*WIDENED, *SECOND]))
    found = rows(lake, "collected", "events")
    assert [[(one["v"], one.get("w")) for one in events] for (events,) in found][-1] == [(4, None), (8, 80)]
