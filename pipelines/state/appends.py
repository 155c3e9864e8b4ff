"""Commits that only append rows, read without opening the table's new version."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.state.delta_log import actions
from pipelines.state.reading import Reader
from pipelines.state.schema import GEN, ROLL_UP, SLICE_COLUMN


def appended_rows(path: Path, version: int, reader: Reader, most: int) -> pa.Table | None:
    """The user's columns of the rows that a commit added to a log state, typed as the state's.

    Args:
        path: the table's folder.
        version: the commit.
        reader: of an earlier version.
        most: how many rows are read.

    Returns:
        None if the commit does anything else (removes files, changes the table), or adds more rows, or rows that the
        state's roll-up stands for.
    """
    try:
        adds = list(_adds(path, version))
    except _NotAnAppendError:
        return None
    rolled_up = reader.snapshot.roll_up
    for add in adds:
        values = add["partitionValues"]
        if values[SLICE_COLUMN] == ROLL_UP or (rolled_up is not None and int(values[GEN]) <= rolled_up):
            return None
    if sum(_rows(add, most) for add in adds) > most:
        return None
    types = reader.snapshot.types
    schema = pa.schema([(name, types[name]) for name in reader.declared.names if name in types])
    found = [schema.empty_table()]
    for add in adds:
        file = pq.ParquetFile(path / unquote(add["path"]))
        found.append(file.read(columns=schema.names).select(schema.names).cast(schema))
    return pa.concat_tables(found)


class _NotAnAppendError(Exception):
    """The commit does more than append."""


def _adds(path: Path, version: int) -> Iterator[dict[str, Any]]:
    for name, action in actions(path, version):
        if name == "add" and not action.get("deletionVector") and "://" not in action["path"]:
            yield action
        elif name not in ("commitInfo", "txn"):
            raise _NotAnAppendError


def _rows(add: dict[str, Any], unknown: int) -> int:
    """Rows of a file by its statistics; too many where it has none."""
    stats = json.loads(add.get("stats") or "{}")
    return int(stats.get("numRecords", unknown + 1))
