"""The store in HDFS, where other writers come between any two of its requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hdfs_native import Client

from pipelines.places import hdfs as hdfs_store
from pipelines.places.hdfs import HdfsStore
from pipelines.places.store import StoreError, keep
from tests.places.hadoop_servers import Hdfs

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.timeout(300)]


@pytest.fixture
def store(hdfs: Hdfs) -> HdfsStore:
    return HdfsStore(hdfs.empty())


def meanwhile(store: HdfsStore, monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any]) -> None:
    """Let something happen once, when the next draft has been written and has yet to get its name."""
    renamed = store._renamed

    def late(*given: Any) -> bool:
        monkeypatch.setattr(store, "_renamed", renamed)
        work()
        return renamed(*given)

    monkeypatch.setattr(store, "_renamed", late)


def test_old_versions_go(store: HdfsStore, hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdfs_store, "_KEPT_SECONDS", 0.0)
    tag = store.put("a/x", b"0")
    for number in range(1, 6):
        tag = str(store.compare_and_swap("a/x", b"%d" % number, tag))
    assert store.read("a/x").data == b"5"
    assert len([path for path in hdfs.files() if ".versions/" in path]) <= 2
    keep(store._name, "")
    store.delete("a/x")
    assert hdfs.files() == []
    assert store.names("") == []


def test_a_writer_that_stood_still_does_not_take_a_number_that_is_free_again(
    store: HdfsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdfs_store, "_KEPT_SECONDS", 0.0)
    other, first = HdfsStore(store._name), store.put("x", b"first")

    def others() -> None:
        tag = first
        for number in range(4):
            tag = str(other.compare_and_swap("x", b"%d" % number, tag))

    meanwhile(store, monkeypatch, others)
    assert store.compare_and_swap("x", b"late", first) is None
    assert store.read("x").data == b"3"
    assert not [entry for entry in store._versions("x") if entry.number < 3]


@pytest.mark.parametrize("again", [False, True])
def test_a_swap_does_not_bring_back_what_was_deleted(
    store: HdfsStore, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    other, first = HdfsStore(store._name), store.put("x", b"first")

    def others() -> None:
        other.delete("x")
        if again:
            other.put("x", b"another life")

    meanwhile(store, monkeypatch, others)
    assert store.compare_and_swap("x", b"late", first) is None
    assert [entry.key for entry in store.entries("")] == ["x"] * again
    if again:
        assert store.read("x").data == b"another life"


def test_of_a_put_and_a_swap_the_later_one_stays(store: HdfsStore, monkeypatch: pytest.MonkeyPatch) -> None:
    other, first = HdfsStore(store._name), store.put("x", b"first")
    meanwhile(store, monkeypatch, lambda: other.compare_and_swap("x", b"swapped", first))
    store.put("x", b"put")
    assert store.read("x").data == b"put"


def test_what_is_replaced_while_it_is_read_is_read_whole(store: HdfsStore, monkeypatch: pytest.MonkeyPatch) -> None:
    other = HdfsStore(store._name)
    store.put("x", b"first")
    current = store._current

    def late(key: str) -> Any:
        monkeypatch.setattr(store, "_current", current)
        version = current(key)
        other.delete("x")
        other.put("x", b"another life")
        return version

    monkeypatch.setattr(store, "_current", late)
    found = store.read("x")
    assert (found.data, found.tag) == (b"another life", store.tag("x"))


def test_a_copy_without_its_times_is_refused(store: HdfsStore, hdfs: Hdfs) -> None:
    """Its content would be that of before the first swap."""
    store.compare_and_swap("c/x", b"2", store.put("c/x", b"1"))
    (version,) = (path for path in hdfs.files() if ".versions/" in path)
    for path, content in (("/d/x", b"1"), (version.replace("/c/", "/d/"), b"2")):
        with hdfs.client.create(path) as out:
            out.write(content)
    for ask in (store.read, store.entry, store.tag, lambda key: store.put(key, b"3")):
        with pytest.raises(StoreError, match=r"d/x: versions of another file .*\n.*copy the folder with its times"):
            ask("d/x")
    store.delete("d/x")
    assert store.put_if_absent("d/x", b"new") == store.tag("d/x")
    assert store.read("d/x").data == b"new"
    assert store.read("c/x").data == b"2"


def test_a_deletion_that_was_cut_off_leaves_nothing_to_the_next_file(store: HdfsStore, hdfs: Hdfs) -> None:
    store.compare_and_swap("x", b"2", store.put("x", b"1"))
    hdfs.client.delete("/x", False)
    assert (store.tag("x"), list(store.entries(""))) == (None, [])
    store.put("x", b"new")
    assert store.read("x").data == b"new"
    assert [path for path in hdfs.files() if ".versions/" in path] == []


def test_drafts_of_killed_writers_go_with_a_day(store: HdfsStore, hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    old = store._draft("/a/x", b"half")
    store.put("a/y", b"1")
    store.put("a/z", b"1")
    store.delete("a/y")
    assert old.path in hdfs.files()
    monkeypatch.setattr(hdfs_store, "_DRAFT_SECONDS", 0.0)
    store.delete("a/z")
    store.put("a/y", b"1")
    store.put("a/z", b"1")
    store.delete("a/y")
    assert hdfs.files() == ["/a/z"]
    assert store.put_if_absent("a/x", b"later") is not None


def test_where_a_folder_is_no_file_is_put(store: HdfsStore) -> None:
    store.put("a/x", b"1")
    for put in (store.put, store.put_if_absent):
        with pytest.raises(StoreError, match="/a: it is a folder"):
            put("a", b"1")


def test_a_listing_tells_of_the_last_version_whatever_lies_beside_it(store: HdfsStore, hdfs: Hdfs) -> None:
    store.compare_and_swap("x", b"two", store.put("x", b"1"))
    with hdfs.client.create("/.x.versions/9999999999999-1.000000000007") as out:
        out.write(b"of another life")
    assert [(entry.key, entry.size) for entry in store.entries("")] == [("x", 3)]
    assert store.read("x").data == b"two"


def test_a_namenode_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # By default a client asks for three minutes.
    impatient = Client("hdfs://127.0.0.1:1", {"dfs.client.failover.max.attempts": "1"})
    with monkeypatch.context() as patched:
        patched.setattr(hdfs_store, "_connected", lambda name: impatient)
        store = HdfsStore("127.0.0.1:1")
    with pytest.raises(
        StoreError, match=r"hdfs://127\.0\.0\.1:1/x: HDFS does not answer as it should.*\n.*HADOOP_CONF_DIR"
    ):
        store.read("x")
    with pytest.raises(StoreError, match="there is no such name service"):
        HdfsStore("nobody-knows-me")
