"""Two supervisors, as on two hosts: one stands still with all that runs on it, and comes back when it is too late."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.nimbus.deployment import PATIENCE, Deployment, wait_for
from tests.nimbus.faults import freeze, thaw

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.exhaustive
def test_a_host_that_stands_still(tmp_path: Path) -> None:
    """The other one leads, and takes its work; what wakes up finds that it owns nothing any more, and ends."""
    with Deployment(tmp_path / "home", supervisors=("one",)) as here:
        here.submit("numbers")
        here.runs("numbers")
        wait_for(lambda: leader(here) == "one", PATIENCE, lambda: str(here.nimbus.cluster()))
        here.start_supervisor("two")
        worker = here.worker_of("numbers")
        with here.feeding("numbers", every=1):
            here.nimbus.wait("numbers", until="batch", seconds=PATIENCE)
            frozen = freeze(here, here.supervisor("one"), worker)
            # Locks of files hold within a host alone: on two hosts nothing but the leases keeps the frozen worker out.
            for lock in here.lake.root.rglob("*.lock"):
                lock.unlink()
            wait_for(lambda: leader(here) == "two", PATIENCE, lambda: str(here.nimbus.cluster()))
            here.next_batch("numbers", worker.pid)
            assert here.task("numbers").supervisor == "two"
            assert "MONITOR" in supervisor_log(here, "two")
            thaw(frozen)
            wait_for(lambda: not alive(worker), PATIENCE, lambda: f"{worker} has not ended")
            here.next_batch("numbers")
        # It sees that its lease is gone, or its own supervisor sees first that it has not beaten.
        ended = any(line["event"] == "worker ends at once" for line in here.log("one"))
        assert ended or "worker killed" in supervisor_log(here, "one")
        assert leader(here) == "two"
        # Both hosts are there again; the work stays where it is well.
        assert all(one.alive for one in here.nimbus.cluster().supervisors)
        assert here.task("numbers").supervisor == "two"
        here.ends_well()


def leader(here: Deployment) -> str | None:
    return next((one.id for one in here.nimbus.cluster().supervisors if one.leader), None)


def alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def supervisor_log(here: Deployment, name: str) -> str:
    return (here.nimbus.settings.supervisor_folder(name) / "supervisor.jsonl").read_text("utf-8")
