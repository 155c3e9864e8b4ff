"""Old faults, brought back one at a time: each context manager takes one mended mechanism out, in this process.

The machine of histories must find each of them. What runs in a process of its own imports this file and enters the seed there.
A seed fails where its mechanism is not there any more: then it would prove nothing.
"""

from __future__ import annotations

import contextlib
import decimal
import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

from pipelines.execution.protocol.coordinator import BatchState
from pipelines.execution.report import BatchReport


@contextmanager
def _replaced(*places: tuple[str, str, Any]) -> Iterator[None]:
    """Attributes of modules or classes (`package.module` or `package.module:Class`) replaced."""
    with contextlib.ExitStack() as stack:
        for home, name, new in places:
            module, _, inner = home.partition(":")
            found = importlib.import_module(module)
            stack.enter_context(mock.patch.object(getattr(found, inner) if inner else found, name, new))
        yield


@contextmanager
def late_writer() -> Iterator[None]:
    """1: a writer does not look at the transaction ids of the table that commits."""

    def unchecked(self: Any, table: Any) -> dict[str, int]:
        record = self.record
        return (
            {self.app_id: record.replay if record.kind == "replay" else record.txid} if record.kind != "slice" else {}
        )

    with _replaced(("pipelines.state.turns:Turn", "judge", unchecked)):
        yield


@contextmanager
def channel_by_files() -> Iterator[None]:
    """2: a channel is read by files, in the order in which Spark admits them, not by commits."""

    def stream(self: Any, spark: Any) -> Any:
        reader = spark.readStream.format("delta").option("skipChangeCommits", "true")
        reader = reader.option("maxFilesPerTrigger", self._commits_a_batch or 1000)
        frames = [self._not_done(one, reader.load(str(self._paths[one]))) for one in self.channels]
        found = self._union(frames)
        return found.unionByName(self._every_second(spark), allowMissingColumns=True) if self._ticks else found

    with _replaced(
        ("pipelines.sources.channels:ChannelSource", "stream", stream),
        # And a commit is a file per slice again: its rows keep the column.
        ("pipelines.execution.batch.stream_batch", "SLICE_COLUMN", "no such column"),
    ):
        yield


@contextmanager
def claims_not_compared() -> Iterator[None]:
    """3: nobody asks whether the files that backfills have claimed are still those of the source."""

    def compare(self: Any, *_: Any) -> None:
        pass

    with _replaced(("pipelines.execution.runners.claims:SameSources", "_compare", compare)):
        yield


@contextmanager
def checkpoint_not_compared() -> Iterator[None]:
    """4: nobody asks whether a checkpoint and the tables belong together."""

    def check(self: Any, tables: Any = (), **_: Any) -> None:
        pass

    with _replaced(("pipelines.execution.checkpoint.belonging:Belonging", "check", check)):
        yield


@contextmanager
def quarantine_of_the_flow() -> Iterator[None]:
    """5: what a batch group removes from quarantine by txid or slice goes for all groups of the flow."""
    with _replaced(("pipelines.execution.batch.group", "rows_of", lambda *_: "true")):
        yield


@contextmanager
def decimals_as_doubles() -> Iterator[None]:
    """6: a key of type decimal is compared as a literal without a type, which is a double."""
    literals = importlib.import_module("pipelines.state.literals")
    exact = literals.literal

    def literal(column: str, value: Any, kind: Any) -> str:
        known = literals.typed(column, value, kind)
        return str(known) if isinstance(known, decimal.Decimal) else exact(column, value, kind)

    with _replaced(
        ("pipelines.state.literals", "literal", literal),
        ("pipelines.state.literals", "is_wide", lambda kind: False),
    ):
        yield


@contextmanager
def skip_without_draining() -> Iterator[None]:
    """7: a skipped batch is not read, so the windows of its query commit no state."""
    streaming = importlib.import_module("pipelines.execution.runners.stream")
    run = streaming.StreamRunner._run

    def undrained(self: Any, frame: Any, batch_id: int) -> BatchReport:
        txid = self._epoch.txid(batch_id)
        if self._tracker.state(txid) is BatchState.SKIPPED:
            return BatchReport(self._group.topology.name, self._group.name, txid, 0, 0, 0, (), 0.0, skipped=True)
        return run(self, frame, batch_id)

    with _replaced(("pipelines.execution.runners.stream:StreamRunner", "_run", undrained)):
        yield


SEEDS: dict[int, Callable[[], AbstractContextManager[None]]] = {
    1: late_writer,
    2: channel_by_files,
    3: claims_not_compared,
    4: checkpoint_not_compared,
    5: quarantine_of_the_flow,
    6: decimals_as_doubles,
    7: skip_without_draining,
}
"""By the number of the old fault."""
