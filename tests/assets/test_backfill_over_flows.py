"""One backfill over two flows, of which one reads the other's table: through Dagster's own backfill daemon, real runs."""

from __future__ import annotations

import json
import logging
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.definitions.reconstruct import ReconstructableRepository
from dagster._core.execution.backfill import PartitionBackfill
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.test_utils import InProcessTestWorkspaceLoadTarget
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._daemon.backfill import execute_backfill_iteration
from pyspark.sql import SparkSession

from assets.upstream import partitions_of
from pipelines import Lake
from pipelines.state.record import BatchRecord
from pipelines.state.slices import made_slices
from pipelines.state.writer import StateWriter
from tests.assets import two_flows
from tests.assets.held_runs import HeldRuns

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Property `OpDefinition.version`:DeprecationWarning"),
    # Dagster's own, where it takes a backfill in.
    pytest.mark.filterwarnings("ignore:Function `AssetSelection.sources`:DeprecationWarning"),
]

DAYS = ["2024-01-01", "2024-01-02", "2024-01-03"]
BOTH = [dg.AssetKey("kept_rides"), dg.AssetKey("ride_lines"), dg.AssetKey("passengers")]
Lay = Callable[[str, list[tuple[str | None, int]]], None]


@pytest.fixture
def lay(tmp_path: Path) -> Lay:
    """Writes the file of a day: (line, n) a trip."""

    def write(day: str, trips: list[tuple[str | None, int]]) -> None:
        folder = tmp_path / "data" / "trips"
        folder.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({"day": day, "line": line, "n": n}) for line, n in trips]
        (folder / f"{day}.json").write_text("\n".join(lines) + "\n")

    return write


class Location:
    """A code location with the two flows, an instance, and a backfill daemon to turn."""

    def __init__(
        self, home: Path, file: Path, instance: dg.DagsterInstance, workspace: WorkspaceProcessContext
    ) -> None:
        self.home, self.file, self.instance, self.workspace = home, file, instance, workspace
        self.lake = Lake(home / "lake")

    def backfill(self, *days: str, assets: list[dg.AssetKey] = BOTH) -> str:
        """Launch as the UI does, and turn the daemon until the backfill ends.

        Returns:
            The backfill's status.
        """
        name = f"fill{time.monotonic_ns()}"
        self.instance.add_backfill(
            PartitionBackfill.from_asset_partitions(
                backfill_id=name,
                asset_graph=self.workspace.create_request_context().asset_graph,
                partition_names=list(days),
                asset_selection=assets,
                backfill_timestamp=time.time(),
                tags={},
                dynamic_partitions_store=self.instance,
                all_partitions=False,
                title=None,
                description=None,
                run_config=None,
            )
        )
        return self.turn(name)

    def turn(self, name: str) -> str:
        """Turn the daemon until a backfill ends; its status then."""
        for _ in range(20):
            failures = list(execute_backfill_iteration(self.workspace, logging.getLogger("backfill")))
            assert [one for one in failures if one is not None] == []
            self.instance.run_launcher.carry_out(self.instance)  # type: ignore[attr-defined]
            found = self.instance.get_backfill(name)
            assert found is not None
            if found.status.value not in ("REQUESTED", "CANCELING", "FAILING"):
                return found.status.value
        raise AssertionError(f"the backfill is still {found.status}")

    def relaunch(self, **config: Any) -> dict[str, Any]:
        """What `relaunch_slices_job` tells."""
        job = ReconstructableRepository.for_file(str(self.file), "defs").get_reconstructable_job("relaunch_slices_job")
        asked = {"ops": {"relaunch_slices": {"config": config}}}
        with dg.execute_job(job, self.instance, run_config=asked, raise_on_error=True) as done:
            (step,) = [one for one in done.all_events if one.event_type_value == "STEP_OUTPUT"]
        return {name: one.value for name, one in step.step_output_data.metadata.items()}

    def runs(self) -> list[tuple[str, str, str, str]]:
        """Of each run, oldest first: which flows' tables it makes, the first and the last day, how it ended."""
        found = []
        for run in reversed(self.instance.get_runs()):
            made = {key.path[-1] for key in run.asset_selection or ()}
            flows = [flow for flow, table in (("rides", "kept_rides"), ("days", "passengers")) if table in made]
            day = run.tags.get("dagster/partition", "")
            first = run.tags.get("dagster/asset_partition_range_start", day)
            last = run.tags.get("dagster/asset_partition_range_end", day)
            found.append(("+".join(flows), first, last, run.status.value))
        return found

    def partitions(self, asset: str) -> tuple[set[str], set[str]]:
        """The materialized partitions of an asset, and the failed ones."""
        partitions = two_flows.views(self.home)[0].partitions
        assert partitions is not None
        found = partitions_of(self.instance, dg.AssetKey(asset), partitions)
        return set(found.materialized), set(found.failed)

    def passengers(self) -> dict[str, int]:
        return {row["day"]: row["passengers"] for row in self.lake.state("passengers").scan().to_pylist()}

    def said(self, status: dg.DagsterRunStatus = dg.DagsterRunStatus.FAILURE) -> str:
        """What the last run that failed says."""
        run = self.instance.get_runs(dg.RunsFilter(statuses=[status]), limit=1)[0]
        found = self.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
        return str(found[0].dagster_event.event_specific_data.user_failure_data.description)  # type: ignore[union-attr]


