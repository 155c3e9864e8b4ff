"""A text that is not UTF-8 does not come into windows: the batch that brings it fails, and is left out."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import PoisonBatchError
from pipelines.flowmix import Count, Flow, Max, Policy
from pipelines.sources import FixedBatches

SCHEMA = "h string, v bigint, timestamp bigint"
CAFE, B = b"caf\xe9".hex(), b"b".hex()
BATCHES: list[Any] = [[(B, 1, 0)], [(CAFE, 1, 1000)], [(B, 1, 200_000)], [(B, 1, 300_000)]]
TEXT = {"k string": "cast(unhex(h) as string)", "v bigint": "v"}


def key(stream: Any) -> Any:
    return stream.compute(TEXT).partition("k").aligned(Count(output="n"), every=60)


def value(stream: Any) -> Any:
    return stream.compute(TEXT).partition("v").aligned(Max("k", "last"), Count(output="n"), every=60)


def key_one_by_one(stream: Any) -> Any:
    """What waits for the watermark is looked at by the windows in a later batch."""
    stream = stream.compute(TEXT).partition("k")
    return stream.switch(open=Policy.count(1), evict=Policy.count(3), close=Policy.count(9))


def key_of_a_window_behind(stream: Any) -> Any:
    """What comes in is text, what is made of the results of the first window is none."""
    first = stream.partition("v").aggregate(Max("h", "h"), trigger=Policy.count(1), evict=Policy.count(1))
    return first.compute(TEXT).partition("k").aligned(Count(output="n"), every=60)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("windows", "made"),
    [
        pytest.param("channels", key, marks=pytest.mark.exhaustive),
        ("batch", key),
        ("batch", value),
        pytest.param("batch", key_one_by_one, marks=pytest.mark.exhaustive),
        ("batch", key_of_a_window_behind),
    ],
)
def test_the_batch_that_brings_it_is_refused(
    spark: SparkSession, tmp_path: Path, windows: str, made: Callable[[Any], Any]
) -> None:
    def flow(count: int) -> Any:
        source, delay = FixedBatches(SCHEMA, BATCHES[:count]), 100 if made is key_one_by_one else 0
        stream: Any = Flow("texts", windows=windows).stream("s", source, delay=delay)
        return made(stream).persist("made").build()

    runtime, lake = Runtime(spark, Lake(tmp_path), max_attempts=1), Lake(tmp_path)
    runtime.catch_up(flow(1))
    with pytest.raises(PoisonBatchError, match=re.escape(r"column k of row 0 holds the bytes caf\xe9")) as caught:
        runtime.catch_up(flow(2))
    assert caught.value.txid == 1
    runtime.skip(flow(2), 1)
    report = runtime.catch_up(flow(4))
    assert [batch.txid for batch in report.batches if batch.skipped] == [1]
    if made is key:
        rows = lake.state("made").scan().to_pylist()
        assert [(row["k"], row["n"]) for row in rows] == [("b", 1)] * 2


@pytest.mark.exhaustive
@pytest.mark.slow
def test_what_waits_and_is_no_text_between_two_windows_is_left_out(spark: SparkSession, tmp_path: Path) -> None:
    """A later batch lets it into the first window, of whose result the text is made."""
    batches: list[Any] = [[(CAFE, 1, 0)], [(B, 1, 200_000)], [(B, 1, 400_000)], [(B, 1, 600_000)]]

    def flow(count: int) -> Any:
        stream: Any = Flow("texts", windows="batch").stream("s", FixedBatches(SCHEMA, batches[:count]), delay=60)
        return key_of_a_window_behind(stream).persist("made").build()

    runtime, lake = Runtime(spark, Lake(tmp_path), max_attempts=1), Lake(tmp_path)
    runtime.catch_up(flow(1))
    with pytest.raises(PoisonBatchError, match=re.escape(r"column k of row 0 holds the bytes caf\xe9")) as caught:
        runtime.catch_up(flow(2))
    assert caught.value.txid == 1
    runtime.skip(flow(2), 1)
    report = runtime.catch_up(flow(4))
    assert [batch.txid for batch in report.batches if batch.skipped] == [1]
    assert [(row["k"], row["n"]) for row in lake.state("made").scan().to_pylist()] == [("b", 1)]
    assert sorted(row["rule"] for row in lake.quarantine("texts").scan().to_pylist()) == ["poison", "waiting"]
