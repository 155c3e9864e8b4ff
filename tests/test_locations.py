"""Places that are neither a folder of this host nor, where that works, of S3, are refused before anything is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines import Lake
from pipelines.catalog.flow import FlowSettings
from pipelines.places.location import Location, LocationError
from pipelines.sources import CsvFiles, DeltaChangeFeed, DeltaTableSource, JsonFiles, ParquetFiles
from pipelines.surroundings import RemoteLocationError, local_folder

ON_S3 = ["s3a://bucket/x", "s3://bucket/x"]
ON_HDFS = "hdfs://name:9000/x"
ELSEWHERE = ["gs://b", "abfss://c@a.dfs.core.windows.net/x", "wasbs://c@a/x", "https://a/x"]


@pytest.fixture(autouse=True)
def nothing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", [*ELSEWHERE, Path("gs://bucket/x")])
def test_a_lake_elsewhere_is_refused(place: str | Path) -> None:
    with pytest.raises(RemoteLocationError, match="the lake must be a folder of this host, of S3 or of HDFS;"):
        Lake(place)


@pytest.mark.parametrize("place", [*ON_S3, Path("s3a://bucket/x"), Location.of("s3://bucket/x/")])
def test_a_lake_may_be_on_s3(place: str | Path) -> None:
    assert str(Lake(place).root) == "s3a://bucket/x"


def test_a_lake_may_be_on_hdfs() -> None:
    assert str(Lake(ON_HDFS).root) == ON_HDFS
    assert JsonFiles(f"{ON_HDFS}/", "k string").path == ON_HDFS
    assert JsonFiles(ON_HDFS, "k string").datasets() == (("hdfs://name:9000", "x"),)


@pytest.mark.parametrize("place", ["s3://", "s3://B/x", "s3://bucket/a b", "s3://bucket/a//b", "s3://bucket/a%20b"])
def test_a_name_that_libraries_read_otherwise_is_refused(place: str) -> None:
    for taken in (Lake, lambda named: JsonFiles(named, "k string")):
        with pytest.raises(LocationError):
            taken(place)


def test_a_lake_in_a_folder_that_delta_rs_reads_otherwise() -> None:
    for place in ("a%20b/lake", "file:///a%2520b", Path("/x/%2f")):
        with pytest.raises(LocationError, match=r"delta-rs reads %2\w as another character"):
            Lake(place)
        with pytest.raises(LocationError):
            Lake("lake", channels=place)
    assert [str(Lake(place).root) for place in ("/50%/a%zz", "/a b")] == ["/50%/a%zz", "/a b"]
    assert JsonFiles("/a%20b", "k string").path == "/a%20b"


@pytest.mark.parametrize("place", [*ON_S3, ON_HDFS, *ELSEWHERE])
def test_the_home_is_a_folder_of_this_host(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIDELTA_HOME", place)
    with pytest.raises(RemoteLocationError, match=r"TRIDELTA_HOME.* must be a folder of this host;"):
        FlowSettings.from_environment()


@pytest.mark.parametrize("source", [JsonFiles, CsvFiles, ParquetFiles, DeltaTableSource, DeltaChangeFeed])
@pytest.mark.parametrize("place", ELSEWHERE)
def test_a_source_elsewhere_is_refused(source: type, place: str) -> None:
    with pytest.raises(RemoteLocationError, match="what a source reads must be a folder of this host"):
        source(place, "k string")


@pytest.mark.parametrize("source", [JsonFiles, CsvFiles, ParquetFiles, DeltaTableSource, DeltaChangeFeed])
@pytest.mark.parametrize("place", ON_S3)
def test_files_and_tables_may_be_on_s3(source: type, place: str) -> None:
    assert source(place, "k string").path == "s3a://bucket/x"
    assert source(place, "k string").datasets() == (("s3://bucket", "x"),)


@pytest.mark.parametrize(
    "place",
    ["s3:bucket/x", "S3A:bucket/x", "hdfs:name/x", "gs:b", "abfss:c@a/x", "file:x/lake", "file:", "file://",
     "file://other/x/lake", "file://localhost", Path("s3:bucket/x")],
)  # fmt: skip
def test_what_is_neither_url_nor_path_is_refused(place: str | Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIDELTA_HOME", str(place))
    for taken in (Lake, Location.of, lambda named: JsonFiles(named, "k string")):
        with pytest.raises(LocationError, match=r"slash behind its scheme|on another host"):
            taken(place)
    with pytest.raises(LocationError):
        FlowSettings.from_environment()


def test_a_path_may_look_like_a_url(tmp_path: Path) -> None:
    for place in ("./s3:bucket/x", tmp_path / "s3:bucket/x"):
        assert Lake(place).root == tmp_path / "s3:bucket/x"
        assert Location.of(place).path == tmp_path / "s3:bucket/x"
        assert JsonFiles(place, "k string").path == str(tmp_path / "s3:bucket/x")


def test_a_file_url_is_a_path(tmp_path: Path) -> None:
    assert Lake(f"file://{tmp_path}/a%20lake").root == tmp_path / "a lake"
    for name in ("a lake", "lake#2024", "lake?v=2", "lake#"):
        for begun in ("file:", "file://", "FILE://localhost"):
            url = f"{begun}{tmp_path}/{name}"
            assert Lake(url).root == local_folder(url, "it") == Location.of(url).path == tmp_path / name
            assert JsonFiles(url, "k string").path == str(tmp_path / name)
    assert local_folder("a:b/c", "it") == Path("a:b/c")
    assert local_folder("~/x", "it") == Path("~/x")
