"""What the snapshots in Spark's state store say of themselves: each version is an archive with a description in it.

Spark's reports give the rows of a query's state as a sum; the descriptions have them by partition (`numKeys`).
"""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

VERSION = re.compile(r"^(\d+)(?:_[0-9a-f-]+)?\.(zip|changelog)$")
"""Names of files that make up a version."""

_FORM = b"v1\n"


def description(snapshot: Path) -> dict[str, Any] | None:
    """What a snapshot (`N.zip`) says of itself; None: it is gone, or in no form that is known."""
    try:
        with zipfile.ZipFile(snapshot) as packed:
            text = packed.read("metadata")
        found = json.loads(text[len(_FORM) :]) if text.startswith(_FORM) else None
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        return None
    return found if isinstance(found, dict) else None


def partition_rows(checkpoint: Path) -> tuple[int, ...]:
    """Rows of a query's state by partition, all its operators together, as of the last snapshots.

    Args:
        checkpoint: Spark's checkpoint of the query.

    Returns:
        A number a partition, in order; nothing if the query has no state, or if a snapshot cannot be read.
    """
    found: dict[int, int] = {}
    try:
        for operator in (checkpoint / "state").iterdir():
            for partition in operator.iterdir():
                if partition.name.isdigit():
                    rows = _rows(partition)
                    if rows is None:
                        return ()
                    found[int(partition.name)] = found.get(int(partition.name), 0) + rows
    except OSError:
        return ()
    return tuple(found[number] for number in sorted(found))


def _rows(partition: Path) -> int | None:
    versions = {int(match[1]): file for file in partition.iterdir() if (match := VERSION.match(file.name))}
    snapshots = [number for number, file in versions.items() if file.suffix == ".zip"]
    described = description(versions[max(snapshots)]) if snapshots else None
    rows = described.get("numKeys") if described else None
    return rows if isinstance(rows, int) and rows >= 0 else None
