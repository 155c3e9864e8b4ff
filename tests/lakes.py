"""Where the lakes of a run of tests lie: in folders of this host, or, with `--store`, on a server that the run starts.

Conformance tests, kill tests and histories ask here for the place of a lake, so that they run on a store without a word of it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from uuid import uuid4

from pipelines.places.location import Location, Place
from pipelines.state.lake import Lake

STORES = ("moto", "versity", "hdfs")
_ROOT = "TRIDELTA_TESTS_STORE"
if _ROOT in os.environ:
    # A process of such a test: its session reads S3 if somebody named a place there before.
    Location.of(os.environ[_ROOT])


def lake_place(folder: str | Place) -> Place:
    """The place of the lake that would be in a folder; the processes that a test starts find the same one."""
    root = os.environ.get(_ROOT)
    if isinstance(folder, Location):
        return folder
    return Location.of(f"{root}/{str(folder).strip('/')}") if root else Path(folder)


@contextmanager
def fresh_lake() -> Iterator[Lake]:
    """A lake on the store that ends with the block (`pipelines.testing.spark_step.fresh_lake`)."""
    lake = Lake(lake_place(uuid4().hex))
    try:
        yield lake
    finally:
        removed(lake.root)


@contextmanager
def store_of(kind: str, folder: Path) -> Iterator[None]:
    """Start a server and let lakes lie there, those of the test kit, too.

    Args:
        kind: one of `STORES`.
        folder: for what the server keeps.

    Raises:
        RuntimeError: the server cannot be had here.
    """
    from pipelines.testing import engines, flows

    with _server(kind, folder) as (root, environment):
        # The kit runs in this process; its children get the rest.
        before = dict(os.environ)
        os.environ.update({**environment, _ROOT: root})
        kept = engines.fresh_lake
        engines.fresh_lake = flows.fresh_lake = fresh_lake
        # A session that reads S3 is one that was started after somebody named a place there.
        Location.of(root)
        try:
            yield
        finally:
            engines.fresh_lake = flows.fresh_lake = kept
            os.environ.clear()
            os.environ.update(before)


@contextmanager
def _server(kind: str, folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    from tests.places.hadoop_servers import hadoop_jars, hdfs_server
    from tests.places.s3_servers import moto, versity, versity_program

    if kind == "hdfs":
        if not (jars := hadoop_jars()):
            raise RuntimeError("Hadoop's jars for a small HDFS are not in the cache, and cannot be fetched")
        with hdfs_server(jars, folder) as hdfs:
            yield f"hdfs://{hdfs.empty()}", {}
        return
    if kind == "versity" and versity_program() is None:
        raise RuntimeError("versitygw is not there, and there is no Go to build it with")
    with moto() if kind == "moto" else versity(folder) as server:
        before = dict(os.environ)
        os.environ.update(server.environment)
        try:
            yield f"s3://{server.bucket()}", server.environment
        finally:
            os.environ.clear()
            os.environ.update(before)


# --- folders of either kind -----------------------------------------------------------------------------------------


def copied(source: Place, target: Place, *, links: bool = False) -> Place:
    """Copy a folder without its locks.

    Args:
        links: on this host as links, for what is written into new files alone.
    """
    if isinstance(source, Location):
        assert isinstance(target, Location)
        for entry in source.store.entries(source.key):
            if not entry.key.endswith(".lock"):
                # Of a folder without files Hadoop's marker is listed, which is no file under that name.
                with suppress(FileNotFoundError) if not entry.size else nullcontext():
                    source.store.copy(entry.key, f"{target.key}{entry.key.removeprefix(source.key)}")
        return target
    assert isinstance(target, Path)
    copy: Callable[..., object] = os.link if links else shutil.copy2
    shutil.copytree(source, target, copy_function=copy, ignore=shutil.ignore_patterns("*.lock"))
    return target


def removed(folder: Place) -> None:
    """Remove a folder, if it is there."""
    if isinstance(folder, Location):
        for file in list(folder.rglob("*")):
            file.unlink(missing_ok=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)
