"""What the store in HDFS makes of a NameNode's answers, and of what others do between two of them. The NameNode is a dict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from pipelines import Lake
from pipelines.places import hdfs as hdfs_store
from pipelines.places import store as places_store
from pipelines.places.hdfs import HdfsStore
from pipelines.places.location import Location


@dataclass
class Status:
    path: str
    isdir: bool = False
    length: int = 1
    modification_time: int = 1


class NameNode:
    """Answers as hdfs-native's client does: what is refused is a RuntimeError, but for what is not there."""

    def __init__(self, *files: str) -> None:
        self.files, self.folders = set(files), set[str]()
        for file in files:
            parts = file.split("/")
            self.folders |= {"/".join(parts[:n]) for n in range(2, len(parts))}
        self.listed: Callable[[str], None] = lambda path: None
        self.asked: list[str] = []

    def get_file_info(self, path: str) -> Status:
        if path not in self.files | self.folders:
            raise FileNotFoundError(path)
        return Status(path, path in self.folders)

    def list_status(self, path: str, recursive: bool) -> Iterator[Status]:
        if path not in self.folders | {"/"}:
            raise FileNotFoundError(path)
        self.asked.append(path)
        below = path.rstrip("/") + "/"
        for name in sorted(self.files | self.folders):
            if name.startswith(below) and "/" not in name.removeprefix(below):
                isdir = name in self.folders
                yield Status(name, isdir)
                self.listed(name)
                if recursive and isdir:
                    yield from self.list_status(name, True)

    def delete(self, path: str, recursive: bool) -> bool:
        if any(name.startswith(f"{path}/") for name in self.files | self.folders):
            raise RuntimeError("RPC error: PathIsNotEmptyDirectoryException")
        self.files.discard(path)
        self.folders.discard(path)
        return True

    def remove(self, folder: str) -> None:
        """Do what another process does: remove a folder with all that is in it."""
        self.files = {name for name in self.files if not name.startswith(f"{folder}/")}
        self.folders = {name for name in self.folders if not f"{name}/".startswith(f"{folder}/")}


@pytest.fixture(autouse=True)
def no_lakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places_store, "_kept", set())


def store_of(monkeypatch: pytest.MonkeyPatch, node: NameNode) -> HdfsStore:
    monkeypatch.setattr(hdfs_store, "_connected", lambda name: node)
    return HdfsStore("name:8020")


def test_a_deletion_ends_at_the_root_of_the_lake(monkeypatch: pytest.MonkeyPatch) -> None:
    node = NameNode("/a/lake/checkpoints/f/g/epoch.json")
    store = store_of(monkeypatch, node)
    Lake("hdfs://name:8020/a/lake")
    store.delete("a/lake/checkpoints/f/g/epoch.json")
    assert (node.files, node.folders) == (set(), {"/a", "/a/lake"})


def test_the_lake_that_lies_in_another_one_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    node = NameNode("/a/lake/inner/x")
    store = store_of(monkeypatch, node)
    for root in ("/a/lake", "/a/lake/inner", "/a/lak"):
        Lake(f"hdfs://name:8020{root}")
    store.delete("a/lake/inner/x")
    assert node.folders == {"/a", "/a/lake", "/a/lake/inner"}


def test_outside_of_lakes_folders_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    node = NameNode("/a/lake/x", "/a/lake/.x.versions/1-1.000000000001")
    store = store_of(monkeypatch, node)
    Lake("hdfs://other:8020/a/lake")
    store.delete("a/lake/x")
    assert (node.files, node.folders) == (set(), {"/a", "/a/lake"})


def test_a_folder_that_the_namenode_keeps_is_no_fault_of_a_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    node = NameNode("/lake/a/b/x")
    store = store_of(monkeypatch, node)
    Lake("hdfs://name:8020/lake")
    deleted = node.delete

    def refusing(path: str, recursive: bool) -> bool:
        if path in node.folders:
            raise RuntimeError("RPC error: AccessControlException: Permission denied")
        return deleted(path, recursive)

    monkeypatch.setattr(node, "delete", refusing)
    store.delete("lake/a/b/x")
    assert (node.files, node.folders) == (set(), {"/lake", "/lake/a", "/lake/a/b"})


def test_a_folder_that_goes_meanwhile_takes_no_others_from_a_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    node = NameNode("/l/a", "/l/b", "/l/gone/c", "/l/kept/d")
    store = store_of(monkeypatch, node)
    node.listed = lambda path: node.remove("/l/gone") if path == "/l/gone" else None
    assert [entry.key for entry in store.entries("l")] == ["l/a", "l/b", "l/kept/d"]
    assert list(store.entries("nowhere")) == []


def test_a_folder_is_there_by_its_first_file(monkeypatch: pytest.MonkeyPatch) -> None:
    node = NameNode("/l/a", "/l/deep/b", "/own/.x.0.draft", "/own/.x.versions/1-1.000000000001")
    node.folders |= {"/empty", "/empty/too"}
    store = store_of(monkeypatch, node)
    monkeypatch.setattr(Location, "store", store)
    there = [name for name in ("l", "l/deep", "empty", "own", "l/a", "none") if Location("hdfs", "name", name).is_dir()]
    assert there == ["l", "l/deep"]
    node.asked.clear()
    node.listed = lambda path: node.remove("/l/deep")
    assert Location("hdfs", "name", "l").is_dir()
    assert node.asked == ["/l"]
