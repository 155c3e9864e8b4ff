"""Flows that the tests of deployed flows run: named by TRIDELTA_FLOWS, read from files that the tests write."""

from __future__ import annotations

import json
import os
from typing import Any

from pipelines.catalog.flow import FlowSettings, FlowSpec
from pipelines.flowmix import Average, Flow, Policy, not_eq
from pipelines.flowmix import Count as CountEvents
from pipelines.flowmix import Sum as SumEvents
from pipelines.places.location import Location, Place
from pipelines.quality import fail
from pipelines.sources import JsonFiles
from pipelines.trident import Count, DeltaState, Max, SnapshotGet, Sum, TridentTopology

SCHEMA = "id string, k string, v bigint, timestamp bigint"
ROWS = 12
"""Rows of a file."""


def numbers(
    settings: FlowSettings, name: str = "numbers", kept: str = "numbers_kept", sums: str = "sums_by_key"
) -> TridentTopology:
    """Numbers by key: all of them, and their sums."""
    topology = TridentTopology(name, "Numbers and their sums")
    files = JsonFiles(settings.data / name, SCHEMA, max_files_per_batch=4)
    rows = topology.new_stream(name, files)
    rows.partition_persist(DeltaState(kept))
    rows.group_by("k").persistent_aggregate(DeltaState(sums), [Count("n"), Sum("v", "total")])
    return topology


def apart(settings: FlowSettings) -> TridentTopology:
    """As `numbers`, for an application of its own."""
    return numbers(settings, "apart", "apart_kept", "apart_sums")


def guarded(settings: FlowSettings) -> TridentTopology:
    """Numbers behind a gate that refuses batches with negative ones."""
    topology = TridentTopology("guarded", "Numbers from 0 on")
    rows = topology.new_stream("guarded", JsonFiles(settings.data / "guarded", SCHEMA, max_files_per_batch=4))
    rows = rows.gate(fail("column_values_to_be_between", column="v", min_value=0), name="from_zero")
    rows.partition_persist(DeltaState("guarded_kept"))
    return topology


def asking(settings: FlowSettings) -> TridentTopology:
    """Numbers that ask the state of their own windows: each of two queries reads a table that the other one makes."""
    topology = TridentTopology("asking", "Numbers beside the largest of windows")
    rows = topology.new_stream("asking", JsonFiles(settings.data / "asking", SCHEMA, max_files_per_batch=4))
    top = rows.tumbling_window(4, "v", Max(), "m").persistent_aggregate(DeltaState("asking_top"), "m", Max(), "m")
    kept = rows.state_query(top, None, SnapshotGet(), "top").project(["id", "k", "v", "timestamp"])
    kept.partition_persist(DeltaState("asking_kept"))
    return topology


def readings(settings: FlowSettings) -> Flow:
    """Windows by count and by time, one behind the other."""
    return (
        Flow("readings", windows="channels")
        .stream("readings", JsonFiles(settings.data / "readings", SCHEMA, max_files_per_batch=4))
        .filter(not_eq("v", 5))
        .partition("k")
        .aggregate(SumEvents("v", "sum"), CountEvents(output="n"), trigger=Policy.count(4), evict=Policy.count(6))
        .persist("reading_sums")
        .aggregate(Average("sum", "avg"), trigger=Policy.time(7), evict=Policy.time(20), clear_on_trigger=True)
        .persist("reading_averages")
        .build()
    )


FLOWS = (
    FlowSpec("numbers", "Numbers and their sums.", numbers),
    FlowSpec("apart", "Numbers and their sums, apart.", apart),
    FlowSpec("guarded", "Numbers from 0 on.", guarded),
    FlowSpec("asking", "Numbers beside the largest of windows.", asking),
    FlowSpec("readings", "Windows over readings.", readings),
)


def rows_of(number: int, rows: int = ROWS) -> list[dict[str, Any]]:
    """What file `number` of a source holds: rows of three keys, half a second apart."""
    places = range(number * rows, (number + 1) * rows)
    return [{"id": f"e{n}", "k": f"k{n % 3}", "v": n % 17, "timestamp": 100_000 + n * 500} for n in places]


def write(folder: Place, number: int, rows: int = ROWS) -> None:
    """File `number` of a source."""
    put(folder, number, rows_of(number, rows))


def put(folder: Place, number: int, rows: list[dict[str, Any]]) -> None:
    """A file of some rows, there at once and whole; newer than those with lower numbers, for sources read by age."""
    text = "\n".join(map(json.dumps, rows)) + "\n"
    if isinstance(folder, Location):
        (folder / f"{number:05d}.json").write_bytes(text.encode())
        return
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{number:05d}.tmp"
    draft.write_text(text, "utf-8")
    os.utime(draft, (1_700_000_000 + number, 1_700_000_000 + number))
    draft.rename(folder / f"{number:05d}.json")
