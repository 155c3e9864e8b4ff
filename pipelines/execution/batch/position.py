"""The place of a batch in its source, and which of its rows others have counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipelines.sources.base import file_key

if TYPE_CHECKING:
    from pipelines.state.table import StateTable

Claims = Mapping[str, frozenset[str]]
"""Rows to leave out of a commit: source files by slice."""


@dataclass(frozen=True)
class Position:
    """The place of a batch in its source: the files (as `file_key`) that it takes."""

    files: frozenset[str]
    bytes: int | None
    clocks: Mapping[str, int] = field(default_factory=dict)
    """How far the clocks of the channels that the group reads have come, as the batch says."""
    plan: str | None = None
    """The digest of the batch's entry in Spark's offset log."""
    by_source: tuple[frozenset[str], ...] = ()
    """The same files, of each source by itself."""
    listed: Mapping[str, Any] | None = None
    """What the records say of them where Spark's log may be written over (`pipelines.execution.checkpoint.listed_files`)."""


def claimed_rows(table: StateTable, position: Position, group: str | None = None) -> dict[str, frozenset[str]]:
    """Return the rows of this batch that backfills of the table count already: addresses of files, by slice.

    Args:
        group: in quarantine the batch group.
    """
    claimed = {}
    for slice_, files in table.commits.claims(group).items():
        mine = frozenset(file for file in files if file_key(file) in position.files)
        if mine:
            claimed[slice_] = mine
    return claimed
