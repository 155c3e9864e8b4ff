"""The reference engine, a bounded run and a stream give one answer for topologies made by chance."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from pipelines.testing import run_topology
from tests.conformance.random_topologies import Maker

# Enough that each operation meets each other one some times; a run of one seed takes a second or two.
SEEDS = range(16)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [pytest.param(n, marks=[] if n < 2 else [pytest.mark.exhaustive]) for n in SEEDS])
@pytest.mark.timeout(180)
def test_engines_agree(spark: SparkSession, seed: int) -> None:
    built = Maker(seed).build()
    wanted = run_topology(built.topology, built.batches, "reference", spark)
    for engine in ("stream", "bounded"):
        found = run_topology(built.topology, built.batches, engine, spark)
        assert found == wanted, (engine, built.story, built.batches)
