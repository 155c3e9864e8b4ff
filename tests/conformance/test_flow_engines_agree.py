"""The reference engine, a bounded run and a stream give one answer for event flows made by chance, in event time."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from pipelines.testing import run_flow
from tests.conformance.random_flows import FlowMaker

# Each kind of window meets each other one some times; a seed takes 10 to 30 s, as every query of a flow starts anew.
SEEDS = range(12)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [pytest.param(n, marks=[] if n < 1 else [pytest.mark.exhaustive]) for n in SEEDS])
@pytest.mark.timeout(300)
def test_engines_agree_on_flows(spark: SparkSession, seed: int) -> None:
    built = FlowMaker(seed).build()
    wanted = run_flow(built.flow, built.script, engine="reference", spark=spark)
    for engine in ("batch", "stream"):
        found = run_flow(built.flow, built.script, engine=engine, spark=spark)  # type: ignore[arg-type]
        assert found == wanted, (engine, built.story, built.script)
