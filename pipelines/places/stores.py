"""The store of each place: a disk, a bucket, HDFS. Each loads on first use."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.places.store import FileStore

if TYPE_CHECKING:
    from pipelines.places.location import Location


def store_at(location: Location) -> FileStore:
    """Return the store of a place. One client per bucket and process: a process that was forked makes its own."""
    if location.is_local:
        from pipelines.places.disk import DiskStore

        return DiskStore(Path("/"))
    return _remote(location.scheme, location.bucket, os.getpid())


@lru_cache(maxsize=16)
def _remote(scheme: str, name: str, process: int) -> FileStore:
    if scheme == "hdfs":
        from pipelines.places.hdfs import HdfsStore

        return HdfsStore(name)
    from pipelines.places.bucket import BucketStore

    return BucketStore(name)
