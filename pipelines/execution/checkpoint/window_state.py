"""Read the snapshots of Spark's state store, and compare the fields that windows hold with those of today.

Each version of a state store is an archive with a description in it. Spark's reports give the rows of a query's state as a sum;
the descriptions have them by partition (`numKeys`).
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.errors import TrideltaError
from pipelines.execution.checkpoint.engine_files import write_json

if TYPE_CHECKING:
    from pipelines.execution.checkpoint.engine_files import Checkpoint

VERSION = re.compile(r"^(\d+)(?:_[0-9a-f-]+)?\.(zip|changelog)$")
"""Names of files that make up a version."""

_FORM = b"v1\n"


def description(snapshot: Path) -> dict[str, Any] | None:
    """Return what a snapshot (`N.zip`) says of itself; None: it is gone, or in no form that is known."""
    try:
        with zipfile.ZipFile(snapshot) as packed:
            text = packed.read("metadata")
        metadata = json.loads(text[len(_FORM) :]) if text.startswith(_FORM) else None
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        return None
    return metadata if isinstance(metadata, dict) else None


def partition_rows(checkpoint: Path) -> tuple[int, ...]:
    """Return rows of a query's state by partition, all its operators together, as of the last snapshots.

    Args:
        checkpoint: Spark's checkpoint of the query.

    Returns:
        A number per partition, in order; nothing if the query has no state, or if a snapshot cannot be read.
    """
    totals: dict[int, int] = {}
    try:
        for operator in (checkpoint / "state").iterdir():
            for partition in operator.iterdir():
                if partition.name.isdigit():
                    rows = _rows(partition)
                    if rows is None:
                        return ()
                    totals[int(partition.name)] = totals.get(int(partition.name), 0) + rows
    except OSError:
        return ()
    return tuple(totals[number] for number in sorted(totals))


def _rows(partition: Path) -> int | None:
    versions = {int(match[1]): file for file in partition.iterdir() if (match := VERSION.match(file.name))}
    snapshots = [number for number, file in versions.items() if file.suffix == ".zip"]
    described = description(versions[max(snapshots)]) if snapshots else None
    rows = described.get("numKeys") if described else None
    return rows if isinstance(rows, int) and rows >= 0 else None


FILE = "windows.json"

FieldsByOperation = Mapping[str, Mapping[str, str]]
"""By operation (its signature, in hex) the fields that it takes in, with their Spark SQL types."""


class WindowFieldError(TrideltaError):
    """A field that windows hold has got another type: refused before the start."""

    def __init__(self, flow: str, query: str, field: str, before: str, now: str) -> None:
        self.flow, self.query, self.field, self.before, self.now = flow, query, field, before, now
        super().__init__(
            f'flow "{flow}": field "{field}" is {now} now where the windows of the query "{query}" take it, and they hold it '
            f"as {before}",
            hint=f"cast it to {before} before the window, or give the new form a new field name; or count again: remove the "
            f"flow's checkpoints and run it with --on-fresh-checkpoint reset",
        )


def check_fields(checkpoint: Checkpoint, query: str, taken: FieldsByOperation, *, held: bool) -> None:
    """Refuse a field of another type; else keep what the windows take in, beside the checkpoint, for the next start.

    Args:
        held: whether the windows hold anything.

    A new field is null in the events that windows hold already; a field that is gone is forgotten. Windows of an operation
    that was changed itself begin again, so its fields may be anything.
    """
    file = checkpoint.folder / FILE
    before: dict[str, dict[str, str]] = _read(file) if held else {}
    for operation, fields in taken.items():
        there = before.get(operation, {})
        for name, kind in fields.items():
            if there.get(name, kind) != kind:
                raise WindowFieldError(checkpoint.flow, query, name, there[name], kind)
    # A field that is gone may still be in events that wait: it must not come back as another type.
    wanted = {operation: {**before.get(operation, {}), **fields} for operation, fields in taken.items()}
    if wanted and wanted != before:
        write_json(file, wanted)


def _read(file: Any) -> dict[str, dict[str, str]]:
    fields: dict[str, dict[str, str]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return fields
