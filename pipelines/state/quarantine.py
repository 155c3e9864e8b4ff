"""The table of the rows that a flow rejected: its columns, and the stages and rules that it names. No Spark here."""

from __future__ import annotations

GROUP = "batch_group"
COLUMNS = tuple((name, "string") for name in ("stage", "rule", "reason", "row", "file", "stream", GROUP))
"""stage: `source`, a gate's name, or `batch`; rule: what rejected it; row: the row as JSON, or the raw text; file: its origin;
stream: of a source or a batch the stream that it came in by; batch_group: which of the batch groups rejected it, for each has
txids and slices of its own. In rows of earlier releases the last two may be null (`rows_of`)."""
SOURCE, BATCH = "source", "batch"
MALFORMED, NO_TIME, WITHOUT_SLICE, BAD_SLICE = "malformed", "no_time", "no_slice", "bad_slice"
NAMED_OTHERWISE, TOO_FAR, UNREAD = "other_fields", "far_time", "not_read"
POISON, WAITING, FILE_GONE = "poison", "waiting", "file_gone"
NAME = "quarantine"


def is_poison(stage: str) -> bool:
    """Return whether rows of a stage are of poison batches."""
    return stage == BATCH
