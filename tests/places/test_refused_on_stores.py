"""What does not work on an object store is refused in a sentence, before the store is asked for anything. No server, no Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

from pipelines import Lake, Runtime
from pipelines.errors import JarsError
from pipelines.execution.runners.sessions import SessionWithoutS3Error
from pipelines.nimbus import deployed
from pipelines.nimbus.nimbus import Nimbus
from pipelines.places import location
from pipelines.places.location import Location, RemoteLakeError
from pipelines.sources import DeltaTableSource, FixedBatches, JsonFiles, Rate
from pipelines.trident import DeltaState, TridentTopology

PLACE = "s3://nowhere/lake"
LOCAL: Any = SimpleNamespace(sparkContext=SimpleNamespace(master="local[1]"))


@pytest.fixture(autouse=True)
def no_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let nobody ask a store, nor make a folder that is called like one."""

    def asked(place: Location) -> None:
        raise AssertionError(f"{place} is asked for")

    monkeypatch.setattr(Location, "store", property(asked))
    monkeypatch.chdir(tmp_path)


def rows(source: Any = None) -> TridentTopology:
    topology = TridentTopology("rows")
    topology.new_stream("in", source or JsonFiles("/in", "k string")).partition_persist(DeltaState("kept"))
    return topology


@pytest.mark.parametrize("lake", ["lake", "hdfs://name:8020/lake"])
def test_a_flow_that_does_not_run_there_is_not_deployed(
    lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(location, "_asked", set(location._asked))
    flow = rows(JsonFiles("s3://nowhere/in", "k string"))
    monkeypatch.setattr(deployed, "from_catalog", lambda name: (flow, {"kind": "catalog", "name": "rows"}))
    with Nimbus(f"sqlite:///{tmp_path}/registry.db", Lake(lake)) as nimbus:
        with pytest.raises(RemoteLakeError, match="does not work on an object store yet"):
            nimbus.submit("rows")
        assert nimbus.cluster().flows == ()


# --- sessions -------------------------------------------------------------------------------------------------------


def session(*classes: str) -> Any:
    """A session that knows some classes."""

    def load(name: str) -> str:
        if name not in classes:
            raise Py4JError(f"{name} is not there")
        return name

    loader = SimpleNamespace(loadClass=load)
    thread = SimpleNamespace(getContextClassLoader=lambda: loader)
    lang = SimpleNamespace(Thread=SimpleNamespace(currentThread=lambda: thread))
    return SimpleNamespace(_jvm=SimpleNamespace(java=SimpleNamespace(lang=lang)))


def remote_lake(root: Path) -> tuple[Lake, TridentTopology]:
    return Lake(PLACE), rows()


def remote_source(root: Path) -> tuple[Lake, TridentTopology]:
    return Lake(root), rows(JsonFiles("s3a://nowhere/in", "k string"))


@pytest.mark.parametrize("made", [remote_lake, remote_source])
@pytest.mark.parametrize("jars", [True, False])
def test_a_session_that_does_not_read_s3_is_refused(
    made: Callable[[Path], tuple[Lake, TridentTopology]], jars: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, topology = made(tmp_path / "lake")
    if jars:
        monkeypatch.setattr("pipelines.spark.jars.set_paths", lambda sets: [])
    else:
        monkeypatch.setenv("TRIDELTA_CACHE", str(tmp_path / "cache"))
    error = SessionWithoutS3Error if jars else JarsError
    with pytest.raises(error, match="S3"):
        Runtime(session(), lake).catch_up(topology)
    assert not (tmp_path / "lake").exists()


def test_a_source_on_a_disk_asks_for_no_such_session(tmp_path: Path) -> None:
    from pipelines.execution.runners.sessions import check_places

    for source in (None, Rate(rows_per_second=5), FixedBatches("k string", []), DeltaTableSource("/table", "k string")):
        check_places(LOCAL, Lake(tmp_path), rows(source))
