"""Arrivals: the folders that flows read, as assets that can be looked at but not made."""

import errno
import hashlib
import stat
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any

import dagster as dg

from assets.events.reporting import plain_failures
from assets.view import FlowView, source_key
from pipelines.graph import nodes
from pipelines.graph.fields import parse_ddl
from pipelines.places.location import Location, Place
from pipelines.places.store import Entry
from pipelines.sources.base import place_of
from pipelines.sources.folder import passed_over

_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Moved away in this moment, or a link that leads nowhere."""


@dataclass(frozen=True)
class Arrived:
    """The files that lie in a source's folder."""

    files: int
    bytes: int
    newest: str
    newest_at: datetime | None
    fingerprint: str

    def metadata(self) -> dict[str, Any]:
        """Return it as Dagster shows it."""
        shown: dict[str, Any] = {"files": self.files, "bytes": self.bytes, "newest": self.newest or "(none)"}
        if self.newest_at is not None:
            shown["newest_at"] = dg.MetadataValue.timestamp(self.newest_at)
        return shown


def arrived(folder: Place) -> Arrived:
    """Look at a folder as a file source does, at any depth: no names that Spark passes over; a missing folder is an empty one."""
    files = sorted(_listed(folder), key=lambda entry: entry.key)
    digest = hashlib.sha256()
    for entry in files:
        digest.update(f"{entry.key}\0{entry.size}\0{entry.version}\n".encode(errors="surrogateescape"))
    newest = max(reversed(files), key=lambda entry: entry.modified, default=None)
    return Arrived(
        files=len(files),
        bytes=sum(entry.size for entry in files),
        # A name that is no UTF-8 is no text for Dagster.
        newest=_name(newest).encode(errors="replace").decode() if newest else "",
        newest_at=datetime.fromtimestamp(newest.modified, UTC) if newest else None,
        fingerprint=digest.hexdigest()[:16],
    )


def _listed(folder: Place) -> Iterator[Entry]:
    if isinstance(folder, Location):
        yield from folder.store.entries(folder.key, lambda entry: not passed_over(_name(entry)))
        return
    for path in folder.rglob("*") if folder.is_dir() else ():
        if passed_over(path.name):
            continue
        try:
            facts = path.stat()
        except OSError as error:
            if error.errno in _NO_FILE:
                continue
            raise
        if stat.S_ISREG(facts.st_mode):
            yield Entry(str(path), facts.st_size, facts.st_mtime, str(facts.st_mtime_ns))


def _name(entry: Entry) -> str:
    return PurePosixPath(entry.key).name


def look_at(spout: nodes.SpoutNode) -> Arrived | None:
    """Count what has arrived for a stream; None for a source that is not a folder of files."""
    path = spout.source.inner.path
    # The batches of a program lie in the lake, under a path that each run gives its own copy of the source.
    return arrived(place_of(path)) if path else None


def observation(spout: nodes.SpoutNode, seen: Arrived) -> dg.AssetObservation:
    """Report what has arrived for a stream as an event of its asset."""
    return dg.AssetObservation(
        source_key(spout.stream), metadata=seen.metadata(), tags={"dagster/data_version": seen.fingerprint}
    )


def caught_up(view: FlowView, spout: nodes.SpoutNode) -> str:
    """Return the key under which Dagster's storage keeps what a flow's last whole catch-up found arrived for a stream.

    An observation of the source would not do: it is of all flows that read it, and of whoever looks.
    """
    return f"tridelta/caught_up/{view.name}/{spout.stream}"


def source_asset(view: FlowView, spout: nodes.SpoutNode) -> dg.SourceAsset:
    """Build the asset of what arrives for a stream; observing it counts the files."""
    source = spout.source.inner
    columns = [dg.TableColumn(name, kind) for name, kind in parse_ddl(source.schema)]

    def arriving(context: dg.OpExecutionContext) -> dg.DataVersion:
        with plain_failures():
            seen = look_at(spout)
        if seen is None:
            return dg.DataVersion("unknown")
        context.add_output_metadata(seen.metadata())
        return dg.DataVersion(seen.fingerprint)

    with warnings.catch_warnings():
        # Observable sources are beta in Dagster 1.13, and have been for years; the dependency is held below 1.14.
        warnings.simplefilter("ignore", dg.BetaWarning)
        return dg.observable_source_asset(
            key=source_key(spout.stream),
            group_name=view.name,
            description=f"What arrives for the stream {spout.stream}: {source!r}.",
            metadata={
                "path": dg.MetadataValue.path(str(source if source.path is None else source.path)),
                "dagster/column_schema": dg.TableSchema(columns=columns),
            },
            tags={"dagster/kind/json": ""} if source.format == "json" else {},
        )(arriving)
