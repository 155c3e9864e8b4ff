"""What runs by itself: when, and when it rather does not."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test

from assets.factory import assets_of, flow_assets
from assets.sources import arrived, caught_up, look_at, observation
from assets.view import FlowView
from ops.flow_definitions import slices_job
from ops.jobs.catch_up import _mark, catch_up_job
from ops.schedules import catch_up_schedule, slices_schedule
from pipelines.catalog import FlowSettings, flow
from pipelines.places.store import StoreError
from resources import NimbusResource
from tests.nimbus import looks

pytestmark = pytest.mark.filterwarnings("ignore:Property `OpDefinition.version`:DeprecationWarning")

NIMBUS = {"nimbus": NimbusResource()}


@pytest.fixture
def flights(tmp_path: Path) -> FlowView:
    return FlowView.of(flow("flights"), FlowSettings(tmp_path))


@pytest.mark.slow
def test_catch_up_waits_for_news(flights: FlowView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = catch_up_schedule([flights], catch_up_job([flights]))
    folder = tmp_path / "data" / "flights"
    with dg.instance_for_test() as instance:

        def tick() -> dg.RunRequest | dg.SkipReason:
            with dg.build_schedule_context(instance=instance, resources=NIMBUS) as context:
                said = schedule(context)
            assert isinstance(said, dg.RunRequest | dg.SkipReason)
            return said

        assert isinstance(tick(), dg.SkipReason)
        folder.mkdir(parents=True)
        (folder / "2013-01-01.json").write_text("{}\n")
        asked = tick()
        assert isinstance(asked, dg.RunRequest)
        assert asked.tags["news/flights"] == "flights: 1 files, the newest 2013-01-01.json"

        (spout,) = flights.spouts
        seen = look_at(spout)
        assert seen is not None
        # Somebody looks, or another flow reads the same folder.
        instance.report_runless_asset_event(observation(spout, seen))
        instance.daemon_cursor_storage.set_cursor_values({"tridelta/caught_up/delays/flights": seen.fingerprint})
        assert isinstance(tick(), dg.RunRequest)
        instance.daemon_cursor_storage.set_cursor_values({caught_up(flights, spout): seen.fingerprint})
        assert isinstance(tick(), dg.SkipReason)
        (folder / "2013-01-02.json").write_text("{}\n")
        assert isinstance(tick(), dg.RunRequest)
        # Its worker reads what arrives, until it is killed.
        monkeypatch.setattr(NimbusResource, "deployed", lambda _: {"flights": looks.flow("flights")})
        assert isinstance(tick(), dg.SkipReason)


def test_a_flow_that_a_run_is_to_catch_up_with_is_not_asked_for_again(
    flights: FlowView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long run, or one that waits for a backfill, would have others queue behind it every ten minutes."""
    other = FlowView.of(flow("late_departures"), FlowSettings(tmp_path))
    arrived = {flights.name: "a file"}
    monkeypatch.setattr("ops.schedules._news", lambda view, _: arrived.get(view.name))
    job = catch_up_job([flights, other])
    schedule = catch_up_schedule([flights, other], job)
    with dg.instance_for_test() as instance:

        def tick() -> dict[str, str] | str:
            with dg.build_schedule_context(instance=instance, resources=NIMBUS) as context:
                said = schedule(context)
            if isinstance(said, dg.SkipReason):
                return str(said.skip_message)
            assert isinstance(said, dg.RunRequest)
            return {name: value for name, value in said.tags.items() if name.startswith("news/")}

        asked = tick()
        assert asked == {"news/flights": "a file"}
        # Of another job; at its end; never launched, for its daemon died.
        create_run_for_test(instance, "slices", status=dg.DagsterRunStatus.STARTED, tags=asked)
        create_run_for_test(instance, job.name, status=dg.DagsterRunStatus.FAILURE, tags=asked)
        create_run_for_test(instance, job.name, status=dg.DagsterRunStatus.NOT_STARTED, tags=asked)
        assert tick() == asked
        for status in (dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED):
            run = create_run_for_test(instance, job.name, status=status, tags=asked)
            assert tick() == f"flights: run {run.run_id[:8]} is to catch up"
            # The others do not wait for it.
            arrived[other.name] = "another"
            assert tick() == {"news/late_departures": "another"}
            del arrived[other.name]
            instance.delete_run(run.run_id)
        assert tick() == asked


