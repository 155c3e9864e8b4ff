"""Flows whose Spark runs on a standalone cluster of two workers; executors and workers of Spark are lost while they run."""

from __future__ import annotations

import os
import signal
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.nimbus.deployment import PATIENCE, Deployment, wait_for
from tests.nimbus.faults import kill_worker
from tests.nimbus.spark_cluster import SparkCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def without_the_package(wrapper: Path) -> Path:
    """This Python for executors, with the packages that are installed, and not this project: it has to be sent to them."""
    packages = sysconfig.get_paths()["purelib"]
    # Without `site` nothing is read of the files that lead from there to the project's folder.
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH="{packages}:$PYTHONPATH" exec {sys.executable} -S "$@"\n')
    wrapper.chmod(0o755)
    return wrapper


@pytest.mark.exhaustive
def test_losses_of_a_cluster(tmp_path: Path) -> None:
    """An executor is taken away after a notice, and without one; a worker of Spark likewise; then Nimbus' own, the driver."""
    home, python = tmp_path / "home", without_the_package(tmp_path / "python")
    with SparkCluster(home) as cluster, Deployment(home, environment={"PYSPARK_PYTHON": str(python)}) as here:
        settings = {"master": cluster.master, "spark": cluster.settings, "application": "clustered"}
        here.submit("numbers", "readings", **settings)
        here.runs("numbers", "readings")
        wait_for(lambda: len(cluster.executors()) == 2, PATIENCE, lambda: str(cluster.executors()))
        pid = here.worker_of("numbers").pid
        with here.feeding("numbers", "readings", every=1):
            here.nimbus.wait("numbers", until="batch", seconds=PATIENCE)
            lost = cluster.executors()[0]
            lost.kill()
            here.next_batch("readings")
            wait_for(lambda: len(cluster.executors()) == 2, PATIENCE, lambda: str(cluster.executors()))
            preempted = cluster.executors()[0]
            preempted.send_signal(signal.SIGPWR)
            here.next_batch("readings")
            wait_for(lambda: not preempted.is_running(), PATIENCE, lambda: str(preempted))
            os.kill(cluster.workers[1].pid, signal.SIGPWR)
            here.next_batch("numbers")
            os.killpg(cluster.workers[1].pid, signal.SIGKILL)
            cluster.workers[1].wait()
            here.next_batch("readings")
            cluster.start_worker()
            wait_for(lambda: len(cluster.executors()) == 2, PATIENCE, lambda: str(cluster.executors()))
            os.killpg(cluster.workers[0].pid, signal.SIGKILL)
            cluster.workers[0].wait()
            here.next_batch("numbers")
            here.next_batch("readings")
            assert here.worker_of("numbers").pid == pid, "a lost executor is Spark's to replace"
            cluster.start_worker()
            wait_for(lambda: len(cluster.executors()) == 2, PATIENCE, lambda: str(cluster.executors()))
            kill_worker(here, "numbers")
            here.next_batch("numbers", pid)
        here.ends_well()
