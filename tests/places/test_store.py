"""One contract for the store on a disk and in a bucket: every test runs on the disk and on real servers."""

from __future__ import annotations

import io
import itertools
import os
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assets.sources import arrived
from pipelines.execution.checkpoint.copy import _files
from pipelines.places.bucket import BucketStore
from pipelines.places.disk import DiskStore
from pipelines.places.hdfs import HdfsStore
from pipelines.places.location import Location
from pipelines.places.store import FileStore, StoreError
from pipelines.sources import CsvFiles, JsonFiles, ParquetFiles, TextFiles
from pipelines.sources.folder import _UNREAD, FileSource
from tests.places.conftest import use

EXHAUSTIVE = pytest.mark.exhaustive
SERVERS = ["disk", "moto", pytest.param("versity", marks=EXHAUSTIVE), pytest.param("hdfs", marks=EXHAUSTIVE)]


@pytest.fixture(params=SERVERS)
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileStore:
    if request.param == "disk":
        return DiskStore(tmp_path / "store")
    if request.param == "hdfs":
        return HdfsStore(request.getfixturevalue("hdfs").empty())
    return BucketStore(use(request.getfixturevalue(f"{request.param}_server"), monkeypatch))


def test_what_is_put_is_read(store: FileStore) -> None:
    tag = store.put("a/b.json", b"one")
    assert store.read("a/b.json").data == b"one"
    assert store.read("a/b.json").tag == tag
    other = store.put("a/b.json", b"another")
    assert (store.read("a/b.json").data, store.size("a/b.json")) == (b"another", 7)
    assert other != tag
    assert store.put("empty", b"") == store.read("empty").tag


def test_what_is_not_there_is_said_as_of_files(store: FileStore) -> None:
    for ask in (store.read, store.entry):
        with pytest.raises(FileNotFoundError, match="none"):
            ask("a/none")
    with pytest.raises(FileNotFoundError):
        store.copy("a/none", "b")
    assert store.size("a/none") is None
    assert (list(store.entries("a")), store.names("a")) == ([], [])
    store.delete("a/none")


def test_a_file_is_created_once(store: FileStore) -> None:
    tag = store.put_if_absent("x/epoch.json", b"mine")
    assert tag == store.read("x/epoch.json").tag
    assert store.put_if_absent("x/epoch.json", b"others'") is None
    # Not even with the same content: somebody else was first.
    assert store.put_if_absent("x/epoch.json", b"mine") is None
    assert store.read("x/epoch.json").data == b"mine"
    store.delete("x/epoch.json")
    assert store.put_if_absent("x/epoch.json", b"others'") is not None


def test_a_file_is_swapped_by_who_has_read_it(store: FileStore) -> None:
    first = store.put("x", b"1")
    second = store.compare_and_swap("x", b"2", first)
    assert second is not None
    assert store.compare_and_swap("x", b"3", first) is None
    assert store.read("x").data == b"2"
    assert store.compare_and_swap("x", b"3", second) == store.read("x").tag
    store.delete("x")
    assert store.compare_and_swap("x", b"4", second) is None
    assert store.compare_and_swap("nowhere/x", b"4", second) is None
    assert store.size("x") is None


def test_folders_are_told_by_their_files(store: FileStore) -> None:
    for key in ("a/x", "a/b/y", "a/b/z", "ab/x", "a.json"):
        store.put(key, key.encode())
    assert [entry.key for entry in store.entries("a")] == ["a/b/y", "a/b/z", "a/x"]
    assert store.names("a") == ["b", "x"]
    assert store.names("") == ["a", "a.json", "ab"]
    assert {entry.key: entry.size for entry in store.entries("")}["a/b/y"] == 5
    store.delete("a/b/y")
    store.delete("a/b/z")
    assert not list(store.entries("a/b"))


def test_the_end_of_a_file(store: FileStore) -> None:
    for key, data in (("a", b"0123456789"), ("empty", b"")):
        store.put(key, data)
        assert [store.end(key, length) for length in (3, 10, 64)] == [data[-3:], data, data]
    with pytest.raises(FileNotFoundError):
        store.end("none", 3)


