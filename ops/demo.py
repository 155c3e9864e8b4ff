"""`make demo`: a year of flights through the pipeline, run by Dagster, and what it found.

`python -m ops.demo [--days N] [--lake s3://bucket/lake]`. What it does stays in the project's home, or in the store that the
lake is in, and can be seen with `make ui`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
from rich.progress import Progress, TaskID

from ops.cli import rendering
from ops.demo_store import store_for
from ops.web import ui
from pipelines import Lake
from pipelines.catalog import FlowSettings, FlowSpec, flow, flows
from pipelines.catalog.flights_data import LayoutReport, lay_out
from pipelines.catalog.flow import LAKE
from pipelines.errors import TrideltaError, UnknownStateError
from pipelines.execution.report import BatchReport
from pipelines.graph import events, nodes

DAYS = 365


@dataclass
class Clock:
    """The time that each phase took."""

    phases: list[dict[str, Any]] = field(default_factory=list)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the time of the block."""
        started = time.monotonic()
        yield
        self.add(name, time.monotonic() - started)

    def add(self, name: str, seconds: float, note: str = "") -> None:
        self.phases.append({"phase": name, "seconds": round(seconds, 1), "what": note})

    def note(self, text: str) -> None:
        """Say what the last phase did."""
        self.phases[-1]["what"] = text


STREAM = "flights"
"""The stream of each flow by which its progress is shown."""


def counted(lake: Lake, spec: FlowSpec, settings: FlowSettings) -> int:
    """Count the flights that earlier runs of a flow have accounted for."""
    topology = spec.topology(settings)
    spout = next(spout for spout in topology.spouts if spout.stream == STREAM)
    behind = [node for node in topology.graph.descendants(spout.id) if isinstance(node, nodes.PersistNode)]
    table = lake.written_by(next(node for node in behind if not isinstance(node, nodes.LatePersistNode)))
    batches = table.commits.batches() if table.exists() else []
    return sum(batch.record.received for batch in batches if batch.record is not None)


def start_spark(clock: Clock) -> None:
    """Start the session that the run will find; beside the writing of the files, which needs no JVM."""
    from pipelines import spark_session

    started = time.monotonic()
    spark_session("tridelta")
    clock.add("starting Spark", time.monotonic() - started, "beside the files")


def lay(settings: FlowSettings, days: int, shown: Progress, clock: Clock) -> LayoutReport:
    """Lay out the files of the year, one per day."""
    task = shown.add_task("one file per day", total=days, last="")
    with clock.phase("writing one file per day"):
        report = lay_out(settings.data, days=days, progress=lambda done, _: shown.update(task, completed=done))
    clock.note(f"{report.flights:,} flights in {report.days} files, {report.files_written} written")
    return report


def location() -> dg.Definitions:
    """Load the definitions that the UI shows, by name as Dagster does from workspace.yaml."""
    definitions: dg.Definitions = importlib.import_module("definitions").defs
    return definitions


def catch_up(
    settings: FlowSettings, laid: LayoutReport, shown: Progress
) -> tuple[dg.ExecuteInProcessResult, list[BatchReport]]:
    """Run catch_up_job of the real definitions, recorded in the project's Dagster instance."""
    from assets.events.reporting import watching

    batches: list[BatchReport] = []
    lake, tasks = Lake(settings.lake), dict[str, TaskID]()
    for spec in flows():
        before = min(counted(lake, spec, settings), laid.flights)
        tasks[spec.name] = shown.add_task(spec.name, total=laid.flights, completed=before, last="")
        # Stops the clock of what has nothing left to do.
        shown.update(tasks[spec.name], completed=before)

    def on_batch(report: BatchReport) -> None:
        if report.flow == "flights" and not any(earlier.flow == "flights" for earlier in batches):
            airports(lake, "Flights by airport after the first batch (the flow still runs)")
        batches.append(report)
        text = f"{report.group}, batch {report.txid}: {report.received:,} rows in {report.seconds:.1f} s"
        shown.update(tasks[report.flow], advance=report.received if report.group == STREAM else 0, last=text)

    with dg.DagsterInstance.get() as instance, watching(on_batch):
        result = (
            location()
            .resolve_job_def("catch_up_job")
            .execute_in_process(
                instance=instance,
                run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
                # By this the UI knows that the run belongs to the code location which it loads.
                tags={".dagster/repository": "__repository__@tridelta", "started_by": "make demo"},
                raise_on_error=False,
            )
        )
    return result, batches


