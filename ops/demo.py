"""`make demo`: a year of flights through the pipeline, run by Dagster, and what it found.

`python -m ops.demo [--days N]`. What it does stays in the project's home and can be seen with `make ui`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ops import rendering, ui
from pipelines import Lake
from pipelines.catalog import FlowSettings, flow
from pipelines.catalog.flights_data import LayoutReport, lay_out
from pipelines.errors import TrideltaError, UnknownStateError
from pipelines.execution.report import BatchReport

DAYS = 365


@dataclass
class Clock:
    """How long each phase took."""

    phases: list[dict[str, Any]] = field(default_factory=list)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block."""
        started = time.monotonic()
        yield
        self.add(name, time.monotonic() - started)

    def add(self, name: str, seconds: float, note: str = "") -> None:
        self.phases.append({"phase": name, "seconds": round(seconds, 1), "what": note})

    def note(self, text: str) -> None:
        """Say what the last phase did."""
        self.phases[-1]["what"] = text


@contextmanager
def bars() -> Iterator[Progress]:
    """The screen of progress bars, on standard error."""
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[last]}"),
        console=Console(stderr=True),
    ) as shown:
        yield shown


def counted(lake: Lake) -> int:
    """Source rows that earlier runs have accounted for."""
    try:
        batches = lake.state("departures").commits.batches()
    except UnknownStateError:
        return 0
    return sum(one.record.received for one in batches if one.record is not None)


def start_spark(clock: Clock) -> None:
    """Start the session that the run will find; beside the writing of the files, which needs no JVM."""
    from pipelines import spark_session

    started = time.monotonic()
    spark_session("tridelta")
    clock.add("Spark starts", time.monotonic() - started, "beside the files")


def lay(settings: FlowSettings, days: int, shown: Progress, clock: Clock) -> LayoutReport:
    """Lay out the files of the year, a day each."""
    task = shown.add_task("files of a day each", total=days, last="")
    with clock.phase("files are laid out"):
        report = lay_out(settings.data, days=days, progress=lambda done, _: shown.update(task, completed=done))
    clock.note(f"{report.flights:,} flights in {report.days} files, {report.files_written} written")
    return report


def location() -> dg.Definitions:
    """The definitions that the UI shows, loaded by name as Dagster does from workspace.yaml."""
    found: dg.Definitions = importlib.import_module("definitions").defs
    return found


def catch_up(
    settings: FlowSettings, laid: LayoutReport, shown: Progress
) -> tuple[dg.ExecuteInProcessResult, list[BatchReport]]:
    """Run catch_up_job of the real definitions, recorded in the project's Dagster instance."""
    from resources.progress import watching

    batches: list[BatchReport] = []
    before = counted(Lake(settings.lake))
    task = shown.add_task("rows, batch by batch", total=laid.flights, completed=min(before, laid.flights), last="")

    def on_batch(report: BatchReport) -> None:
        batches.append(report)
        text = f"batch {report.txid}: {report.received:,} rows in {report.seconds:.1f} s"
        shown.update(task, advance=report.received, last=text)

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
    """How long each step of the run took."""
    return {
        event.step_key: event.step_success_data.duration_ms / 1000
        for event in result.all_events
        if event.is_step_success and event.step_key is not None
    }


def failure_text(result: dg.ExecuteInProcessResult) -> str:
    """What the first failed step said."""
    for event in result.all_events:
        if event.is_step_failure:
            data = event.step_failure_data
            said = data.user_failure_data.description if data.user_failure_data else None
            return said or (data.error.message if data.error else "") or "the run failed"
    return "the run failed"


def findings(settings: FlowSettings) -> None:
    """What the states hold now: asked of a query stream, and read from the tables."""
    from pipelines import Runtime, spark_session

    spec = flow("flights")
    lake = Lake(settings.lake)
    question = spec.queries[0]
    answer = Runtime(spark_session("tridelta"), lake).query(spec.topology(settings), "delays", list(question.args))
    answer = sorted((row for row in answer if row["flights"]), key=lambda row: -row["avg_dep_delay"])
    rendering.rows("Carriers by average departure delay (query stream `delays`)", answer)
    origins: dict[str, int] = {}
    for row in lake.state("route_traffic").scan().to_pylist():
        origins[row["origin"]] = origins.get(row["origin"], 0) + row["flights"]
    rendering.rows(
        "Flights by airport (state `route_traffic`)", [{"origin": o, "flights": n} for o, n in sorted(origins.items())]
    )
    accounting(lake)


def accounting(lake: Lake) -> None:
    """Where every row went, and where the tables are."""
    committed = lake.state("departures").scan().num_rows
    try:
        refused = lake.quarantine("flights").scan().to_pylist()
    except UnknownStateError:
        refused = []
    rendering.say(f"\n{committed + len(refused):,} rows: {committed:,} committed, {len(refused):,} in quarantine")
    for row in refused[:5]:
        rendering.say(f"  {row['rule']}: {row['reason']}")
    rendering.say("\nDelta tables:")
    for state in lake.states():
        table = lake.state(state)
        rendering.say(f"  {table.path}  (version {table.version()})")


def steps(clock: Clock, result: dg.ExecuteInProcessResult, batches: list[BatchReport]) -> None:
    """Add the phases of the run: its steps, and of the first one the work in batches."""
    took = step_seconds(result)
    work = sum(batch.seconds for batch in batches)
    received = sum(batch.received for batch in batches)
    clock.add("batches", work, f"{len(batches)} batches, {received:,} rows" if batches else "nothing new")
    clock.add("around the batches", took["catch_up_flights"] - work, "the stream starts and ends, events to Dagster")
    clock.add("tables are checked", took["check_flights"])
    clock.add("answers are renewed", took["answer_flights"])


def main(arguments: list[str] | None = None) -> int:
    """Runs the demo."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--days", type=int, default=DAYS, help="only the first so many days of the year")
    days = parser.parse_args(arguments).days
    warnings.filterwarnings("ignore")
    settings = FlowSettings.from_environment()
    os.environ["DAGSTER_HOME"] = str(ui.prepare_home(settings))
    try:
        return run(settings, days)
    except TrideltaError as error:
        print(error, file=sys.stderr)
    except KeyboardInterrupt:
        print("Interrupted. What was committed stays; run it again to go on.", file=sys.stderr)
    return 1


def run(settings: FlowSettings, days: int) -> int:
    """All phases, then what they found."""
    started, clock = time.monotonic(), Clock()
    with ThreadPoolExecutor(max_workers=1) as beside, bars() as shown:
        spark: Future[None] = beside.submit(start_spark, clock)
        laid = lay(settings, days, shown, clock)
        spark.result()
        with clock.phase("Dagster's definitions load"):
            location()
        result, batches = catch_up(settings, laid, shown)
    if not result.success:
        print(failure_text(result), file=sys.stderr)
        rendering.say(f"See it in Dagster: make ui, then http://{ui.HOST}:{ui.DEFAULT_PORT}/runs/{result.run_id}")
        return 1
    steps(clock, result, batches)
    with clock.phase("the states are asked"):
        findings(settings)
    rendering.rows(f"Phases of {time.monotonic() - started:.0f} s", clock.phases)
    rendering.say(f"\nSee it all in Dagster: make ui, then http://{ui.HOST}:{ui.DEFAULT_PORT}/asset-groups/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
