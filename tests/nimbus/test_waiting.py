"""Waiting for a changed flow: its old queries are not what is waited for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from pipelines.nimbus.errors import WaitError
from pipelines.nimbus.status import FlowStatus
from pipelines.nimbus.waiting import runs_again
from tests.nimbus.looks import RUNNING, SILENT, flow


class Looks:
    """One look after the other."""

    def __init__(self, *looks: FlowStatus) -> None:
        self._looks: Iterator[FlowStatus] = iter(looks)
        self.last = looks[-1]

    def flow(self, name: str) -> FlowStatus:
        return next(self._looks, self.last)


OLD = flow("flights", RUNNING)
NEW = flow("flights", replace(RUNNING, pid=4712), version=3)


def waited(*looks: FlowStatus, new_process: bool = True, seconds: float = 60) -> FlowStatus:
    return runs_again(Looks(*looks), OLD, seconds=seconds, new_process=new_process, sleep=lambda _: None)


def test_a_new_version_runs_in_another_process() -> None:
    drained = flow("flights", replace(RUNNING, state="drained"))
    assert waited(replace(OLD, version=3), drained, flow("flights"), NEW) is NEW


def test_a_rebalanced_flow_may_run_in_the_same_one() -> None:
    rebalancing = replace(OLD, status="REBALANCING")
    assert waited(rebalancing, rebalancing, OLD, new_process=False) is OLD


def test_one_that_does_not_come_up_is_told_with_where_it_stands() -> None:
    with pytest.raises(WaitError) as refused:
        waited(flow("flights", RUNNING, SILENT, problem="no slot is free"), seconds=0)
    assert "flights running, weather silent; no slot is free" in str(refused.value)
    assert refused.value.until == "running again"