@pytest.fixture
def location(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Iterator[Location]:
    # Dagster keeps what it has loaded by its file, so each test has one of its own.
    file = tmp_path / f"{tmp_path.name}.py"
    days = getattr(request, "param", None)
    file.write_text(
        f"from pathlib import Path\nfrom tests.assets.two_flows import definitions\n"
        f"defs = definitions(Path({str(tmp_path)!r}), {days})\n"
    )
    launcher = {"module": HeldRuns.__module__, "class": HeldRuns.__name__}
    coordinator = {"module": "dagster._core.run_coordinator", "class": "DefaultRunCoordinator"}
    origin = LoadableTargetOrigin(python_file=str(file), attribute="defs")
    with (
        dg.instance_for_test(overrides={"run_launcher": launcher, "run_coordinator": coordinator}) as instance,
        WorkspaceProcessContext(
            instance, InProcessTestWorkspaceLoadTarget(InProcessCodeLocationOrigin(origin, location_name="flows"))
        ) as workspace,
    ):
        yield Location(tmp_path, file, instance, workspace)


@pytest.mark.exhaustive
def test_each_slice_waits_for_its_own_and_fails_with_it_alone(location: Location, lay: Lay) -> None:
    lay(DAYS[0], [("a", 1), ("b", 2)])
    lay(DAYS[1], [("a", 5000)])
    lay(DAYS[2], [("a", 4)])
    assert location.backfill(*DAYS) == "COMPLETED_FAILED"
    # The middle day failed in one flow, so the other one is made around it.
    assert location.runs() == [
        ("rides", DAYS[0], DAYS[2], "FAILURE"),
        ("days", DAYS[0], DAYS[0], "SUCCESS"),
        ("days", DAYS[2], DAYS[2], "SUCCESS"),
    ]
    assert location.partitions("kept_rides") == ({DAYS[0], DAYS[2]}, {DAYS[1]})
    assert location.partitions("passengers") == ({DAYS[0], DAYS[2]}, set())
    assert location.passengers() == {DAYS[0]: 3, DAYS[2]: 4}

    # By itself, the slice is refused: nothing is there to compute it from.
    assert location.backfill(DAYS[1], assets=[dg.AssetKey("passengers")]) == "COMPLETED_FAILED"
    assert (
        'flow "days": slice 2024-01-02 was not computed: it reads "kept_rides" of the flow "rides"' in location.said()
    )
    assert 'its check "plausible__fits" fails' in location.said()
    assert location.partitions("passengers") == ({DAYS[0], DAYS[2]}, {DAYS[1]})
    assert location.passengers() == {DAYS[0]: 3, DAYS[2]: 4}

    _failed_and_missing_slices_are_found_and_made(location, lay)


def _failed_and_missing_slices_are_found_and_made(location: Location, lay: Lay) -> None:
    lay(DAYS[1], [("a", 50)])
    lay("2024-01-04", [("a", 8)])
    four = [*DAYS, "2024-01-04"]
    asked = {"first": DAYS[0], "last": four[-1]}
    told = location.relaunch(**asked, dry_run=True)
    assert (told["looked_at"], told["failed"], told["missing"], told["launched"]) == (8, 2, 2, 0)
    assert "| rides | 2024-01-02 | failed | would be made again | kept_rides: its run failed at" in told["slices"]
    assert "| days | 2024-01-04 | missing | would be made again | not in passengers |" in told["slices"]
    assert "backfill" not in told

    # Of one flow alone, what is made of slices that failed waits for them.
    told = location.relaunch(**asked, flows=["days"], dry_run=True)
    assert told["waiting"] == 2
    # No more than one may; then all; and what is on its way is not asked for twice.
    told = location.relaunch(**asked, dry_run=True, most_at_once=1)
    assert told["left_for_later"] == 3
    told = location.relaunch(**asked)
    assert told["launched"] == 4
    assert location.relaunch(**asked)["launched"] == 0
    assert location.turn(told["backfill"]) == "COMPLETED_SUCCESS"
    assert location.partitions("kept_rides") == location.partitions("passengers") == (set(four), set())
    assert location.passengers() == {DAYS[0]: 3, DAYS[1]: 50, DAYS[2]: 4, four[-1]: 8}
    told = location.relaunch(**asked)
    assert (told["failed"], told["missing"], told["stale"], told["launched"]) == (0, 0, 0, 0)
    _stale_slices_are_found_and_made(location, lay, asked)


def _stale_slices_are_found_and_made(location: Location, lay: Lay, asked: dict[str, str]) -> None:
    """A day is made again in the first flow alone: the second flow's is of what was there before."""
    lay(DAYS[0], [("a", 1), ("b", 20)])
    assert location.backfill(DAYS[0], assets=BOTH[:2]) == "COMPLETED_SUCCESS"
    told = location.relaunch(**asked, stale=False)
    assert (told["failed"], told["missing"], told["stale"], told["launched"]) == (0, 0, 1, 0)
    assert f"| days | {DAYS[0]} | stale | left | passengers: kept_rides has got other rows at " in told["slices"]
    assert location.passengers()[DAYS[0]] == 3
    told = location.relaunch(**asked)
    assert (told["stale"], told["launched"]) == (1, 1)
    assert location.turn(told["backfill"]) == "COMPLETED_SUCCESS"
    assert location.passengers()[DAYS[0]] == 21
    assert location.relaunch(**asked)["stale"] == 0


def test_a_cancelled_run_leaves_whole_slices_and_a_second_one_makes_the_rest(
    location: Location, lay: Lay, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n, day in enumerate(DAYS, start=1):
        lay(day, [("a", n)])
    committed: list[str] = []
    replace_slice = StateWriter.replace_slice

    def interrupted(self: StateWriter, rows: pa.Table, record: BatchRecord, *more: Any, **named: Any) -> int:
        version = replace_slice(self, rows, record, *more, **named)
        committed.append(f"{record.slice} {self.table.name}")
        if len(committed) == 3:
            # As Dagster ends a run: in the midst of the second day, whose second table is yet to come.
            signal.raise_signal(signal.SIGINT)
        return version

    monkeypatch.setattr(StateWriter, "replace_slice", interrupted)
    assert location.backfill(*DAYS, assets=BOTH[:2]) != "COMPLETED_SUCCESS"
    assert committed == [f"{day} {table}" for day in DAYS[:2] for table in ("kept_rides", "ride_lines")]
    for table in ("kept_rides", "ride_lines"):
        assert made_slices(location.lake.state(table)) == set(DAYS[:2])
        assert location.partitions(table)[0] == set(DAYS[:2])

    # Again, and by itself for those that are left: each row counts once.
    told = location.relaunch(first=DAYS[0], last=DAYS[-1], flows=["rides"], dry_run=True)
    assert told["failed"] + told["missing"] == 1
    assert f"| rides | {DAYS[2]} |" in told["slices"]
    assert location.backfill(*DAYS, assets=BOTH[:2]) == "COMPLETED_SUCCESS"
    assert location.lake.state("kept_rides").count() == 3
    assert location.lake.state("ride_lines").get([{"line": "a"}]) == [{"line": "a", "trips": 3}]


@pytest.mark.parametrize("location", [1], indirect=True)
def test_one_run_a_slice(location: Location, lay: Lay) -> None:
    lay(DAYS[0], [("a", 1)])
    lay(DAYS[1], [("a", 5000)])
    lay(DAYS[2], [(None, 4)])
    assert location.backfill(*DAYS) == "COMPLETED_FAILED"
    # Both flows of a day in one run, in order: on the second day a gate refuses, on the third a blocking check.
    assert sorted(location.runs()) == [
        ("rides+days", DAYS[0], DAYS[0], "SUCCESS"),
        ("rides+days", DAYS[1], DAYS[1], "FAILURE"),
        ("rides+days", DAYS[2], DAYS[2], "FAILURE"),
    ]
    assert location.passengers() == {DAYS[0]: 1}
    assert location.partitions("passengers") == ({DAYS[0]}, {DAYS[1], DAYS[2]})
    assert location.partitions("kept_rides") == ({DAYS[0], DAYS[2]}, {DAYS[1]})

    # The table fails its check, so nothing is made of it by itself either.
    assert location.backfill(DAYS[2], assets=[dg.AssetKey("passengers")]) == "COMPLETED_FAILED"
    assert 'and its check "suite__values_to_not_be_null_line" fails' in location.said()
    assert location.passengers() == {DAYS[0]: 1}
