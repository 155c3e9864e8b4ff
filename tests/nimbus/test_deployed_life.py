"""The whole life of deployed flows with real processes, on both databases: every table ends as if nothing had happened."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.nimbus.errors import AlreadyAliveError
from tests.nimbus.deployment import PATIENCE, Deployment, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    "url", ["postgresql", pytest.param("sqlite", marks=pytest.mark.exhaustive)], indirect=True, ids=str
)
def test_a_life(tmp_path: Path, url: str) -> None:
    """Submitted, packed, drained, activated, updated, rolled back, rebalanced, killed, and deployed once more."""
    with Deployment(tmp_path / "home", registry=url) as here:
        here.submit("numbers", "readings")
        here.runs("numbers", "readings")
        assert_packed(here)
        assert_drains(here)
        assert_versions(here)
        assert_rebalances(here)
        assert_killed_and_free(here)
        here.ends_well()


def assert_packed(here: Deployment) -> None:
    """Flows without settings of their own share one application."""
    tasks = [task for flow in ("numbers", "readings") for task in here.nimbus.flow(flow).tasks]
    assert len({(task.supervisor, task.port, task.pid) for task in tasks}) == 1
    with pytest.raises(AlreadyAliveError):
        here.nimbus.submit("numbers")


def assert_drains(here: Deployment) -> None:
    with here.feeding("numbers", "readings", every=0.5):
        here.nimbus.wait("numbers", until="batch", seconds=PATIENCE)
        here.nimbus.deactivate("numbers")
        here.nimbus.wait("numbers", until="stopped", seconds=PATIENCE)
    here.is_drained("numbers")
    stood = here.nimbus.flow("numbers").txid
    here.feed("numbers")
    # The other flow in the same application has gone on, and goes on.
    here.settles("readings")
    assert here.nimbus.flow("numbers").txid == stood
    assert here.nimbus.flow("readings").running
    here.nimbus.activate("numbers")
    here.settles()


def assert_versions(here: Deployment) -> None:
    """A new version needs a new process; so does an earlier one that comes back."""
    for change in (
        lambda: here.nimbus.update("numbers", trigger_seconds=0.2),
        lambda: here.nimbus.roll_back("numbers"),
    ):
        pid = here.worker_of("numbers").pid
        change()
        here.next_batch("numbers", pid)
        here.settles()
    assert [one.number for one in here.nimbus.versions("numbers")] == [1, 2, 3]
    first, second, third = (one.content for one in here.nimbus.versions("numbers"))
    assert first == third != second
    assert here.task("numbers").trigger_seconds == 0.3


def assert_rebalances(here: Deployment) -> None:
    here.nimbus.rebalance("numbers", parallelism={"numbers": 3})
    own = Checkpoint("numbers", here.lake.checkpoint_path("numbers", "numbers"))
    wait_for(lambda: own.partitions == 3, PATIENCE, lambda: str(here.nimbus.flow("numbers")))
    here.runs("numbers")
    assert here.nimbus.flow("numbers").parallelism["numbers"] == 3
    here.next_batch("numbers")
    here.settles()


def assert_killed_and_free(here: Deployment) -> None:
    with here.feeding("numbers", every=0.5):
        here.nimbus.wait("numbers", until="batch", seconds=PATIENCE)
        here.nimbus.kill("numbers", 2)
        assert here.nimbus.wait("numbers", until="gone", seconds=PATIENCE) is None
    before = here.lake.state("numbers_kept").last_txid()
    assert before is not None
    # The table has stayed, and the flow of the same name goes on behind it. It is fed: all rows may have been drained before.
    here.feed("numbers")
    here.submit("numbers")
    here.runs("numbers")
    here.settles()
    assert (here.lake.state("numbers_kept").last_txid() or 0) > before
    assert [one.event for one in here.nimbus.history("numbers")].count("SUBMIT") == 2