def test_copies_stay_when_what_they_are_of_goes(store: FileStore) -> None:
    store.put("a", b"old")
    store.copy("a", "kept/a")
    store.put("a", b"new")
    store.copy("a", "over")
    store.delete("a")
    assert (store.read("kept/a").data, store.read("over").data) == (b"old", b"new")


def test_ages_are_told_by_the_stores_clock(store: FileStore) -> None:
    store.put("x/a", b"")
    # Some stores date files by the second.
    assert -2 < store.clock("x") - store.entry("x/a").modified < 3600
    # To look at the clock leaves nothing in the listing.
    assert [entry.key for entry in store.entries("")] == ["x/a"]
    assert store.names("x") == ["a"]


@pytest.mark.parametrize("name", ["a b", "a+b=c", "a%20b", "größe", "a~b@c", ".hidden"])
def test_names_are_kept_as_they_are(store: FileStore, name: str) -> None:
    store.put_if_absent(f"x/{name}/{name}", b"1")
    assert [entry.key for entry in store.entries("x")] == [f"x/{name}/{name}"]
    assert store.names("x") == [name]
    assert store.read(f"x/{name}/{name}").data == b"1"


def test_of_writers_that_create_one_file_one_succeeds(store: FileStore) -> None:
    def create(number: int) -> list[int]:
        return [n for n in range(5) if store.put_if_absent(f"race/{n}", str(number).encode()) is not None]

    won = in_threads(create, 4)
    for n in range(5):
        winners = [number for number, created in enumerate(won) if n in created]
        assert [str(one).encode() for one in winners] == [store.read(f"race/{n}").data]


def test_no_swap_of_several_writers_is_lost(store: FileStore) -> None:
    store.put("count", b"0")

    def add(_: int) -> list[int]:
        mine: list[int] = []
        while len(mine) < 6:
            seen = store.read("count")
            number = int(seen.data) + 1
            if store.compare_and_swap("count", str(number).encode(), seen.tag) is not None:
                mine.append(number)
        return mine

    assert sorted(itertools.chain.from_iterable(in_threads(add, 4))) == list(range(1, 25))
    assert store.read("count").data == b"24"


def in_threads(work: Callable[[int], list[int]], many: int) -> list[list[int]]:
    with ThreadPoolExecutor(many) as pool:
        return list(pool.map(work, range(many)))


KEYS, WRITERS = ("p", "q/r"), 3
STEPS = st.lists(
    st.tuples(
        st.integers(0, WRITERS - 1),
        st.sampled_from(["read", "put", "create", "swap", "delete"]),
        st.sampled_from(KEYS),
        st.binary(max_size=2),
    ),
    max_size=25,
)


def as_the_model_says(store: FileStore, steps: list[tuple[int, str, str, bytes]]) -> None:
    """Follow writers, each with what it has last read or written; compare each answer with a dict's."""
    for key in KEYS:
        store.delete(key)
    held: dict[str, bytes] = {}
    read: dict[tuple[int, str], tuple[str, bytes]] = {}
    for number, (writer, step, key, value) in enumerate(steps):
        # No content comes again, so that a tag names one write.
        data = value + str(number).encode()
        done: str | None = None
        if step == "read" and key in held:
            found = store.read(key)
            assert found.data == held[key]
            read[writer, key] = (found.tag, found.data)
        elif step == "put":
            done = store.put(key, data)
        elif step == "create":
            done = store.put_if_absent(key, data)
            assert (done is None) == (key in held)
        elif step == "swap" and (writer, key) in read:
            tag, seen = read[writer, key]
            done = store.compare_and_swap(key, data, tag)
            assert (done is not None) == (held.get(key) == seen)
        elif step == "delete":
            store.delete(key)
            held.pop(key, None)
        if done is not None:
            held[key], read[writer, key] = data, (done, data)
    assert {entry.key: entry.size for entry in store.entries("")} == {key: len(data) for key, data in held.items()}
    assert {key: store.read(key).data for key in held} == held


