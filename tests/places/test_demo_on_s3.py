"""`make demo LAKE=s3://...`: against a store that it starts itself, and one that the environment names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ops.demo_store import NoStoreError, store_for, versity_program
from pipelines.spark.jars import cache_folder
from tests.places.s3_servers import Server

LAKE = "s3://flights/lake"


def unnamed() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}


def demo(home: Path, days: int, environment: dict[str, str]) -> str:
    """Run the demo over a few days; return what it says."""
    command = [sys.executable, "-m", "ops.demo", "--days", str(days), "--lake", LAKE]
    given = environment | {"TRIDELTA_HOME": str(home), "COLUMNS": "200"}
    ran = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_a_folder_needs_no_store(tmp_path: Path) -> None:
    with store_for(str(tmp_path / "lake"), tmp_path / "s3") as store:
        assert store == ""
    assert not (tmp_path / "s3").exists()


def test_the_store_of_the_environment_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with store_for(LAKE, tmp_path / "s3") as store:
        assert store.endswith("in the store that the environment names.")
    assert not (tmp_path / "s3").exists()


def test_without_a_server_to_start_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_ROLE_ARN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("ops.demo_store.versity_program", lambda cache: None)
    said = r"lake s3://flights/lake is in a bucket, and the environment names no store"
    with pytest.raises(NoStoreError, match=said), store_for(LAKE, tmp_path / "s3"):
        pytest.fail("there is no store")


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_a_store_that_the_demo_starts(s3_jars: None, tmp_path: Path) -> None:
    """Twice: the folder keeps what is in it, and the second run takes the new day alone."""
    if versity_program(cache_folder()) is None:
        pytest.skip("versitygw is not there, and there is no Go to build it with")
    first = demo(tmp_path, 2, unnamed())
    assert "in a store that runs with the demo" in first
    assert "DIFFERS" not in first
    assert first.count("the same") == 4
    assert not (tmp_path / "lake").exists()
    second = demo(tmp_path, 3, unnamed())
    assert second.count("the same") == 4
    assert "flights in 3 files" in second
    assert (tmp_path / "s3" / "flights" / "lake" / "states" / "departures").is_dir()


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_a_store_that_the_environment_names(s3_jars: None, versity_server: Server, tmp_path: Path) -> None:
    assert versity_server.folder is not None
    (versity_server.folder / "flights").mkdir()
    said = demo(tmp_path, 2, unnamed() | versity_server.environment)
    assert "in the store that the environment names" in said
    assert said.count("the same") == 4
    assert not (tmp_path / "s3").exists()
