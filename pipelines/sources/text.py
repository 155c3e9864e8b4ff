"""Folders of text files, a field a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelines.graph.fields import checked_name
from pipelines.sources.base import FileSource


class TextFiles(FileSource):
    """A folder of text files (UTF-8); each line is a tuple of one string field.

    Gives: `<field> string`, the line without its end; an empty line is an empty string, no line is malformed.
    Positions: the files. Transactional: the files are immutable, so a replayed batch reads the same lines.

    Args:
        path: the folder. Files whose names start with `_` or `.` are left out; `.gz` and `.bz2` files are unpacked.
        field: the name of the field.
        max_files_per_batch: at most so many files a batch; None: no limit.
        max_bytes_per_batch: at most so many bytes a batch (at least one file).
        options: further options of Spark's text reader, e.g. `lineSep`.

    Raises:
        BadNameError: if the field's name is not legal.
    """

    format = "text"
    text = False

    def __init__(
        self,
        path: str | Path,
        field: str = "line",
        *,
        max_files_per_batch: int | None = None,
        max_bytes_per_batch: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            path,
            f"{checked_name('field', field)} string",
            max_files_per_batch=max_files_per_batch,
            max_bytes_per_batch=max_bytes_per_batch,
            **options,
        )

    def _options(self) -> dict[str, Any]:
        return {**self.options, "wholetext": "false"}
