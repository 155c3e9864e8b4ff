"""What waits at a running query's sources. Spark tells it of Kafka alone; of folders and Delta tables it is counted here.

All that is needed stands in Spark's own report of the query: what it reads, and how far it has come.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

FILES, COMMITS, RECORDS = "files", "commits", "records"
_MOST_COMMITS = 200
"""Commits that are looked into: a query that is farther behind is far behind."""


def waiting(progress: Mapping[str, Any], checkpoint: Path) -> dict[str, float]:
    """What waits at a query's sources, by measure: `files` of folders, `commits` of Delta tables, `records` of Kafka.

    Args:
        progress: Spark's report of the query (`StreamingQueryProgress` as JSON).
        checkpoint: Spark's checkpoint of the query.
    """
    found: dict[str, float] = {}
    for index, source in enumerate(progress.get("sources") or ()):
        for measure, number in _of_source(source, checkpoint / "sources" / str(index)):
            if number > 0:
                found[measure] = found.get(measure, 0.0) + number
    return found


def gone(progress: Mapping[str, Any]) -> list[str]:
    """Folders and Delta tables that a query reads and that are not there: Spark reads nothing then, and says nothing.

    Args:
        progress: Spark's report of the query.
    """
    described = [str(source.get("description") or "") for source in progress.get("sources") or ()]
    paths = [_path(one) for one in described if one.startswith(("FileStreamSource[", "DeltaSource["))]
    # Of a pattern or another file system nobody knows it here.
    return [path for path in paths if path.startswith("/") and not glob.has_magic(path) and not Path(path).exists()]


def _of_source(source: Mapping[str, Any], log: Path) -> Iterator[tuple[str, float]]:
    described, end = str(source.get("description") or ""), _offset(source.get("endOffset"))
    metrics = source.get("metrics") or {}
    if "maxOffsetsBehindLatest" in metrics:
        yield RECORDS, float(metrics["maxOffsetsBehindLatest"])
    elif described.startswith("FileStreamSource[") and "logOffset" in end:
        yield FILES, float(_files(_path(described), log, int(end["logOffset"])))
    elif described.startswith("DeltaSource[") and "reservoirVersion" in end:
        yield COMMITS, float(_commits(_path(described), int(end["reservoirVersion"])))


def _offset(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


def _path(described: str) -> str:
    inside = described.split("[", 1)[1].rstrip("]")
    return unquote(inside.removeprefix("file:").replace("///", "/", 1)) if inside.startswith("file:") else inside


def _files(path: str, log: Path, listing: int) -> int:
    """Files of a folder that are newer than all that the query has listed: Spark takes them by their times."""
    newest = _newest(log, listing)
    if newest is None:
        return 0
    folder = path if os.path.isdir(path) else None  # noqa: PTH112 - a path that may be a pattern
    names = (entry.path for entry in os.scandir(folder)) if folder else iter(glob.glob(path))  # noqa: PTH207
    count = 0
    for name in names:
        if os.path.basename(name)[:1] not in ("_", "."):  # noqa: PTH119
            try:
                count += int(os.stat(name).st_mtime * 1000) > newest  # noqa: PTH116
            except OSError:
                continue  # gone again
    return count


def _newest(log: Path, listing: int) -> int | None:
    """The time of the newest file that was listed, in ms; None if the log does not say."""
    for number in range(listing, max(-1, listing - 20), -1):
        for name in (str(number), f"{number}.compact"):
            try:
                lines = (log / name).read_text("utf-8").splitlines()[1:]
            except OSError:
                continue
            times = [int(json.loads(line)["timestamp"]) for line in lines if line.startswith("{")]
            if times:
                return max(times)
    return None


def _commits(path: str, version: int) -> int:
    """Commits of a Delta table from a version on that have brought rows."""
    log, count = Path(path) / "_delta_log", 0
    for number in range(version, version + _MOST_COMMITS):
        try:
            text = (log / f"{number:020d}.json").read_text("utf-8")
        except OSError:
            break
        # A compaction writes the same rows again, and says so.
        count += any('"add"' in line and '"dataChange":true' in line.replace(" ", "") for line in text.splitlines())
    return count
