"""Hadoop's configuration beside a lake on a disk, and YARN: each row counts once, and where it was asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.places.hadoop_servers import Hdfs, hadoop_jars, hdfs_server

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.timeout(900)]

PROGRAM = """
import json, sys
from pipelines import Lake, Runtime, spark_session
from pipelines.sources import JsonFiles
from pipelines.trident import Count, DeltaState, TridentTopology, row_function

root, master = sys.argv[1:3]
lake, topology = Lake(f"{root}/lake"), TridentTopology("words")
words = topology.new_stream("lines", JsonFiles(f"{root}/in", "word string", max_files_per_batch=1))

@row_function(["string"])
def shout(word):  # of Python's: it runs in workers
    return word.upper()

shouted = words.each("word", shout, "shouted")
shouted.group_by("shouted").persistent_aggregate(DeltaState("counts"), Count(), "n")
conf = {"spark.executor.memory": "512m", "spark.executor.instances": "1", "spark.yarn.am.memory": "512m"}
spark = spark_session(master=master, conf=conf if master == "yarn" else {})
report = Runtime(spark, lake).catch_up(topology)
rows = lake.state("counts").scan().to_pylist()
print(json.dumps([len(report.batches), {row["shouted"]: row["n"] for row in rows}]))
"""


@pytest.fixture(scope="module")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    """HDFS and YARN."""
    jars = hadoop_jars()
    if not jars:
        pytest.skip("Hadoop's jars for a small cluster are not in the cache, and cannot be fetched")
    with hdfs_server(jars, tmp_path_factory.mktemp("hadoop"), yarn=True) as server:
        yield server


@pytest.mark.parametrize("master", ["local[2]", "yarn"])
def test_a_lake_on_a_disk_stays_there(hadoop: Hdfs, tmp_path: Path, master: str) -> None:
    """Hadoop's configuration makes HDFS the file system of every path without a scheme; a lake's path is one of this host."""
    hadoop.empty()
    (tmp_path / "in").mkdir()
    for number, words in enumerate((("a", "b"), ("a",))):
        (tmp_path / "in" / f"{number}.json").write_text("".join(f'{{"word": "{word}"}}\n' for word in words))
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), master],
        env={**os.environ, "HADOOP_CONF_DIR": str(hadoop.configuration), "PYTHONPATH": str(Path(__file__).parents[2])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-5000:]
    assert json.loads(ended.stdout.splitlines()[-1]) == [2, {"A": 2, "B": 1}]
    assert (tmp_path / "lake" / "states" / "counts").is_dir()
    # What YARN was sent is gone with the application; what its containers logged is its own.
    assert not [path for path in hadoop.files() if str(tmp_path) in path]


@pytest.mark.parametrize("master", ["yarn"])
def test_a_month_of_flights_with_the_lake_on_hdfs(hadoop: Hdfs, tmp_path: Path, master: str) -> None:
    """The demo, which compares its tables with pandas."""
    hadoop.empty()
    lake = f"hdfs://{hadoop.name}/lake"
    given = {
        "HADOOP_CONF_DIR": str(hadoop.configuration),
        "TRIDELTA_HOME": str(tmp_path),
        "TRIDELTA_SPARK_MASTER": master,
        "COLUMNS": "200",
    }
    ran = subprocess.run(
        [sys.executable, "-m", "ops.demo", "--days", "31", "--lake", lake],
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr[-5000:]
    assert ran.stdout.count("the same") == 4
    assert "DIFFERS" not in ran.stdout
    assert not (tmp_path / "lake").exists()
    assert any(path.startswith("/lake/states/departures/_delta_log/") for path in hadoop.files())
