"""What waits in a folder, of a bucket or a disk: the files that its stream would take, and no others. No Spark."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pipelines.nimbus.telemetry.figures import TaskFigures, waiting
from pipelines.places.location import Location
from pipelines.sources import JsonFiles, TextFiles
from pipelines.sources.folder import literal_path
from tests.places.test_store import make_folder

READ = ["new.json", "day=1/new.json", "day=1/hour=2/new.json", "_a=1.json"]
UNREAD = ["archive/old.json", "day=1/archive/old.json", "_temporary/0/x", ".hidden/x.json", "_SUCCESS", ".x.json"]
UNREAD += ["x.json._COPYING_", "day=1._COPYING_/x.json"]


def progress(place: Location) -> dict[str, Any]:
    return {"sources": [{"description": f"FileStreamSource[{place}]", "endOffset": '{"logOffset": 0}'}]}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Spark's checkpoint: the newest file that was listed is of 2001."""
    (tmp_path / "sources" / "0").mkdir(parents=True)
    (tmp_path / "sources" / "0" / "0").write_text('v1\n{"path":"a","timestamp":1000000000000,"batchId":0}')
    return tmp_path


def test_files_of_a_bucket_that_spark_does_not_read_do_not_wait(bucket: str, log: Path) -> None:
    place = Location.of(f"s3://{bucket}/sold")
    for name in UNREAD:
        (place / name).write_bytes(b"{}")
    make_folder(bucket, "sold/done")
    assert waiting(progress(place), log) == {}
    for name in READ:
        (place / name).write_bytes(b"{}")
    assert waiting(progress(place), log) == {"files": len(READ)}


def test_an_empty_object_that_does_not_wait_is_not_asked_for(bucket: str, log: Path, asked: list[str]) -> None:
    place = Location.of(f"s3://{bucket}/sold")
    for name in ("_SUCCESS", "day=1/_SUCCESS", "archive/empty", "day=1/empty.csv", "day=1/new.json"):
        (place / name).write_bytes(b"")
    source = JsonFiles(place, "k string", pathGlobFilter="*.json")
    assert waiting(progress(place), log, {str(source.path): source.reads}) == {"files": 1}
    assert asked == ["sold/day=1/new.json"]
    asked.clear()
    later = log / "sources" / "0" / "0"
    later.write_text(later.read_text().replace("1000000000000", "9000000000000"))
    Location.of(f"s3://{bucket}/sold/day=1/other.json").write_bytes(b"")
    assert waiting(progress(place), log) == {}
    assert asked == []


@pytest.mark.parametrize(
    ("options", "many"),
    [({}, 4), ({"pathGlobFilter": "new*"}, 3), ({"recursivefilelookup": "true"}, 6), ({"pathGlobFilter": "*.csv"}, 0)],
)
def test_a_source_says_which_files_of_its_folder_wait(
    bucket: str, log: Path, options: dict[str, Any], many: int
) -> None:
    place = Location.of(f"s3://{bucket}/sold")
    for name in (*READ, *UNREAD):
        (place / name).write_bytes(b"{}")
    source = JsonFiles(place, "k string", **options)
    figures = TaskFigures("g", 5.0, [TextFiles("/elsewhere"), source])
    figures.look(Reports(progress(place)), log)  # type: ignore[arg-type]
    assert sum(figures.backlog.values()) == many


def test_files_of_a_disk_that_spark_does_not_read_do_not_wait(tmp_path: Path, log: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a.json", "b.json._COPYING_", "_c.json"):
        (folder / name).write_text("{}")
    seen = {"sources": [{"description": f"FileStreamSource[file:{folder}]", "endOffset": '{"logOffset": 0}'}]}
    assert waiting(seen, log) == {"files": 1.0}
    source = JsonFiles(folder, "k string", pathGlobFilter="*.csv")
    assert waiting(seen, log, {str(source.path): source.reads}) == {}


def on_disk(folder: Path) -> dict[str, Any]:
    described = f"FileStreamSource[file:{literal_path(str(folder))}]"
    return {"sources": [{"description": described, "endOffset": '{"logOffset": 0}'}]}


def test_a_folder_of_a_disk_is_no_file_that_waits(tmp_path: Path, log: Path) -> None:
    """A file that was taken is moved to a folder, which is newer for it than all that was listed."""
    folder = tmp_path / "in"
    for name in ("archive", "day=2"):
        (folder / name).mkdir(parents=True)
    (folder / "archive" / "a.json").write_text("{}")
    (folder / "linked").symlink_to(folder / "archive")
    os.mkfifo(folder / "pipe.json")
    assert waiting(on_disk(folder), log) == {}
    (folder / "day=2" / "b.json").write_text("{}")
    assert waiting(on_disk(folder), log) == {"files": 1.0}


@pytest.mark.parametrize(
    ("options", "many"),
    [({}, 4), ({"pathGlobFilter": "new*"}, 3), ({"recursivefilelookup": "true"}, 6), ({"pathGlobFilter": "*.csv"}, 0)],
)
def test_files_of_a_disk_wait_as_those_of_a_bucket(
    tmp_path: Path, log: Path, options: dict[str, Any], many: int
) -> None:
    folder = tmp_path / "in {1}"
    for name in (*READ, *UNREAD):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    old = folder / "day=1" / "old.json"
    old.write_text("{}")
    os.utime(old, (1_000_000_000, 1_000_000_000))
    source = JsonFiles(folder, "k string", **options)
    counted = waiting(on_disk(folder), log, {str(source.path): source.reads})
    assert sum(counted.values()) == many


def test_links_that_lead_round_hold_nobody_up(tmp_path: Path, log: Path) -> None:
    folder = tmp_path / "in"
    (folder / "c=3").mkdir(parents=True)
    for name in ("a=1", "b=2", "c=3/d=4"):
        (folder / name).symlink_to(folder)
    (folder / "c=3" / "new.json").write_text("{}")
    assert waiting(on_disk(folder), log) == {"files": 1.0}


def test_what_fits_a_pattern_is_a_file_or_a_folder_of_files(tmp_path: Path, log: Path) -> None:
    (tmp_path / "in-1" / "k=1").mkdir(parents=True)
    for name in ("in-1/a.json", "in-1/k=1/b.json", "in-2", "out"):
        (tmp_path / name).write_text("{}")
    described = {"description": f"FileStreamSource[file:{tmp_path}/in-*]", "endOffset": '{"logOffset": 0}'}
    assert waiting({"sources": [described]}, log) == {"files": 3.0}


class Reports:
    """A query with a report."""

    def __init__(self, report: dict[str, Any]) -> None:
        self._jsq, self._report = self, report

    def lastProgress(self) -> Reports:  # noqa: N802
        return self

    def json(self) -> str:
        return json.dumps(self._report)
