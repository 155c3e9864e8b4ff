"""A tick of `flows_sensor` where a hundred deployed flows come forward at once: what it looks up, draws and writes.

A real registry, real small Delta tables as deployed flows leave them, Dagster's own SQLite on disk; no Spark. Before each tick
every flow commits some batches. A tick is the evaluation, and Dagster writing its events: `python -m benchmarks.sensor_tick`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.measure import Ratio, scratch
from pipelines.catalog.flow import DailySlices, FlowSettings, FlowSpec
from pipelines.quality import drop
from pipelines.sources import JsonFiles
from pipelines.trident import Count, DeltaState, Sum, TridentTopology

PEER = "one second, the bar of the design."
BAR_SECONDS = 1.0
MANY, TICKS, BATCHES_A_TICK = 100, 12, 2
# Batches that are there before the first tick: as many as a plot shows.
BEFORE = 40
SCHEMA = "day string, shop string, cents bigint"
TABLES = ("kept", "totals")


def spec(number: int) -> FlowSpec:
    """A flow with a gate, a table of rows and a keyed state, sliced by day."""
    name = f"shop{number:03}"

    def build(settings: FlowSettings) -> TridentTopology:
        topology = TridentTopology(name)
        rows = topology.new_stream(f"{name}_in", JsonFiles(settings.data / name, SCHEMA), slice_by="day")
        sound = rows.gate(drop("column_values_to_not_be_null", column="shop"), name="sound")
        sound.partition_persist(DeltaState(f"{name}_kept"))
        sound.group_by("shop").persistent_aggregate(
            DeltaState(f"{name}_totals"), [Count("sales"), Sum("cents", "cents_sum")]
        )
        return topology

    return FlowSpec(name, "A shop.", build, slices=DailySlices(date(2026, 1, 1), date(2026, 12, 31)))


@dataclass(frozen=True)
class Tick:
    """What one tick took.

    Attributes:
        looked: seconds of the evaluation.
        wrote: seconds that Dagster took to write the events.
        events: how many those were.
        plots: events with plots.
    """

    looked: float
    wrote: float
    events: int
    plots: int

    @property
    def seconds(self) -> float:
        return self.looked + self.wrote


class Shops:
    """A hundred deployed flows, and the sensor that follows them.

    Args:
        home: TRIDELTA_HOME.
        many: how many flows.
        before: batches of each before the first tick.
        more: batches that they may still commit.
    """

    def __init__(self, home: Path, many: int, before: int, more: int) -> None:
        import dagster as dg

        from assets.view import FlowView
        from ops.schedules import flows_sensor
        from pipelines import Lake
        from resources import LakeResource, NimbusResource

        (home / "dagster").mkdir(parents=True)
        settings = FlowSettings(home)
        self.lake = Lake(settings.lake)
        self.views = [FlowView.of(spec(number), settings) for number in range(many)]
        self._template, self._cursor = home / "template", None
        self._before, self._done, self._last = before, before, before + more
        self._nimbus = NimbusResource(store_url=f"sqlite:///{home}/registry.db", root=str(settings.lake))
        self._given = {"nimbus": self._nimbus, "lake": LakeResource(root=str(settings.lake))}
        self._sensor = flows_sensor(self.views)
        self._instance = dg.DagsterInstance.local_temp(str(home / "dagster"))
        self.told: Counter[tuple[str, str]] = Counter()
        """Rows that materializations tell, by table and slice."""
        self.txids: list[tuple[str, int]] = []
        """The batches that they tell, by table, in order."""
        self._lay_out()

    def close(self) -> None:
        """Give Dagster's database back."""
        self._instance.dispose()

    # --- what deployed flows leave ----------------------------------------------------------------------------------

    def _lay_out(self) -> None:
        from pipelines.nimbus.deployed import CATALOG, content_of

        self._commits(self._last)
        for view in self.views:
            for table in TABLES:
                there = self.lake.state_path(f"{view.name}_{table}")
                shutil.copytree(self._template / table, there)
                for version in range(self._before + 1, self._last + 1):
                    (there / "_delta_log" / f"{version:020d}.json").unlink()
            self._checkpoint(view.name)
        with self._nimbus.nimbus() as nimbus:
            for view in self.views:
                definition = {"kind": CATALOG, "name": view.name, "home": str(view.settings.home)}
                nimbus.registry.submit(view.name, content_of(view.topology, definition))
        self._beat()

    def _commits(self, last: int) -> None:
        """The tables of one flow with all their batches: the others get copies."""
        import pyarrow as pa
        from pyspark.sql import types

        from pipelines.state.record import BatchRecord
        from pipelines.state.schema import StateSchema
        from pipelines.state.table import StateTable
        from pipelines.state.writer import StateWriter

        for table, given in _DECLARED.items():
            made = StateTable(table, self._template / table)
            writer = StateWriter(made, StateSchema(flow="shop", sliced=True, **given))
            kinds = {"string": types.StringType(), "bigint": types.LongType()}
            writer.prepare(types.StructType([types.StructField(name, kinds[kind]) for name, kind in given["columns"]]))
            for txid in range(last):
                values = _row(txid)
                names = [*(name for name, _ in given["columns"]), "_slice"]
                rows = pa.table({name: [values[name]] for name in names})
                record = BatchRecord(kind="batch", flow="shop", epoch=1, txid=txid, attempt=1, received=1, rows=1)
                writer.commit_batch(rows, record, "shop/1", known=False)

    def _checkpoint(self, flow: str) -> None:
        from pipelines.execution.checkpoint.engine_files import Checkpoint, Epoch

        checkpoint = Checkpoint(flow, self.lake.checkpoint_path(flow, f"{flow}_in"))
        for part in ("offsets", "commits"):
            (checkpoint.spark / part).mkdir(parents=True)
        (checkpoint.spark / "metadata").touch()
        checkpoint.begin(Epoch(1, 0))
        for batch in range(self._before):
            self._spark_says(checkpoint.spark, batch)

    @staticmethod
    def _spark_says(spark: Path, batch: int) -> None:
        for part in ("offsets", "commits"):
            (spark / part / str(batch)).touch()

    def move(self, batches: int = BATCHES_A_TICK) -> None:
        """Every flow commits some more batches, and beats."""
        for view in self.views:
            for table in TABLES:
                log = self.lake.state_path(f"{view.name}_{table}") / "_delta_log"
                for version in range(self._done + 1, self._done + batches + 1):
                    name = f"{version:020d}.json"
                    shutil.copyfile(self._template / table / "_delta_log" / name, log / name)
            spark = self.lake.checkpoint_path(view.name, f"{view.name}_in") / "spark"
            for batch in range(self._done, self._done + batches):
                self._spark_says(spark, batch)
        self._done += batches
        self._beat()

    def _beat(self) -> None:
        """Rows of the registry as workers write them."""
        from pipelines.nimbus.registry.store import upsert
        from pipelines.nimbus.registry.tables import beats

        now = time.time()
        check = {
            "batches": self._done - self._before,
            "rows": self._done,
            "unexpected": 0,
            "failures": 0,
            "last_failed": None,
        }
        figures = {
            "state": "running",
            "pid": os.getpid(),
            "txid": self._done - 1,
            "attempt": 1,
            "batches": self._done - self._before,
            "rows": self._done,
            "rows_per_second": 1.0,
            "batch_seconds": 0.4,
            "trigger_seconds": 1.0,
            "lag_seconds": 0.0,
            "backlog": {"files": 0.0},
            "partitions": 2,
            "last_batch_at": now,
            "restarts": 0,
            "checks": {"sound/values_to_not_be_null_shop": check},
        }
        with self._nimbus.nimbus() as nimbus:
            found = nimbus.registry.flows()
            with nimbus.store.write() as connection:
                for flow in found:
                    told = {**figures, "group": f"{flow.name}_in"}
                    row = {"supervisor": "s1", "port": 6900, "token": 1, "beat_at": now, "figures": told}
                    upsert(connection, beats, {"flow": flow.serial, "task": 1, **row})

    # --- ticks ------------------------------------------------------------------------------------------------------

    def tick(self) -> Tick:
        """One tick, as Dagster's daemon does it."""
        import dagster as dg

        started = time.perf_counter()
        with dg.build_sensor_context(self._instance, self._cursor, resources=self._given) as context:
            found: Any = self._sensor(context)
        looked = time.perf_counter() - started
        started = time.perf_counter()
        for event in found.asset_events:
            self._instance.report_runless_asset_event(event)
        wrote = time.perf_counter() - started
        self._cursor = found.cursor
        made = [one for one in found.asset_events if isinstance(one, dg.AssetMaterialization) and one.partition]
        ranges: set[tuple[str, int, int]] = set()
        for event in made:
            table = event.asset_key.path[-1]
            rows, first, last = (
                int(str(event.metadata[name].value)) for name in ("dagster/row_count", "txid_first", "txid_last")
            )
            self.told[table, str(event.partition)] += rows
            ranges.add((table, first, last))
        self.txids += [(table, txid) for table, first, last in sorted(ranges) for txid in range(first, last + 1)]
        return Tick(looked, wrote, len(found.asset_events), sum("rows per batch" in one.metadata for one in made))

    def differences(self) -> list[str]:
        """What materializations tell that the tables do not hold, and the other way about."""
        wanted: Counter[tuple[str, str]] = Counter()
        for view in self.views:
            for table in TABLES:
                name, txids = f"{view.name}_{table}", range(self._before, self._done)
                wanted += Counter((name, _row(txid)["day"]) for txid in txids)
                if [txid for one, txid in self.txids if one == name] != list(txids):
                    return [f"{name}: not each batch once, in order"]
        there = {*wanted, *self.told}
        return [f"{one}: {self.told[one]} told, {wanted[one]} there" for one in there if self.told[one] != wanted[one]]


