"""Arrivals: the folders that flows read, as assets that can be looked at but not made."""

import hashlib
import warnings
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg

from assets.view import FlowView, source_key
from pipelines.graph import nodes
from pipelines.graph.fields import parse_ddl


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


def arrived(folder: str | Path) -> Arrived:
    """Look at a folder as a file source does: no names that begin with `_` or `.`; a missing folder is an empty one."""
    root = Path(folder)
    files = [path for path in root.rglob("*") if path.name[0] not in "._" and path.is_file()] if root.is_dir() else []
    digest, size, latest, newest = hashlib.sha256(), 0, 0, ""
    for path in sorted(files):
        facts = path.stat()
        size += facts.st_size
        digest.update(f"{path}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode())
        if facts.st_mtime_ns >= latest:
            latest, newest = facts.st_mtime_ns, path.name
    return Arrived(
        files=len(files),
        bytes=size,
        newest=newest,
        newest_at=datetime.fromtimestamp(latest / 1e9, UTC) if files else None,
        fingerprint=digest.hexdigest()[:16],
    )


def look_at(spout: nodes.SpoutNode) -> Arrived | None:
    """Count what has arrived for a stream; None for a source that is not a folder of files."""
    path = spout.source.inner.path
    return None if path is None else arrived(path)


def observation(spout: nodes.SpoutNode) -> dg.AssetObservation | None:
    """Report what has arrived for a stream as an event of its asset."""
    seen = look_at(spout)
    if seen is None:
        return None
    return dg.AssetObservation(
        source_key(spout.stream), metadata=seen.metadata(), tags={"dagster/data_version": seen.fingerprint}
    )


def source_asset(view: FlowView, spout: nodes.SpoutNode) -> dg.SourceAsset:
    """Build the asset of what arrives for a stream; observing it counts the files."""
    source = spout.source.inner
    columns = [dg.TableColumn(name, kind) for name, kind in parse_ddl(source.schema)]

    def arriving(context: dg.OpExecutionContext) -> dg.DataVersion:
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
