"""Workers that die at each named point of a batch and of a repartition, and a flow that is scaled under load."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.maintenance.repartition import partitions_of
from tests.nimbus.deployment import PATIENCE, Deployment, wait_for
from tests.nimbus.killing_flows import killed, plan

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FLOWS = ("numbers", "readings")
COUNTED = "readings__1"
"""The query with the windows by count."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    home = tmp_path_factory.mktemp("points") / "home"
    with Deployment(home, flows="tests.nimbus.killing_flows") as deployed:
        deployed.submit(*FLOWS)
        deployed.runs(*FLOWS)
        yield deployed
        deployed.ends_well()


def partitions(here: Deployment) -> int | None:
    return partitions_of(Checkpoint("readings", here.lake.checkpoint_path("readings", COUNTED)))


def scaled(here: Deployment, number: int) -> None:
    """Ask for another number of partitions of the windows, and wait until they run with it."""
    here.nimbus.rebalance("readings", parallelism={COUNTED: number})
    wait_for(
        lambda: partitions(here) == number and here.nimbus.flow("readings").running,
        PATIENCE,
        lambda: f"{partitions(here)} partitions; {here.nimbus.flow('readings')}",
    )


@pytest.mark.parametrize(
    ("moment", "group", "jvm"),
    [
        # tests/crash has each moment of a batch; in `make test` a worker of these flows dies in a repartition.
        pytest.param("committed", COUNTED, True, marks=pytest.mark.exhaustive),
        *(
            pytest.param(moment, "numbers", jvm, marks=pytest.mark.exhaustive)
            for moment, jvm in (("opened", False), ("committing", True), ("committed", False), ("closed", True))
        ),
    ],
)
def test_killed_in_a_batch(here: Deployment, moment: str, group: str, jvm: bool) -> None:
    pid = here.worker_of("numbers").pid
    plan(here.home, moment, group=group, jvm=jvm)
    with here.feeding(*FLOWS):
        wait_for(lambda: killed(here.home), PATIENCE, lambda: f"no worker came to {moment}")
        here.next_batch("numbers", pid)
    here.settles()


@pytest.mark.exhaustive
def test_scaled_under_load(here: Deployment) -> None:
    """From two partitions to five and to three while readings keep coming."""
    with here.feeding(*FLOWS):
        for number in (5, 3):
            scaled(here, number)
            here.nimbus.wait("readings", until="batch", seconds=PATIENCE)
    here.settles()
    told = [one.detail for one in here.nimbus.history("readings") if one.event == "REPARTITION"]
    assert len(told) == 2
    # A beat tells it, some time after the task runs.
    wait_for(lambda: here.task("readings", 2).partitions == 3, PATIENCE, lambda: str(here.task("readings", 2)))


@pytest.mark.parametrize(
    ("phase", "number"),
    [
        pytest.param("copied", 4, marks=pytest.mark.exhaustive),
        pytest.param("repartitioned", 2, marks=pytest.mark.exhaustive),
        pytest.param("verified", 5, marks=pytest.mark.exhaustive),
    ],
)
def test_killed_in_a_repartition(here: Deployment, phase: str, number: int) -> None:
    """The next worker finds the old checkpoint or the new one, and takes the change up again."""
    plan(here.home, phase, group=COUNTED, jvm=True)
    with here.feeding(*FLOWS):
        scaled(here, number)
    assert killed(here.home)
    here.settles()


@pytest.mark.exhaustive
def test_killed_at_random(here: Deployment) -> None:
    """Five kills while files come in, wherever they meet the worker: at its start, in a batch, between two."""
    chance = random.Random(6)
    with here.feeding(*FLOWS):
        for _ in range(5):
            for worker in filter(None, (here.worker(port=port) for port in here.nimbus.settings.ports)):
                worker.kill()
            time.sleep(chance.uniform(1, 12))
    here.settles()
