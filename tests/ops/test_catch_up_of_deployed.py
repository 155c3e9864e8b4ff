"""A catch-up leaves a flow alone that is deployed: its worker holds the checkpoints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

from assets.view import FlowView
from ops.jobs.catch_up import catch_up_op
from pipelines.catalog import FlowSettings, flow
from pipelines.nimbus.status import FlowStatus
from resources import LakeResource, NimbusResource, SparkResource
from tests.nimbus import looks


class NoSpark(SparkResource):
    """Tells that it was asked for."""

    def session(self):  # type: ignore[no-untyped-def]
        raise RuntimeError("Spark was asked for")


@pytest.mark.parametrize(
    ("deployed", "runs"),
    [
        (None, True),
        (looks.flow("flights"), False),
        (looks.flow("flights", looks.RUNNING, status="INACTIVE"), False),
        (looks.flow("flights", replace(looks.RUNNING, state="drained"), status="INACTIVE"), False),
        (
            looks.flow("flights", replace(looks.RUNNING, state="drained"), status="REBALANCING", previous="ACTIVE"),
            False,
        ),
    ],
)
def test_who_reads_what_has_arrived(
    deployed: FlowStatus | None, runs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NimbusResource, "deployed", lambda _: {"flights": deployed} if deployed else {})
    op = catch_up_op(FlowView.of(flow("flights"), FlowSettings(tmp_path)))

    @dg.job
    def job() -> None:
        op()

    resources = {"spark": NoSpark(), "lake": LakeResource(root=str(tmp_path)), "nimbus": NimbusResource()}
    done = job.execute_in_process(resources=resources, raise_on_error=False)
    assert done.success != runs
    if runs:
        assert "Spark was asked for" in str(done.failure_data_for_node("catch_up_flights"))
