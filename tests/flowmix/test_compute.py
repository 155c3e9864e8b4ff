"""`compute`: fields of an event as SQL expressions, on every engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines.errors import DuplicateFieldError, FieldError, FlowError, FunctionError
from pipelines.flowmix import Count, Flow, Sum, load_flow
from pipelines.testing import TICK, run_flow

SCHEMA = "k string, bid struct<price: bigint, at: timestamp>, v int"


def stream() -> Any:
    return Flow("f").stream("s", SCHEMA)


def test_what_is_refused_at_its_line() -> None:
    for given in (None, {}, {"a bigint, b bigint": "v"}, {"a bigint": 1}, "a"):
        with pytest.raises(FlowError, match="compute"):
            stream().compute(given)
    with pytest.raises(FieldError, match="wrong"):
        stream().compute({"a bigint": "wrong + 1"})
    for text in ("reflect('java.lang.System', 'exit')", "sum(v)", "v +"):
        with pytest.raises(FunctionError):
            stream().compute({"a bigint": text})
    with pytest.raises(DuplicateFieldError):
        stream().compute({"a bigint": "v", "a string": "k"})


def test_its_fields_are_known_behind_it() -> None:
    computed = stream().compute({"price decimal(10,2)": "bid.price / 2", "k string": "upper(k)"})
    assert computed.fields == ("price", "k")
    with pytest.raises(FieldError):
        computed.filter("v > 1")


def flow() -> Flow:
    return (
        Flow("f")
        .stream("s", SCHEMA)
        .compute({"price bigint": "bid.price * 2", "word string": "v"})
        .persist("computed")
        .partition("word")
        .aligned(Sum("price"), Count(output="n"), every=2)
        .compute({"sum bigint": "sum", "until timestamp": "window_end"})
        .output()
        .build()
    )


SCRIPT: list[Any] = [
    {"k": "a", "bid": {"price": 3}, "v": 1, "id": "one"},
    {"k": "neither"},
    {"bid": {"price": None}, "v": 1},
    TICK,
    {"bid": {"price": 2}, "id": "two"},
    TICK,
    TICK,
    TICK,
]


def test_an_event_keeps_its_id_and_one_without_a_field_goes_no_further(spark: SparkSession) -> None:
    found = run_flow(flow(), {"s": SCRIPT}, engine="reference", spark=spark)
    events = [(event.id, dict(event)) for event in found["computed"]]
    assert events == [("one", {"price": 6, "word": "1"}), ("s-2", {"word": "1"}), ("two", {"price": 4})]
    assert [event["sum"] for event in found["s"]] == [6, 4]


@pytest.mark.slow
def test_every_engine_gives_the_same(spark: SparkSession) -> None:
    wanted = run_flow(flow(), {"s": SCRIPT}, engine="reference", spark=spark)
    assert run_flow(flow(), {"s": SCRIPT}, engine="batch", spark=spark) == wanted
    assert run_flow(flow(), {"s": SCRIPT}, engine="stream", spark=spark) == wanted


def test_as_yaml(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("""
flow: f
streams:
  - name: s
    source: "k string, v bigint"
    operations:
      - compute: {twice bigint: v * 2, k string: k}
      - output
""")
    read = load_flow(file)
    written = Flow("f").stream("s", "k string, v bigint").compute({"twice bigint": "v * 2", "k string": "k"}).output()
    assert read.streams["s"].operations == written.build().streams["s"].operations
