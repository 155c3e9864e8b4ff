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
_MB = 1024**2


class Keeps:
    """The batch whose rows began to be put into quarantine, in a file that is there until that ends.

    A file of its own: it can be removed from a disk that is full, and earlier releases do not read it. It counts the starts of
    drivers with no more memory than the largest of them: who has more tries again. Nothing less would end where hosts of two
    sizes take turns.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def end_the_process(self, batch: Batch, plan: str | None) -> bool:
        """Return whether the rows of a batch by a plan ended the process each time, so that they are left where they are."""
        return self._unfinished(_key(batch, plan))[0] >= _MOST

    @property
    def file(self) -> str:
        """Return where it is recorded: without that file it is tried again."""
        return str(self._checkpoint.folder / _FILE)

    @contextmanager
    def begun(self, batch: Batch, plan: str | None) -> Iterator[None]:
        """Record it until what is done here has come to an end, or has failed."""
        key = _key(batch, plan)
        begun, memory = self._unfinished(key)
        self._checkpoint.write(_FILE, {"batch": key, "begun": begun + 1, "memory": memory})
        try:
            yield
        except Exception:
            self._end()
            raise
        self._end()

    def _unfinished(self, key: str) -> tuple[int, int]:
        """Return how many starts with this memory have begun and not ended, and the memory of the largest, in MB."""
        memory = _memory()
        # One that is damaged counts for none: the next one replaces it.
        with suppress(FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
            said = json.loads((self._checkpoint.folder / _FILE).read_bytes())
            # Earlier releases did not say with how much.
            before = int(said.get("memory", 0))
            if said["batch"] == key and memory <= before:
                return int(said["begun"]), before
        return 0, memory

    def _end(self) -> None:
        # What has come of it is known, or told, without this.
        with suppress(OSError, TrideltaError):
            if not _jvm_has_ended():
                (self._checkpoint.folder / _FILE).unlink(missing_ok=True)


def _key(batch: Batch, plan: str | None) -> str:
    return f"{batch.group} {batch.txid} {plan}"


def _memory() -> int:
    """Return the heap that the JVM may have, in MB; 0: there is no JVM."""
    context = SparkContext._active_spark_context
    try:
        return int(context._jvm.java.lang.Runtime.getRuntime().maxMemory()) // _MB  # type: ignore[union-attr]
    except Exception:
        return 0


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