_DECLARED: dict[str, dict[str, Any]] = {
    "kept": {"layout": "rows", "columns": [("day", "string"), ("shop", "string"), ("cents", "bigint")]},
    "totals": {
        "layout": "log",
        "keys": ("shop",),
        "values": [{"name": "sales", "aggregator": "Count"}, {"name": "cents_sum", "aggregator": "Sum"}],
        "columns": [("shop", "string"), ("sales", "bigint"), ("cents_sum", "bigint")],
    },
}


def _row(txid: int) -> dict[str, Any]:
    """The one row of a batch, with the columns of both tables; ten batches a day."""
    day = f"2026-01-{1 + txid // 10:02}"
    return {"day": day, "shop": "a", "cents": txid, "sales": 1, "cents_sum": txid, "_slice": day}


@contextmanager
def shops(many: int = MANY, before: int = BEFORE, more: int = TICKS * BATCHES_A_TICK) -> Iterator[Shops]:
    """A hundred deployed flows in a folder of their own."""
    with scratch("sensor-tick") as home:
        made = Shops(home, many, before, more)
        try:
            yield made
        finally:
            made.close()


def ticks(many: int = MANY) -> tuple[list[Tick], list[Tick]]:
    """The first tick and those in which all flows come forward, and those without anything new until all is told."""
    with shops(many) as here:
        found = [here.tick()]
        for _ in range(TICKS - 1):
            here.move()
            found.append(here.tick())
        rest: list[Tick] = []
        while not rest or rest[-1].events:
            rest.append(here.tick())
        assert here.differences() == [], "each batch is told, and once"
        return found, rest


def measure(spark: Any = None) -> list[Ratio]:
    """The median tick and the longest."""
    found, rest = ticks()
    seconds = [one.seconds for one in (*found, *rest)]
    what = f"a tick of flows_sensor, {MANY} flows that come forward"
    return [
        Ratio(f"{what} (median)", "a second", statistics.median(one.seconds for one in found), 1.0, "s", BAR_SECONDS),
        Ratio(f"{what} (the longest)", "a second", max(seconds), 1.0, "s", BAR_SECONDS),
    ]


def main() -> int:
    """Print each tick; exit code 1 if the median is over the bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flows", type=int, default=MANY)
    given = parser.parse_args()
    found, rest = ticks(given.flows)
    for name, some in (("all move", found), ("none moves", rest)):
        for one in some:
            print(
                f"{name:>10}: {one.seconds:5.2f} s: {one.looked:5.2f} to look, {one.wrote:5.2f} to write "
                f"{one.events:4} events, {one.plots:3} with plots"
            )
    return int(statistics.median(one.seconds for one in found) > BAR_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
