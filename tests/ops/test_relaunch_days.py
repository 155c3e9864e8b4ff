"""Which days of each flow relaunch_slices_job looks at."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from assets.view import FlowView
from ops.jobs.relaunch import days
from pipelines.catalog import DailySlices, FlowSettings
from pipelines.errors import DefinitionError
from tests.nimbus.sliced_flows import FLOWS

YESTERDAY = datetime.now(UTC).date() - timedelta(days=1)


def view(tmp_path: Path, end: date | None) -> FlowView:
    return FlowView.of(replace(FLOWS[0], slices=DailySlices(date(2013, 1, 1), end)), FlowSettings(tmp_path))


@pytest.mark.parametrize(
    ("first", "last", "ended", "goes_on"),
    [
        ("", "", ["2013-01-03", "2013-01-09"], [YESTERDAY - timedelta(days=6), YESTERDAY]),
        ("2013-01-08", "", ["2013-01-08", "2013-01-09"], ["2013-01-08", YESTERDAY]),
        # The one whose days have ended by then is none of those that are looked at.
        ("2013-02-01", "", [], ["2013-02-01", YESTERDAY]),
        ("2013-02-01", "2013-02-02", [], ["2013-02-01", "2013-02-02"]),
        ("", "2013-02-02", [], ["2013-01-27", "2013-02-02"]),
    ],
)
def test_a_flow_whose_days_have_ended_holds_up_no_other(
    tmp_path: Path, first: str, last: str, ended: list[str], goes_on: list[str | date]
) -> None:
    for end, expected in ((date(2013, 1, 9), ended), (None, goes_on)):
        found = days(view(tmp_path, end), first, last)
        assert [*found[:1], *found[-1:]] == [str(day) for day in expected]


@pytest.mark.parametrize(("first", "last"), [("2013-02-02", "2013-02-01"), ("9000-01-01", ""), ("2013-02-30", "")])
def test_days_that_are_none_of_any_flow(tmp_path: Path, first: str, last: str) -> None:
    with pytest.raises(DefinitionError):
        days(view(tmp_path, None), first, last)
