"""A place is spelled as each library wants it, joins as a path does, and reads as one."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from pipelines.places.location import Location, LocationError, put_whole
from pipelines.sources.base import place_of


@pytest.mark.parametrize(
    "text", ["s3://b-1.x/lake/x", "s3a://b-1.x/lake/x/", "S3A://b-1.x/lake/x", Path("s3a://b-1.x/lake/x")]
)
def test_each_library_has_its_spelling(text: str | Path) -> None:
    place = Location.of(text)
    assert (place.spark, str(place)) == ("s3a://b-1.x/lake/x", "s3a://b-1.x/lake/x")
    assert not place.is_local
    assert Location.of(place) == place
    with pytest.raises(LocationError, match="no folder of this host"):
        _ = place.path


def test_hdfs_is_spelled_alike_everywhere() -> None:
    place = Location.of("hdfs://name-1:9000/lake/x/")
    assert place.spark == str(place) == "hdfs://name-1:9000/lake/x"
    assert (place.bucket, place.key) == ("name-1:9000", "lake/x")
    assert place_of(str(place)) == place


def test_a_folder_of_this_host_is_spelled_as_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for place in (Location.of("a b"), Location.of(tmp_path / "a b"), Location.of(f"file://{tmp_path}/a%20b")):
        assert place.is_local
        assert place.path == tmp_path / "a b"
        assert place.spark == str(place) == str(tmp_path / "a b")


def test_it_joins_as_a_path_does() -> None:
    root = Location.of("s3://bucket/lake")
    place = root / "states" / "totals" / "x.json"
    assert (place.name, place.stem, place.suffix) == ("x.json", "x", ".json")
    assert str(place) == "s3a://bucket/lake/states/totals/x.json"
    assert place.parent == root / "states/totals"
    assert place.parents[2] == root
    assert place.with_name("y") == root / "states" / "totals" / "y"
    assert place.is_relative_to(root)
    assert place.relative_to(root) == Path("states/totals/x.json")
    assert not (root.parent / "lakes").is_relative_to(root)
    assert not root.is_relative_to(Path("/lake"))
    with pytest.raises(ValueError, match="is not in"):
        root.relative_to(place)
    assert str(Location.of("s3://bucket")) == "s3a://bucket"
    assert str(Location.of("s3://bucket") / "x") == "s3a://bucket/x"


def test_it_is_no_path() -> None:
    place = Location.of("s3://bucket/lake")
    with pytest.raises(TypeError):
        Path(place)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        open(place)  # type: ignore[call-overload]  # noqa: PTH123, SIM115


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("hdfs:///x", "it names no NameNode"),
        (Path("hdfs://name/x"), "it names no NameNode"),
        ("hdfs://u@name/x", "it names no NameNode"),
        ("hdfs://name:9000/a b", "has the character ' '"),
        ("gs://b/x", "of the kind gs: is not known"),
        ("s3://", "'' is no name of a bucket"),
        ("s3://Bucket/x", "'Bucket' is no name"),
        ("s3://u:p@bucket/x", "is no name of a bucket"),
        ("s3://bucket/a b", "has the character ' '"),
        ("s3://bucket/a%20b", "has the character '%'"),
        ("s3://bucket/a*", "has the character"),
        ("s3://bucket/a//b", "is empty, . or .."),
        ("s3://bucket/../b", "is empty, . or .."),
    ],
)
def test_what_names_no_place_is_refused(text: str | Path, seen: str) -> None:
    with pytest.raises(LocationError, match=seen):
        Location.of(text)


def files_are_read(root: Location) -> None:
    folder = root / "x"
    assert (folder.is_dir(), list(folder.iterdir()), (folder / "a.json").exists()) == (False, [], False)
    (folder / "a.json").write_bytes("größe".encode())
    (folder / "b" / "c.txt").write_bytes(b"")
    assert (folder / "a.json").read_text("utf-8") == "größe"
    assert (folder / "a.json").stat().st_size == 7
    assert (folder.is_dir(), folder.is_file(), folder.exists()) == (True, False, False)
    assert [one.name for one in folder.iterdir()] == ["a.json", "b"]
    assert list(folder.glob("*.json")) == [folder / "a.json"]
    assert sorted(folder.rglob("*")) == [folder / "a.json", folder / "b" / "c.txt"]
    (folder / "a.json").unlink()
    (folder / "a.json").unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError):
        (folder / "a.json").unlink()
    with pytest.raises(FileNotFoundError):
        (folder / "a.json").read_bytes()


def test_files_of_this_host_are_read(tmp_path: Path) -> None:
    files_are_read(Location.of(tmp_path))


def test_files_of_a_bucket_are_read(bucket: str) -> None:
    files_are_read(Location.of(f"s3://{bucket}/lake"))


def test_a_file_is_put_past_what_stands_at_its_drafts_name(tmp_path: Path) -> None:
    """A link there is not followed; the draft of a run that died gives the file neither its mode nor its text."""
    other, file = tmp_path / "other", tmp_path / "key"
    draft = tmp_path / f".key.{threading.get_native_id()}.tmp"
    other.write_text("precious")
    draft.symlink_to(other)
    put_whole(file, b"new")
    assert (other.read_text(), file.read_text(), file.is_symlink()) == ("precious", "new", False)
    draft.write_text("a longer one")
    draft.chmod(0o666)
    put_whole(file, b"newer", mode=0o600)
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("newer", 0o600)
    assert set(tmp_path.iterdir()) == {other, file}