def step_seconds(result: dg.ExecuteInProcessResult) -> dict[str, float]:
    """Return how long each step of the run took."""
    return {
        event.step_key: event.step_success_data.duration_ms / 1000
        for event in result.all_events
        if event.is_step_success and event.step_key is not None
    }


def failure_text(result: dg.ExecuteInProcessResult) -> str:
    """Return what the first failed step said."""
    for event in result.all_events:
        if event.is_step_failure:
            data = event.step_failure_data
            said = data.user_failure_data.description if data.user_failure_data else None
            return said or (data.error.message if data.error else "") or "the run failed"
    return "the run failed"


def findings(settings: FlowSettings) -> None:
    """Print what the states hold now: asked of a query stream, and read from the tables."""
    from pipelines import Runtime, spark_session

    spec = flow("flights")
    lake = Lake(settings.lake)
    question = spec.queries[0]
    answer = Runtime(spark_session("tridelta"), lake).query(spec.topology(settings), "delays", list(question.args))
    answer = sorted((row for row in answer if row["flights"]), key=lambda row: -row["avg_dep_delay"])
    rendering.rows("Carriers by average departure delay (query stream `delays`)", answer)
    airports(lake, "Flights by airport (state `route_traffic`)")
    accounting(lake)


def airports(lake: Lake, title: str) -> None:
    """Print what the state `route_traffic` holds now, by airport of departure."""
    origins: Counter[str] = Counter()
    for row in lake.state("route_traffic").scan().to_pylist():
        origins[row["origin"]] += row["flights"]
    rendering.rows(title, [{"origin": origin, "flights": flights} for origin, flights in sorted(origins.items())])


def event_findings(settings: FlowSettings, days: int) -> bool:
    """Print what the event flows found, and return whether pandas finds the same."""
    lake = Lake(settings.lake)
    alerts = lake.state("delay_alerts").scan().to_pylist()
    shown = ("event_time", "origin", "departures", "avg_delay", "max_delay")
    rendering.rows(
        f"The worst of {len(alerts):,} alerts (flow `late_departures`)",
        _worst(alerts, "avg_delay", 5, shown),
    )
    rendering.rows("Departures by the hour's visibility (flow `departure_weather`)", _by_visibility(lake))
    routes = lake.state("worst_routes_of_the_day").scan().to_pylist()
    last = max((row["date"] for row in routes), default="no day yet")
    shown = ("origin", "dest", "departures", "avg_delay", "max_delay")
    rendering.rows(
        f"The worst routes of {last} (flow `worst_routes`)",
        _worst([row for row in routes if row["date"] == last], "avg_delay", 10, shown),
    )
    rendering.rows("Notices of flights an hour late (flow `delay_notices`)", _notices(lake))
    return confirmed(lake, days)


def _worst(rows: Sequence[Mapping[str, Any]], by: str, n: int, columns: Sequence[str]) -> list[dict[str, Any]]:
    worst = [{name: row[name] for name in columns} for row in sorted(rows, key=lambda row: -row[by])[:n]]
    return [
        row | {"event_time": f"{row['event_time']:%Y-%m-%d %H:%M}"} if "event_time" in row else row for row in worst
    ]


def _by_visibility(lake: Lake) -> list[dict[str, Any]]:
    """Average delays where one sees less than a mile, up to five, and farther."""
    import pyarrow.compute as pc

    rows = lake.state("departures_with_weather").scan()
    low, middle = pc.less(rows["visib"], 1), pc.less(rows["visib"], 5)
    names = pc.if_else(low, "less than 1 mile", pc.if_else(middle, "1 to 5 miles", "5 miles and more"))
    grouped = rows.append_column("visibility", names).group_by("visibility")
    groups = grouped.aggregate([("flight", "count"), ("dep_delay", "mean"), ("wind_speed", "mean")]).to_pylist()
    return [
        {
            "visibility": row["visibility"],
            "flights": row["flight_count"],
            "avg_delay": row["dep_delay_mean"],
            "avg_wind_mph": row["wind_speed_mean"],
        }
        for row in sorted(groups, key=lambda row: -row["dep_delay_mean"])
    ]


def _notices(lake: Lake) -> list[dict[str, Any]]:
    """Count by airport the flights that were an hour late, and those that were announced."""
    announced = Counter(lake.state("long_delay_notices").scan()["origin"].to_pylist())
    # One scan: two of them need not give the rows in the same order.
    rows = lake.channel("delay_notices__flights__flights").scan()
    pairs = zip(rows["origin"].to_pylist(), rows[events.ID].to_pylist(), strict=True)
    sent = Counter(origin for origin, id_ in pairs if id_ is not None)
    return [
        {"origin": origin, "an hour late": n, "announced": announced[origin], "muted": n - announced[origin]}
        for origin, n in sorted(sent.items())
    ]


