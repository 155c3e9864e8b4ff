"""How long Dagster's definitions take to load with a hundred flows: `python -m benchmarks.definition_load`.

The flows are half topologies, half event flows, each with a gate, a suite, slices or windows. The bar is three seconds of
processor time, Dagster's own import among them: what a load takes that has a core to itself. The seconds of the clock are
shown beside them; where others use the cores they say more of these.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

from pipelines.catalog.flow import PROJECT, DailySlices, FlowSettings, FlowSpec
from pipelines.flowmix import Average, Count, Flow, Policy
from pipelines.quality import drop, fail
from pipelines.sources import JsonFiles
from pipelines.trident import Count as CountOf
from pipelines.trident import DeltaState, MapGet, Sum, TridentTopology

BAR_SECONDS = 3.0
SCHEMA = "day string, at timestamp_ntz, shop string, cents bigint"
HOW_MANY = "TRIDELTA_BENCHMARK_FLOWS"

_PROGRAM = """
import sys, time
begun = time.perf_counter()
before = time.process_time()
from definitions import defs
repository = defs.get_repository_def()
seconds = time.perf_counter() - begun, time.process_time() - before
assert len(defs.resolve_asset_graph().get_all_asset_keys()) > int(sys.argv[1])
print(*seconds)
"""


def topology_spec(name: str) -> FlowSpec:
    """A topology with a gate, a state, a question and slices."""

    def build(settings: FlowSettings) -> TridentTopology:
        topology = TridentTopology(name)
        rows = topology.new_stream(f"{name}_in", JsonFiles(settings.data / name, SCHEMA), slice_by="day")
        sound = rows.gate(drop("column_values_to_not_be_null", column="shop"), name="sound")
        totals = sound.group_by("shop").persistent_aggregate(
            DeltaState(f"{name}_totals"), [CountOf("sales"), Sum("cents", "cents_sum")]
        )
        topology.new_query_stream("shop", "shop string").state_query(totals, "shop", MapGet(), ["sales"])
        return topology

    suites = {f"{name}_totals": (fail("column_values_to_be_unique", column="shop"),)}
    return FlowSpec(name, "A topology.", build, slices=DailySlices(date(2026, 1, 1)), suites=suites)


def event_spec(name: str) -> FlowSpec:
    """Events with a gate and a window."""

    def build(settings: FlowSettings) -> Flow:
        return (
            Flow(name)
            .stream(f"{name}_in", JsonFiles(settings.data / name, SCHEMA), timestamp="at")
            .gate(drop("column_values_to_not_be_null", column="shop"), name="sound")
            .partition("shop")
            .aggregate(Count("sales"), Average("cents", "avg"), trigger=Policy.count(2), evict=Policy.count(3))
            .filter("avg > 1000")
            .persist(f"{name}_told")
            .build()
        )

    suites = {f"{name}_told": (fail("column_values_to_be_between", column="avg", min_value=1000),)}
    return FlowSpec(name, "Events.", build, suites=suites)


# Named by TRIDELTA_FLOWS, this module is a package of flows like a user's; without the variable it holds none.
FLOWS = tuple(
    spec
    for n in range(int(os.environ.get(HOW_MANY, "0")) // 2)
    for spec in (topology_spec(f"topology_{n}"), event_spec(f"events_{n}"))
)


def load_seconds(flows: int, home: str) -> tuple[float, float]:
    """Load the definitions in a process of their own: seconds of the clock and of the processor, without Python's start."""
    environment = os.environ | {
        "TRIDELTA_FLOWS": "benchmarks.definition_load",
        HOW_MANY: str(flows),
        "TRIDELTA_HOME": home,
    }
    command = [sys.executable, "-W", "ignore", "-c", _PROGRAM, str(flows)]
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    clock, processor = done.stdout.split()[-2:]
    return float(clock), float(processor)


def main() -> int:
    """Print the seconds of some loads; exit code 1 if not even the best is under the bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flows", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    begun, found = time.monotonic(), []
    with tempfile.TemporaryDirectory() as home:
        for _ in range(given.rounds):
            found.append(load_seconds(given.flows, str(Path(home))))
    best = min(processor for _, processor in found)
    print(f"{given.flows} flows beside the catalog's own, {given.rounds} loads in {time.monotonic() - begun:.0f} s")
    print("clock     " + "  ".join(f"{clock:6.2f}" for clock, _ in found) + " s")
    print(
        "processor "
        + "  ".join(f"{processor:6.2f}" for _, processor in found)
        + f" s; best {best:.2f}, bar {BAR_SECONDS:g}"
    )
    return int(best > BAR_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