SHARED = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@SHARED
@given(steps=STEPS)
def test_writers_on_a_disk_see_what_a_model_says(tmp_path: Path, steps: list[tuple[int, str, str, bytes]]) -> None:
    as_the_model_says(DiskStore(tmp_path / "store"), steps)


@pytest.mark.exhaustive
@pytest.mark.parametrize("server", ["moto", "versity"])
@SHARED
@given(steps=STEPS)
def test_writers_of_a_bucket_see_what_a_model_says(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    server: str,
    steps: list[tuple[int, str, str, bytes]],
) -> None:
    as_the_model_says(BucketStore(use(request.getfixturevalue(f"{server}_server"), monkeypatch)), steps)


def test_a_bucket_that_is_not_there_is_said(bucket: str) -> None:
    store = BucketStore(f"{bucket}-no")
    for ask in (lambda: store.put("x", b""), lambda: list(store.entries("x")), lambda: store.put_if_absent("x", b"")):
        with pytest.raises(StoreError, match="no such bucket"):
            ask()
    # An answer to HEAD says that there is nothing, and not what of.
    for look in (BucketStore(f"{bucket}-no").entry, BucketStore(f"{bucket}-no").size):
        with pytest.raises(StoreError, match="no such bucket"):
            look("x")


def test_the_bucket_is_looked_for_once_at_most(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    get = obstore.get

    def counted(s3: Any, key: str) -> Any:
        asked.append(key)
        return get(s3, key)

    monkeypatch.setattr(obstore, "get", counted)
    store = BucketStore(bucket)
    assert ([store.size(key) for key in "xyx"], asked) == ([None] * 3, ["x"])
    store.put("z", b"")
    other = BucketStore(bucket)
    assert ([other.size(key) for key in "zx"], asked) == ([0, None], ["x"])


@pytest.mark.parametrize("name", ["a%09b.json", "/b.json", "../b.json", "x/./b.json", "a%7Fb.json"])
def test_a_name_that_is_not_read_is_said(bucket: str, name: str) -> None:
    """Others may put objects of any name. One that obstore cannot read is no store that does not answer."""
    url = f"{os.environ['AWS_ENDPOINT_URL']}/{bucket}/in/{name}"
    with urllib.request.urlopen(urllib.request.Request(url, data=b"{}", method="PUT")):
        pass
    store, key = BucketStore(bucket), f"in/{unquote(name)}"
    source = JsonFiles(f"s3://{bucket}/in", "k string")
    for ask in (lambda: list(store.entries("in")), lambda: store.read(key), lambda: source.check("s", None)):  # type: ignore[arg-type]
        with pytest.raises(
            StoreError, match=r"an object there has a name that is not read.*\n.*rename or remove it"
        ) as said:
            ask()
        assert repr(key) in str(said.value)


def make_folder(bucket: str, key: str) -> None:
    """Make an empty folder, as a store's console and Hadoop do: an empty object whose name ends with a slash."""
    url = f"{os.environ['AWS_ENDPOINT_URL']}/{bucket}/{key}/"
    with urllib.request.urlopen(urllib.request.Request(url, data=b"", method="PUT")):
        pass


def test_an_empty_folder_is_no_file(bucket: str) -> None:
    store, place = BucketStore(bucket), Location.of(f"s3://{bucket}/in")
    store.put("in/empty", b"")
    for key in ("in", "in/archive", "in/archive/old", "in/full", "in/last"):
        make_folder(bucket, key)
    store.put("in/full/a", b"1")
    assert [(entry.key, entry.size) for entry in store.entries("in")] == [("in/empty", 0), ("in/full/a", 1)]
    assert [entry.key for entry in store.entries("")] == ["in/empty", "in/full/a"]
    assert store.names("in") == ["archive", "empty", "full", "last"]
    assert sorted(_files(place)) == ["empty", "full/a"]
    assert [(place / name).is_dir() for name in ("full", "last")] == [True, False]


def test_an_empty_object_is_asked_for_once(bucket: str, asked: list[str]) -> None:
    store = BucketStore(bucket)
    for key in ("in/a", "in/b"):
        store.put(key, b"1")
    store.put("in/empty", b"")
    make_folder(bucket, "in/archive")
    for _ in range(3):
        assert [entry.key for entry in store.entries("in")] == ["in/a", "in/b", "in/empty"]
    assert sorted(asked) == ["in/archive", "in/empty"]


def test_only_what_is_wanted_is_asked_for(store: FileStore) -> None:
    for key, data in {"a/x": b"", "a/y": b"1", "a/b/x": b"2", "x": b""}.items():
        store.put(key, data)
    assert [entry.key for entry in store.entries("a", lambda entry: entry.key.endswith("x"))] == ["a/b/x", "a/x"]


def test_an_empty_object_that_nobody_looks_for_is_not_asked_for(bucket: str, asked: list[str]) -> None:
    """Spark and Hive put a `_SUCCESS` into each folder that they write."""
    place = Location.of(f"s3://{bucket}/in")
    store = place.store
    for number in range(200):
        store.put(f"in/a={number}/_SUCCESS", b"")
    store.put("in/a=7/part-1.json", b'{"k": "a"}')
    store.put("in/empty.csv", b"")
    source = JsonFiles(place, "k string", pathGlobFilter="*.json")
    asked.clear()
    source.check("s", None)  # type: ignore[arg-type]
    assert source._seen == ([place / "a=7" / "part-1.json"], None)
    assert list(place.rglob("*.json")) == [place / "a=7" / "part-1.json"]
    assert asked == []
    assert arrived(place).files == 2
    assert asked == ["in/empty.csv"]


def test_more_empty_objects_than_are_remembered_are_not_all_asked_for_again(
    bucket: str, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.places.bucket._MOST_EMPTY", 90)
    store = BucketStore(bucket)
    for number in range(100):
        store.put(f"in/{number}", b"")
    for _ in range(3):
        asked.clear()
        assert len(list(store.entries("in"))) == 100
    # All of them, if what goes were always what comes next.
    assert 10 <= len(asked) < 70
    assert len(store._empty) == 90


@pytest.mark.parametrize("kind", [JsonFiles, CsvFiles, ParquetFiles, TextFiles])
@pytest.mark.parametrize("begun", [False, True])
def test_a_source_with_an_empty_folder_starts(bucket: str, kind: type[FileSource], begun: bool) -> None:
    parquet = io.BytesIO()
    pq.write_table(pa.table({"k": ["a"]}), parquet)
    good = {"json": b'{"k": "a"}\n', "csv": b"k\na\n", "parquet": parquet.getvalue(), "text": b"a\n"}
    place = Location.of(f"s3://{bucket}/in")
    source = TextFiles(place, "k") if kind is TextFiles else kind(place, "k string")
    make_folder(bucket, "in/archive")
    source.check("s", None)  # type: ignore[arg-type]
    source.check_first("s", begun=begun)
    (place / "part-1").write_bytes(good[kind.format])
    source.check("s", None)  # type: ignore[arg-type]
    assert source._seen == ([place / "part-1"], None)
    source.check_first("s", begun=begun)
    assert arrived(place).files == 1


@pytest.mark.parametrize("kind", [JsonFiles, ParquetFiles])
def test_files_of_such_a_name_are_read_apart(bucket: str, kind: type[FileSource]) -> None:
    folder = f"s3a://{bucket}/in"
    odd = [f"{folder}/{name}" for name in ("a\tb", "/b", "../b", "x/./b", "a\x7fb")]
    layouts = kind(folder, "k string")._all_layouts([*odd, f"{folder}/..c d"])
    assert layouts == {None: [f"{folder}/..c d"], _UNREAD: odd}
