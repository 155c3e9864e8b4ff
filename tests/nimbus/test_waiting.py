"""Waiting for a changed flow: its old queries are not what is waited for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from pipelines.nimbus import Nimbus, nimbus
from pipelines.nimbus.errors import WaitError
from pipelines.nimbus.status import FlowStatus
from tests.nimbus.looks import RUNNING, SILENT, flow


class Looks(Nimbus):
    """One look after the other."""

    def __init__(self, *looks: FlowStatus) -> None:
        self._looks: Iterator[FlowStatus] = iter(looks)
        self.last = looks[-1]

    def flow(self, name: str) -> FlowStatus:
        return next(self._looks, self.last)


OLD = flow("flights", replace(RUNNING, version=2))
NEW = flow("flights", replace(RUNNING, version=3), version=3)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nimbus.time, "sleep", lambda _: None)


def waited(*looks: FlowStatus, seconds: float = 60) -> FlowStatus | None:
    return Looks(*looks).wait("flights", until="running", seconds=seconds)


def test_what_runs_in_the_former_version_is_not_waited_for() -> None:
    drained = flow("flights", replace(RUNNING, state="drained", version=2), version=3)
    restarted = flow("flights", replace(RUNNING, version=2), version=3)
    assert waited(replace(OLD, version=3), drained, restarted, NEW) is NEW


def test_a_rebalanced_flow_runs_in_the_version_that_it_had() -> None:
    rebalancing = replace(OLD, status="REBALANCING")
    assert waited(rebalancing, rebalancing, OLD) is OLD


def test_one_that_does_not_come_up_is_told_with_where_it_stands() -> None:
    with pytest.raises(WaitError) as refused:
        waited(flow("flights", RUNNING, SILENT, problem="no slot is free"), seconds=0)
    assert "flights running, weather silent; no slot is free" in str(refused.value)
    assert refused.value.until == "running"
