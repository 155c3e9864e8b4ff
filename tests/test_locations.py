"""Places that are no folder of this host are refused before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines import Lake
from pipelines.catalog.flow import FlowSettings
from pipelines.sources import CsvFiles, DeltaChangeFeed, DeltaTableSource, JsonFiles
from pipelines.surroundings import RemoteLocationError, local_folder

REMOTE = ["s3a://bucket/x", "s3://bucket/x", "hdfs://name:9000/x", "gs://b", "abfss://c@a.dfs.core.windows.net/x"]


@pytest.mark.parametrize("place", [*REMOTE, Path("s3a://bucket/x")])
def test_a_lake_is_a_folder_of_this_host(place: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RemoteLocationError, match="the lake must be a folder of this host"):
        Lake(place)
    monkeypatch.setenv("TRIDELTA_HOME", str(place))
    with pytest.raises(RemoteLocationError, match="TRIDELTA_HOME"):
        FlowSettings.from_environment()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("source", [JsonFiles, CsvFiles, DeltaTableSource, DeltaChangeFeed])
@pytest.mark.parametrize("place", REMOTE)
def test_a_source_reads_this_host(source: type, place: str) -> None:
    with pytest.raises(RemoteLocationError, match="what a source reads must be a folder of this host"):
        source(place, "k string")


def test_a_file_url_is_a_path(tmp_path: Path) -> None:
    assert Lake(f"file://{tmp_path}/a%20lake").root == tmp_path / "a lake"
    assert local_folder("a:b/c", "it") == Path("a:b/c")
    assert local_folder("~/x", "it") == Path("~/x")
