"""A flow with a run a day, and a hand on all commits of slices: named by TRIDELTA_FLOWS, the processes of the UI load it.

A commit waits in the midst of a slice while the test has put a file with that slice's name below `hold`. Beside it lie
`.reached` once it waits, and `.asked` once its run is asked to end.
"""

from __future__ import annotations

import os
import signal
import time
from datetime import date
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa

from pipelines.catalog import DailySlices, FlowSettings, FlowSpec
from pipelines.catalog.flights_data import FLIGHTS_SCHEMA
from pipelines.sources import JsonFiles
from pipelines.state.record import BatchRecord
from pipelines.state.writer import StateWriter
from pipelines.trident import Count, DeltaState, TridentTopology

LAST_BEFORE_HOLD = {"flights": "carrier_delay", "daily": "daily_flights"}
"""By flow: the table whose commit of the held slice is the last one before the wait."""


def _daily(settings: FlowSettings) -> TridentTopology:
    topology = TridentTopology("daily", "Flights a day.")
    files = JsonFiles(settings.data / "flights", FLIGHTS_SCHEMA)
    flights = topology.new_stream("flights_a_day", files, slice_by="date")
    flights.project(["date", "carrier", "flight"]).partition_persist(DeltaState("daily_flights"))
    flights.group_by("date").persistent_aggregate(DeltaState("daily_counts"), Count(), "flights")
    return topology


FLOWS = (FlowSpec("daily", "Flights a day.", _daily, DailySlices(date(2013, 1, 1), date(2013, 12, 31), 1)),)

_replace_slice = StateWriter.replace_slice


def _held(self: StateWriter, rows: pa.Table, record: BatchRecord, *more: Any, **named: Any) -> int:
    version = _replace_slice(self, rows, record, *more, **named)
    if self.table.name == LAST_BEFORE_HOLD.get(record.flow):
        hold = Path(os.environ["TRIDELTA_HOME"]) / "hold" / f"{record.flow} {record.slice}"
        if hold.exists():
            _wait(hold)
    return version


def _wait(hold: Path) -> None:
    """Wait, in the run's main thread, until the test lets go; what asks the run to end goes to whoever has held it back."""
    before: Any = signal.getsignal(signal.SIGINT)

    def asked(number: int, frame: FrameType | None) -> None:
        before(number, frame)
        hold.with_suffix(".asked").touch()

    signal.signal(signal.SIGINT, asked)
    hold.with_suffix(".reached").touch()
    while hold.exists():
        time.sleep(0.1)
    signal.signal(signal.SIGINT, before)


if "TRIDELTA_HOME" in os.environ:
    StateWriter.replace_slice = _held  # type: ignore[method-assign]
