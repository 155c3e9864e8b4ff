"""The fields that the windows of a query take in: what may change of them while windows of before are in the checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipelines.errors import TrideltaError
from pipelines.execution.checkpoint.engine_files import write_json

if TYPE_CHECKING:
    from pipelines.execution.checkpoint.engine_files import Checkpoint

FILE = "windows.json"

Taken = Mapping[str, Mapping[str, str]]
"""By operation (its signature, in hex) the fields that it takes in, with their Spark SQL types."""


class WindowFieldError(TrideltaError):
    """A field that windows hold has got another type: refused before the start."""

    def __init__(self, flow: str, query: str, field: str, before: str, now: str) -> None:
        self.flow, self.query, self.field, self.before, self.now = flow, query, field, before, now
        super().__init__(
            f'flow "{flow}": field "{field}" is {now} now where the windows of the query "{query}" take it, and they hold it '
            f"as {before}",
            hint=f"cast it to {before} before the window, or give the new form a new field name; or count anew: remove the "
            f"flow's checkpoints and run it with --on-fresh-checkpoint reset",
        )


def check_fields(checkpoint: Checkpoint, query: str, taken: Taken) -> None:
    """Refuse a field of another type; else keep what the windows take in, beside the checkpoint, for the next start.

    A new field is null in the events that windows hold already; a field that is gone is forgotten. Windows of an operation
    that was changed itself begin anew, so its fields may be anything.

    Raises:
        WindowFieldError
    """
    file = checkpoint.folder / FILE
    before: dict[str, dict[str, str]] = _read(file) if checkpoint.has_state else {}
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
    found: dict[str, dict[str, str]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return found
