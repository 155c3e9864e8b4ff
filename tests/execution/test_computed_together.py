"""Several small results of a batch come by one Spark job, and are what they are one by one."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.execution.batch import stream_batch
from pipelines.execution.batch.accounts import HASH, with_hash
from pipelines.execution.batch.commits import computed, computed_together
from pipelines.sources import JsonFiles
from pipelines.trident import Count, DeltaState, Sum, TridentTopology

NAMES = ("counts", "sums", "nothing")


def test_they_are_what_they_are_one_by_one(spark: SparkSession) -> None:
    frames = {
        "a": spark.sql(
            "SELECT id AS `odd name.x`, CAST(id AS string) AS `b``c`, map('k', id) AS m, "
            "CAST(id AS decimal(38, 2)) AS d, IF(id = 1, NULL, struct(id AS p, array(id) AS q)) AS s FROM range(5)"
        ).orderBy("d"),
        "none": spark.sql("SELECT id, date_from_unix_date(CAST(id AS int)) AS day FROM range(3) WHERE id > 7"),
        "b": spark.sql(
            "SELECT id * 10 AS id, timestamp_millis(id) AS t, binary('x') AS raw, id AS again FROM range(4)"
        ),
        "c": spark.sql("SELECT 'only' AS word, 1 AS _of"),
    }
    together, seconds = computed_together(frames, hashed={"a", "none", "b"})
    assert seconds > 0
    assert list(together) == list(frames)
    for name, frame in frames.items():
        alone, _ = computed(frame if name == "c" else with_hash(frame))
        assert together[name].column_names == alone.column_names
        assert (HASH in together[name].column_names) == (name != "c")
        assert [str(kind) for kind in together[name].schema.types] == [str(kind) for kind in alone.schema.types]
        assert together[name].to_pylist() == alone.to_pylist()
    assert isinstance(together["none"], pa.Table)
    assert together["none"].num_rows == 0


def test_states_whose_keys_are_partitioned_alike_keep_their_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Spark puts such parts of a union together partition by partition."""
    (tmp_path / "in").mkdir()
    rows = [{"a": f"a{n % 60}", "b": f"b{n % 70}", "n": n} for n in range(420)]
    (tmp_path / "in" / "0.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    topology = TridentTopology("alike")
    stream = topology.new_stream("lines", JsonFiles(tmp_path / "in", "a string, b string, n bigint"))
    stream.group_by("a").persistent_aggregate(DeltaState("by_a"), Count(), "count")
    stream.group_by("b").persistent_aggregate(DeltaState("by_b"), "n", Sum(), "sum")
    assert int(spark.conf.get("spark.sql.shuffle.partitions") or 0) > 1
    lake = Lake(tmp_path / "lake")
    Runtime(spark, lake).catch_up(topology)
    by_a = {row["a"]: row["count"] for row in lake.state("by_a").scan().to_pylist()}
    by_b = {row["b"]: row["sum"] for row in lake.state("by_b").scan().to_pylist()}
    assert by_a == {f"a{key}": 7 for key in range(60)}
    assert by_b == {f"b{key}": sum(range(key, 420, 70)) for key in range(70)}


def test_states_of_a_batch_share_a_job(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three states, one of which gets nothing. No result is computed by itself."""
    (tmp_path / "in").mkdir()
    rows = [{"k": "a", "n": 1}, {"k": "b", "n": 2}, {"k": "a", "n": 3}]
    (tmp_path / "in" / "0.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    topology = TridentTopology("three")
    stream = topology.new_stream("lines", JsonFiles(tmp_path / "in", "k string, n bigint"))
    stream.group_by("k").persistent_aggregate(DeltaState("counts"), Count(), "count")
    stream.group_by("k").persistent_aggregate(DeltaState("sums"), "n", Sum(), "sum")
    stream.filter("n > 5").group_by("n").persistent_aggregate(DeltaState("nothing"), Count(), "count")
    lake = Lake(tmp_path / "lake")
    alone: list[object] = []
    monkeypatch.setattr(stream_batch, "computed", alone.append)
    report = Runtime(spark, lake).catch_up(topology)
    assert not alone
    assert [commit.rows for commit in report.batches[0].commits] == [2, 2, 0]
    found = {name: sorted(map(tuple, (row.values() for row in lake.state(name).scan().to_pylist()))) for name in NAMES}
    assert found == {"counts": [("a", 2), ("b", 1)], "sums": [("a", 4), ("b", 2)], "nothing": []}
