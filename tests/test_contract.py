"""The design's Trident example, as written; only the paths are a test's."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime, spark_session
from pipelines.sources import FixedBatches
from pipelines.trident import Count, DeltaState, MapGet, Split, Sum, TridentTopology


@pytest.mark.usefixtures("spark")
def test_the_trident_example_runs_as_written(spark: SparkSession, tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    topology = TridentTopology("wordcount")
    counts = (
        topology.new_stream("sentences", FixedBatches("sentence string", [
            [("hello the man said",)],
            [("the",)],
        ]))
        .each("sentence", Split(), "word")
        .group_by("word")
        .persistent_aggregate(DeltaState("word_counts"), Count(), "count")
    )  # fmt: skip
    (topology.new_query_stream("words", "args string")
        .each("args", Split(), "word")
        .group_by("word")
        .state_query(counts, "word", MapGet(), "count")
        .aggregate("count", Sum(), "sum"))  # fmt: skip

    lake = Lake(root)
    runtime = Runtime(spark_session(), lake)
    report = runtime.catch_up(topology)  # run all that the sources hold now, then stop  # fmt: skip
    assert [b.txid for b in report.batches] == [0, 1]
    assert lake.state("word_counts").get([{"word": "the"}]) == [{"word": "the", "count": 2}]
    assert lake.state("word_counts").get([{"word": "the"}], txid=0) == [{"word": "the", "count": 1}]
    assert runtime.query(topology, "words", [("the man",)]) == [{"sum": 3}]

    assert not runtime.catch_up(topology).batches
    assert lake.state("word_counts").frame(spark).orderBy("word").collect()[0].asDict() == {"word": "hello", "count": 1}