def confirmed(lake: Lake, days: int) -> bool:
    """Compare the tables of the event flows with pandas, which computes them from the published data."""
    from pipelines.catalog.flights_expected import compared

    comparisons = compared(lake, days)
    rendering.rows(
        "The same computed by pandas",
        [
            {
                "table": comparison.table,
                "rows": comparison.rows,
                "missing": comparison.missing,
                "too many": comparison.more,
                "verdict": "the same" if comparison.agrees else "DIFFERS",
            }
            for comparison in comparisons
        ],
    )
    return all(comparison.agrees for comparison in comparisons)


def accounting(lake: Lake) -> None:
    """Print where every row went, and where the tables are."""
    committed = lake.state("departures").scan().num_rows
    try:
        rejected = lake.quarantine("flights").scan().to_pylist()
    except UnknownStateError:
        rejected = []
    rendering.say(f"\n{committed + len(rejected):,} rows: {committed:,} committed, {len(rejected):,} in quarantine")
    for rule, rows in Counter(row["rule"] for row in rejected).most_common():
        rendering.say(f"  {rows:,} rejected by: {rule}")
    rendering.say("\nDelta tables:")
    for table in (*map(lake.state, lake.states()), *map(lake.channel, lake.channels())):
        rendering.say(f"  {table.path}  (version {table.version()})")


def steps(clock: Clock, result: dg.ExecuteInProcessResult, batches: list[BatchReport]) -> None:
    """Add the phases of the run: by flow its batches, and what is around them; then the checks and the answers."""
    took = step_seconds(result)
    for spec in flows():
        own = [batch for batch in batches if batch.flow == spec.name]
        work, received = sum(batch.seconds for batch in own), sum(batch.received for batch in own)
        note = f"{len(own)} batches in {work:.1f} s, {received:,} rows" if own else "nothing new"
        clock.add(f"flow {spec.name}", took[f"catch_up_{spec.name}"], note)
    for what, text in (("check", "checking the tables"), ("answer", "renewing the answers")):
        clock.add(text, sum(seconds for step, seconds in took.items() if step.startswith(f"{what}_")))


def main(arguments: list[str] | None = None) -> int:
    """Run the demo."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--days", type=int, default=DAYS, help="only the first so many days of the year")
    parser.add_argument(
        "--lake", help="the lake in place of the home's: a folder, s3://bucket/lake, or hdfs://namenode:port/lake"
    )
    parsed = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    if parsed.lake:
        os.environ[LAKE] = parsed.lake
    try:
        settings = FlowSettings.from_environment()
        os.environ["DAGSTER_HOME"] = str(ui.prepare_home(settings))
        with store_for(str(settings.lake), settings.home / "s3") as store:
            if store:
                rendering.say(store)
            return run(settings, parsed.days)
    except TrideltaError as error:
        print(error, file=sys.stderr)
    except KeyboardInterrupt:
        print("Interrupted. What was committed stays; run it again to go on.", file=sys.stderr)
    return 1


def run(settings: FlowSettings, days: int) -> int:
    """Run all phases, then print what they found."""
    started, clock = time.monotonic(), Clock()
    with ThreadPoolExecutor(max_workers=1) as beside, rendering.bars() as shown:
        spark: Future[None] = beside.submit(start_spark, clock)
        laid = lay(settings, days, shown, clock)
        spark.result()
        with clock.phase("loading Dagster's definitions"):
            location()
        result, batches = catch_up(settings, laid, shown)
    if not result.success:
        print(failure_text(result), file=sys.stderr)
        rendering.say(f"See it in Dagster: make ui, then http://{ui.HOST}:{ui.DEFAULT_PORT}/runs/{result.run_id}")
        return 1
    steps(clock, result, batches)
    with clock.phase("asking the states"):
        findings(settings)
    with clock.phase("comparing the event flows with pandas"):
        agreed = event_findings(settings, days)
    rendering.rows(f"Phases of {time.monotonic() - started:.0f} s", clock.phases)
    rendering.say(f"\nSee it all in Dagster: make ui, then http://{ui.HOST}:{ui.DEFAULT_PORT}/asset-groups/")
    if not agreed:
        print("A table of an event flow is not what pandas computes.", file=sys.stderr)
    return 0 if agreed else 1


if __name__ == "__main__":
    sys.exit(main())
