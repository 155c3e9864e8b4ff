"""An event flow whose windows run in the batch of its source, three one behind the other: what its kill tests run over."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from pipelines import Lake, Runtime, spark_session
from pipelines.execution.checkpoint.window_begin import StateFolder, StateObjects
from pipelines.flowmix import Count, Flow, Policy, Sum
from pipelines.sources import FixedBatches
from tests.crash.driver import Killer
from tests.crash.flow_case import SCHEMA, batch

# The files of batch 11 are removed once two more have ended.
BATCHES = 16
TABLES = ("sums", "windowed_readings", "late_windowed_readings")


def flow(windows: str = "batch") -> Flow:
    return (
        Flow("windowed", windows=windows)
        .stream("readings", FixedBatches(SCHEMA, [batch(n) for n in range(BATCHES)]))
        .filter("v != 5")
        .partition("k")
        .aggregate(Sum("v", "sum"), Count(output="n"), trigger=Policy.time(3), evict=Policy.time(9))
        .sort("sum desc", tumbling=Policy.count(2))
        .aligned(Sum("sum", "sum"), Count(output="n"), every=2)
        .persist("sums")
        .filter("sum > 9")
        .output()
        .build()
    )


def contents(lake: Lake) -> dict[str, list[tuple[Any, ...]]]:
    """Every table's rows, in one order."""
    return {
        name: sorted((tuple(row.values()) for row in lake.state(name).scan().to_pylist()), key=repr) for name in TABLES
    }


class KilledFiles:
    """Files of state whose process ends in the middle of a write, behind one, or before a file is removed."""

    def __init__(self, files: StateFolder | StateObjects, killer: Killer) -> None:
        self._files, self._killer = files, killer

    def write(self, name: str, data: bytes) -> None:
        own, txid = self._killer, int(name.removeprefix(".").split("-")[0]) if name[0].isdigit() else -1
        if own.kill.get("moment") == "writing" and txid >= own.kill["txid"]:
            # Of an object nothing is there before it is whole.
            if isinstance(self._files, StateFolder):
                temporary = self._files._folder / f".{name}.1.tmp"
                with temporary.open("xb") as out:
                    out.write(data[: len(data) // 2])
                    out.flush()
                    os.fsync(out.fileno())
            own.end()
        self._files.write(name, data)
        own("written", "", txid)

    def read(self, name: str) -> bytes:
        return self._files.read(name)

    def names(self) -> Sequence[str]:
        return self._files.names()

    def remove(self, name: str) -> None:
        self._killer("removing", "", int(name.removeprefix(".").split("-")[0]))
        self._files.remove(name)
        self._killer("removed", "", int(name.removeprefix(".").split("-")[0]))

    def settle(self) -> None:
        self._files.settle()


if __name__ == "__main__":
    import json

    from pipelines.execution.batch import driver_windows, windows_change
    from pipelines.execution.checkpoint import window_begin
    from tests.crash.windows_case import flow as shipped
    from tests.lakes import lake_place

    plan = json.loads(sys.argv[1])
    session = spark_session(
        "crash", master="local[2]", conf={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    )
    killer, state_files = Killer(plan["kill"]), window_begin.state_files
    driver_windows.state_files = lambda checkpoint: KilledFiles(state_files(checkpoint), killer)  # type: ignore
    windows_change.state_files = driver_windows.state_files
    runtime = Runtime(session, Lake(lake_place(plan["home"])), listeners=[killer], max_attempts=30)
    runtime.catch_up(shipped())
