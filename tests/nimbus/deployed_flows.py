"""Flows that the tests of deployed flows run: named by TRIDELTA_FLOWS, read from files that the tests write."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pipelines.catalog.flow import FlowSettings, FlowSpec
from pipelines.flowmix import Average, Flow, Policy
from pipelines.flowmix import Count as CountEvents
from pipelines.flowmix import Sum as SumEvents
from pipelines.sources import JsonFiles
from pipelines.trident import Count, DeltaState, Sum, TridentTopology

SCHEMA = "id string, k string, v bigint, timestamp bigint"


def numbers(settings: FlowSettings) -> TridentTopology:
    """Numbers by key: all of them, and their sums."""
    topology = TridentTopology("numbers", "Numbers and their sums")
    files = JsonFiles(settings.data / "numbers", SCHEMA, max_files_per_batch=1)
    rows = topology.new_stream("numbers", files)
    rows.partition_persist(DeltaState("numbers_kept"))
    rows.group_by("k").persistent_aggregate(DeltaState("sums_by_key"), [Count("n"), Sum("v", "total")])
    return topology


def readings(settings: FlowSettings) -> Flow:
    """Windows by count and by time, one behind the other."""
    return (
        Flow("readings")
        .stream("readings", JsonFiles(settings.data / "readings", SCHEMA, max_files_per_batch=1))
        .filter("v != 5")
        .partition("k")
        .aggregate(SumEvents("v", "sum"), CountEvents(output="n"), trigger=Policy.count(4), evict=Policy.count(6))
        .persist("reading_sums")
        .aggregate(Average("sum", "avg"), trigger=Policy.time(7), evict=Policy.time(20), clear_on_trigger=True)
        .persist("reading_averages")
        .build()
    )


FLOWS = (
    FlowSpec("numbers", "Numbers and their sums.", numbers),
    FlowSpec("readings", "Windows over readings.", readings),
)


def write(folder: Path, number: int, rows: int = 12) -> None:
    """File `number` of a source: rows of three keys, half a second apart."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for n in range(rows):
        place = number * rows + n
        row = {"id": f"e{place}", "k": f"k{place % 3}", "v": place % 17, "timestamp": 100_000 + place * 500}
        lines.append(json.dumps(row))
    draft = folder / f".{number:05d}.tmp"
    draft.write_text("\n".join(lines) + "\n", "utf-8")
    os.utime(draft, (1_700_000_000 + number, 1_700_000_000 + number))
    draft.rename(folder / f"{number:05d}.json")
