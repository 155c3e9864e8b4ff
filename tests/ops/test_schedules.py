"""What runs by itself: when, and when it rather does not."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest

from assets.factory import assets_of, flow_assets
from assets.sources import observation
from assets.view import FlowView
from ops.flow_definitions import slices_job
from ops.jobs.catch_up import catch_up_job
from ops.schedules import catch_up_schedule, slices_schedule
from pipelines.catalog import FlowSettings, flow

pytestmark = pytest.mark.filterwarnings("ignore:Property `OpDefinition.version`:DeprecationWarning")


@pytest.fixture
def flights(tmp_path: Path) -> FlowView:
    return FlowView.of(flow("flights"), FlowSettings(tmp_path))


@pytest.mark.slow
def test_catch_up_waits_for_news(flights: FlowView, tmp_path: Path) -> None:
    schedule = catch_up_schedule([flights], catch_up_job([flights]))
    folder = tmp_path / "data" / "flights"
    with dg.instance_for_test() as instance:

        def tick() -> dg.RunRequest | dg.SkipReason:
            with dg.build_schedule_context(instance=instance) as context:
                said = schedule(context)
            assert isinstance(said, dg.RunRequest | dg.SkipReason)
            return said

        assert isinstance(tick(), dg.SkipReason)
        folder.mkdir(parents=True)
        (folder / "2013-01-01.json").write_text("{}\n")
        asked = tick()
        assert isinstance(asked, dg.RunRequest)
        assert asked.tags["news/flights"] == "flights: 1 files, the newest 2013-01-01.json"

        seen = observation(flights.spouts[0])
        assert seen is not None
        instance.report_runless_asset_event(seen)
        assert isinstance(tick(), dg.SkipReason)
        (folder / "2013-01-02.json").write_text("{}\n")
        assert isinstance(tick(), dg.RunRequest)


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
