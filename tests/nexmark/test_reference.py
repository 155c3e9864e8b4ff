"""Each query of Nexmark gives DuckDB's rows in plain Python, over few events."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from examples.nexmark.queries import EVENTS, QUERIES
from examples.nexmark.sql import SQL
from examples.nexmark.windows import WINDOWED, flow
from pipelines.testing import run_flow, run_topology
from tests.nexmark.case import KINDS, Rows, assert_rows, everything, read, wanted, write_end, write_few


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_few(tmp_path_factory.mktemp("few") / "events")


@pytest.fixture(scope="module")
def expected(events: Path) -> dict[str, Rows]:
    return wanted(events)


@pytest.fixture(scope="module")
def states(spark: SparkSession, events: Path) -> dict[str, Rows]:
    """All states after two batches; Spark evaluates the expressions."""
    return run_topology(everything(events), {"events": read(events)}, "reference", spark)


def test_each_query_has_its_sql() -> None:
    assert set(SQL) == {*QUERIES, *WINDOWED}


@pytest.mark.slow
@pytest.mark.parametrize("query", QUERIES)
def test_a_topology(query: str, states: dict[str, Rows], expected: dict[str, Rows]) -> None:
    assert_rows(query, states[query], expected[query])


@pytest.mark.slow
def test_some_tuples_waited_for_their_partner(states: dict[str, Rows]) -> None:
    assert all(states[name] for name in ("q3_waiting", "q9_waiting", "q20_waiting"))


@pytest.mark.parametrize("query", WINDOWED)
def test_a_flow_of_windows(query: str, events: Path, expected: dict[str, Rows]) -> None:
    script = [timed(event) for batch in read(write_end(events)) for event in batch]
    assert_rows(query, run_flow(flow(query, EVENTS), {"events": script})[query], expected[query])


def timed(event: dict[str, Any]) -> dict[str, Any]:
    """With its time, so that nobody asks Spark for it."""
    at = next(event[kind]["dateTime"] for kind in KINDS if event[kind])
    return {**event, "timestamp": int(at.replace(tzinfo=UTC).timestamp() * 1000)}
