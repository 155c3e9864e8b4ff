"""A session that reads S3: what it is told, from where, and the program that the page shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ops.cli.app import app
from pipelines.errors import JarsError, TrideltaError
from pipelines.places import location
from pipelines.places.location import S3, Location, asked_for
from pipelines.spark import session
from pipelines.spark.jars import set_paths
from pipelines.spark.s3_jars import S3_JARS, s3_settings
from tests.places.conftest import SERVERS

PROGRAM = """
import sys
from pipelines import Lake, Runtime, spark_session
from pipelines.places.location import Location
from pipelines.sources import JsonFiles
from pipelines.trident import Count, DeltaState, TridentTopology

place = sys.argv[1]
Location.of(place + "/sold/0.json").write_bytes(b'{"key": "a"}\\n{"key": "b"}\\n{"key": "a"}\\n')
flow = TridentTopology("sales")
source = JsonFiles(place + "/sold", "key string", max_files_per_batch=100)
flow.new_stream("sold", source).group_by("key").persistent_aggregate(DeltaState("counts"), Count(), "n")
lake = Lake(place + "/lake")
report = Runtime(spark_session(master="local[1]"), lake).catch_up(flow)
print(len(report.batches), sorted(tuple(row.values()) for row in lake.state("counts").scan().to_pylist()))
"""


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, {}),
        ({"AWS_REGION": "eu-west-1"}, {"endpoint.region": "eu-west-1"}),
        ({"AWS_DEFAULT_REGION": "eu-west-1"}, {"endpoint.region": "eu-west-1"}),
        ({"AWS_ENDPOINT_URL": "http://h:1"}, {"endpoint": "http://h:1", "path.style.access": "true"}),
        (
            {"AWS_ENDPOINT_URL": "http://h:1", "AWS_ENDPOINT_URL_S3": "http://h:2"},
            {"endpoint": "http://h:2", "path.style.access": "true"},
        ),
        ({"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}, {}),
    ],
)
def test_what_hadoop_is_told_has_no_secrets(
    given: dict[str, str], told: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert s3_settings() == {f"spark.hadoop.fs.s3a.{name}": value for name, value in told.items()}


def test_a_place_that_was_named_is_known_by_its_scheme(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(location, "_asked", set())
    Location.of(tmp_path)
    assert not asked_for(S3)
    Location.of("s3a://bucket/x")
    assert asked_for(S3)


FLOW = """\
flow: kept
streams:
  - name: s
    source: {json_files: {path: "%s", schema: "v bigint"}}
    operations:
      - persist: kept
"""


@pytest.mark.parametrize(
    "command", [["verify", "flows/kept.yaml"], ["compact", "flows/kept.yaml"], ["watch", "flows", "--once"]]
)
@pytest.mark.parametrize(("lake", "source"), [("s3://nowhere/lake", "../in"), ("", "s3://nowhere/in")])
def test_a_command_names_lake_and_sources_before_spark_starts(
    command: list[str], lake: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "kept.yaml").write_text(FLOW % source)
    # Where these are not set, looking for them names the lake.
    monkeypatch.setenv("TRIDELTA_REGISTRY", f"sqlite:///{tmp_path}/registry.db")
    monkeypatch.setenv("TRIDELTA_NIMBUS_HOME", str(tmp_path / "nimbus"))
    monkeypatch.setenv("TRIDELTA_HOME", str(tmp_path))
    monkeypatch.setenv("TRIDELTA_LAKE", lake)
    monkeypatch.setattr(location, "_asked", set())

    def starts(_: str) -> None:
        raise TrideltaError(f"S3 is {'named' if asked_for(S3) else 'not named'}")

    monkeypatch.setattr("pipelines.spark_session", starts)
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    assert "S3 is named" in done.stderr


def test_a_session_does_without_the_jars(tmp_path: Path) -> None:
    assert session._if_there(S3_JARS, tmp_path) == []
    with pytest.raises(JarsError, match=r"S3's jars are not in .*hadoop-aws.* and 30 more\n.*make setup"):
        set_paths(S3_JARS, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("place", SERVERS, indirect=True)
def test_a_program_finds_all_in_its_environment(place: Location, tmp_path: Path, s3_jars: None) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(place).replace("s3a:", "s3:")],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "1 [('a', 2), ('b', 1)]\n"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("s3")]