@pytest.mark.slow
@pytest.mark.parametrize(
    "problem",
    [
        StoreError("s3a://bucket", "it does not answer", hint="try again"),
        TimeoutError(110, "Connection timed out"),
        AttributeError("'NoneType' object has no attribute 'list'"),
        SystemExit(3),
    ],
)
def test_a_source_that_cannot_be_looked_at_holds_up_its_own_flow_alone(
    flights: FlowView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    other = FlowView.of(flow("late_departures"), FlowSettings(tmp_path))

    def told(view: FlowView, _: Mapping[str, str]) -> str:
        if view is other:
            return "a file"
        raise problem

    monkeypatch.setattr("ops.schedules._news", told)
    schedule = catch_up_schedule([flights, other], catch_up_job([flights, other]))
    with dg.instance_for_test() as instance, dg.build_schedule_context(instance=instance, resources=NIMBUS) as context:
        said = schedule(context)
        assert isinstance(said, dg.RunRequest)
        assert [tag for tag in said.tags if tag.startswith("news/")] == ["news/late_departures"]


def test_an_odd_error_of_a_source_is_told_with_its_type(flights: FlowView, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(*_: Any) -> str:
        raise AttributeError("no list")

    monkeypatch.setattr("ops.schedules._news", told)
    schedule = catch_up_schedule([flights], catch_up_job([flights]))
    with dg.instance_for_test() as instance, dg.build_schedule_context(instance=instance, resources=NIMBUS) as context:
        said = schedule(context)
    assert isinstance(said, dg.SkipReason)
    assert said.skip_message == "flights: AttributeError: no list"


@pytest.mark.slow
def test_a_source_that_takes_longer_to_look_at_than_a_tick_is_run(
    flights: FlowView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that grows comes to that one day, and its files would never have been read again."""
    ended = threading.Event()
    monkeypatch.setattr("ops.schedules._news", lambda *_: ended.wait(60) and None)
    monkeypatch.setattr("ops.schedules.LOOK_SECONDS", 0.5)
    job = catch_up_job([flights])
    schedule = catch_up_schedule([flights], job)
    with dg.instance_for_test() as instance, dg.build_schedule_context(instance=instance, resources=NIMBUS) as context:
        said = schedule(context)
        assert isinstance(said, dg.RunRequest)
        assert said.tags["news/flights"] == "not looked at within 0.5 s; only a run can tell"
        # However long its store is silent: one run at a time.
        run = create_run_for_test(instance, job.name, status=dg.DagsterRunStatus.STARTED, tags=said.tags)
        waits = schedule(context)
        assert isinstance(waits, dg.SkipReason)
        assert waits.skip_message == f"flights: run {run.run_id[:8]} is to catch up"
    ended.set()


def test_a_look_goes_on_from_tick_to_tick(flights: FlowView, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread a flow, however long its mount hangs; and no run for nothing where a folder is merely large."""
    ended, begun = threading.Event(), list[str]()
    found: list[str | None] = [None]

    def look(view: FlowView, _: Mapping[str, str]) -> str | None:
        begun.append(view.name)
        ended.wait(60)
        ended.clear()
        return found[0]

    def answer(what: str | None) -> None:
        """Have the look that is under way end, between two ticks."""
        found[0] = what
        (thread,) = [one for one in threading.enumerate() if one.name == "news of flights"]
        assert thread.daemon
        ended.set()
        thread.join(60)

    monkeypatch.setattr("ops.schedules._news", look)
    monkeypatch.setattr("ops.schedules.LOOK_SECONDS", 0.05)
    job = catch_up_job([flights])
    schedule = catch_up_schedule([flights], job)
    with dg.instance_for_test() as instance:

        def tick() -> str:
            with dg.build_schedule_context(instance=instance, resources=NIMBUS) as context:
                said = schedule(context)
            assert isinstance(said, dg.RunRequest | dg.SkipReason)
            return said.tags["news/flights"] if isinstance(said, dg.RunRequest) else f"skip: {said.skip_message}"

        unseen = "not looked at within 0.05 s; only a run can tell"
        assert [tick(), tick()] == [unseen, unseen]
        assert len(begun) == 1
        run = create_run_for_test(instance, job.name, status=dg.DagsterRunStatus.SUCCESS, tags={"news/flights": unseen})
        assert tick() == f"skip: flights: {unseen}, one an hour"
        monkeypatch.setattr("ops.schedules.UNSEEN_EVERY_SECONDS", -60.0)
        assert tick() == unseen
        answer(None)
        # It holds for two ticks, and the next look is under way.
        assert tick() == "skip: nothing has arrived since the last catch-up"
        assert len(begun) == 2
        answer("2 files")
        assert [tick(), len(begun)] == ["2 files", 2]
        assert tick().startswith("skip: nothing")
        # A catch-up has ended meanwhile: what the look has found may be read.
        answer("2 files")
        instance.daemon_cursor_storage.set_cursor_values({caught_up(flights, flights.arriving[0]): "3 files"})
        assert tick().startswith("skip: nothing")
        monkeypatch.setattr("ops.schedules.ANSWER_SECONDS", 0.0)
        assert tick() == unseen
        # While a run is to catch up nobody looks.
        answer(None)
        looks, asked = len(begun), {"news/flights": "2 files"}
        run = create_run_for_test(instance, job.name, status=dg.DagsterRunStatus.STARTED, tags=asked)
        assert tick() == f"skip: flights: run {run.run_id[:8]} is to catch up"
        assert len(begun) == looks
    ended.set()


@pytest.mark.parametrize("arrives", [False, True])
def test_a_look_that_outlasts_a_tick_of_a_rare_schedule_asks_for_no_run(
    flights: FlowView, monkeypatch: pytest.MonkeyPatch, arrives: bool
) -> None:
    """Its answer is an hour old when it is taken. The next look is under way by then, or begins in the next tick."""
    ended, hours, found = threading.Event(), [0.0], ["2 files"] if arrives else []

    def look(*_: Any) -> str | None:
        ended.wait(60)
        ended.clear()
        return found.pop() if found else None

    monkeypatch.setattr("ops.schedules._news", look)
    monkeypatch.setattr("ops.schedules.LOOK_SECONDS", 0.05)
    monkeypatch.setattr("ops.schedules.time", SimpleNamespace(monotonic=lambda: 3600.0 * hours[0]))
    schedule = catch_up_schedule([flights], catch_up_job([flights]), cron="0 * * * *")
    said: list[type] = []
    with dg.instance_for_test() as instance:

        def tick() -> None:
            with dg.build_schedule_context(instance=instance, resources=NIMBUS) as context:
                said.append(type(schedule(context)))

        for _ in range(5):
            tick()
            ended.set()
            for thread in [one for one in threading.enumerate() if one.name == "news of flights"]:
                thread.join(60)
            ended.clear()
            hours[0] += 1
        # One that hangs is late from the second tick on that finds it so.
        tick()
        hours[0] += 1
        tick()
    second = dg.RunRequest if arrives else dg.SkipReason
    assert said == [dg.RunRequest, second, *[dg.SkipReason] * 4, dg.RunRequest]
    ended.set()


def test_a_name_that_is_no_text_ends_no_tick(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"a\xff.json")).write_text("{}")
    seen = arrived(tmp_path)
    assert (seen.files, seen.newest) == (1, "a?.json")
    with dg.instance_for_test() as instance:
        assert instance.daemon_cursor_storage.get_cursor_values(set()) == {}


def test_a_file_that_is_being_put_has_not_arrived(tmp_path: Path) -> None:
    for name in ("a.json", "b.json._COPYING_", "_SUCCESS", ".c.json"):
        (tmp_path / name).write_text("{}")
    assert (arrived(tmp_path).files, arrived(tmp_path).newest) == (1, "a.json")


def test_marks_are_kept_per_stream(flights: FlowView, tmp_path: Path) -> None:
    """Also of a stream that is added, and of a flow that reads no folder."""
    weather = FlowView.of(flow("departure_weather"), FlowSettings(tmp_path)).arriving
    seen = arrived(tmp_path)
    with dg.instance_for_test() as instance:
        context: Any = SimpleNamespace(instance=instance, log_event=lambda _: None)
        for spouts in ((), weather[:1], weather):
            _mark(context, flights, [(spout, seen) for spout in spouts])
        keys = {caught_up(flights, spout) for spout in weather}
        assert len(keys) == 2
        assert instance.daemon_cursor_storage.get_cursor_values(keys) == dict.fromkeys(keys, seen.fingerprint)


@pytest.mark.parametrize(
    ("now", "day"),
    [(datetime(2013, 3, 2, 1, tzinfo=UTC), "2013-03-01"), (datetime(2013, 1, 1, 1, tzinfo=UTC), None)],
)
def test_slices_of_yesterday(flights: FlowView, now: datetime, day: str | None) -> None:
    made = flow_assets(flights)
    job = slices_job(made)
    schedule = slices_schedule(flights, job)
    defs = dg.Definitions(assets=assets_of([made]), jobs=[job], schedules=[schedule], resources={})
    assert defs is not None
    with dg.build_schedule_context(scheduled_execution_time=now) as context:
        said = schedule(context)
    if day is None:
        assert isinstance(said, dg.SkipReason)
        assert "2012-12-31 is not a slice of flights" in str(said.skip_message)
    else:
        assert isinstance(said, dg.RunRequest)
        assert said.partition_key == day
