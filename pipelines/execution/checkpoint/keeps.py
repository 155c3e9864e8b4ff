"""The record of a batch whose rows are being put into quarantine: where that ends the process, the next start does not do it for
ever.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from pyspark import SparkContext

from pipelines.errors import TrideltaError

if TYPE_CHECKING:
    from pipelines.execution.checkpoint.engine_files import Checkpoint
    from pipelines.execution.protocol.coordinator import Batch

_FILE = "keeping.json"
_MOST = 2
"""So many must have begun and not ended: the first may have been killed by somebody."""


class Keeps:
    """The batch whose rows began to be put into quarantine, in a file that is there until that ends.

    A file of its own: it can be removed from a disk that is full, and earlier releases do not read it.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def end_the_process(self, batch: Batch, plan: str | None) -> bool:
        """Return whether the rows of a batch by a plan ended the process each time, so that they are left where they are."""
        return self._unfinished(_key(batch, plan)) >= _MOST

    @contextmanager
    def begun(self, batch: Batch, plan: str | None) -> Iterator[None]:
        """Record it until what is done here has come to an end, or has failed."""
        key = _key(batch, plan)
        self._checkpoint.write(_FILE, {"batch": key, "begun": self._unfinished(key) + 1})
        try:
            yield
        except Exception:
            self._end()
            raise
        self._end()

    def _unfinished(self, key: str) -> int:
        # One that is damaged counts for none: the next one replaces it.
        with suppress(FileNotFoundError, ValueError, TypeError, KeyError):
            said = json.loads((self._checkpoint.folder / _FILE).read_bytes())
            return int(said["begun"]) if said["batch"] == key else 0
        return 0

    def _end(self) -> None:
        # What has come of it is known, or told, without this.
        with suppress(OSError, TrideltaError):
            if not _jvm_has_ended():
                (self._checkpoint.folder / _FILE).unlink(missing_ok=True)


def _key(batch: Batch, plan: str | None) -> str:
    return f"{batch.group} {batch.txid} {plan}"


def _jvm_has_ended() -> bool:
    """Return whether Spark's JVM is gone: this process outlives it for a moment, in which all calls fail."""
    context = SparkContext._active_spark_context
    if context is None:
        return False
    try:
        context._jvm.System.nanoTime()  # type: ignore[union-attr]
    except Exception:
        return True
    return False
