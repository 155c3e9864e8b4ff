"""Where flows run: a YAML file in an application of its own, and a flow whose queries are spread over two workers."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.nimbus.deployed_flows import SCHEMA, rows_of, write
from tests.nimbus.deployment import PATIENCE, Deployment, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LOW = """
flow: low
streams:
  - name: low
    source:
      json_files: {{path: data, schema: "{schema}"}}
    operations:
      - filter: {{lt: {{v: {limit}}}}}
      - persist: low_ones
"""


@pytest.mark.exhaustive
def test_a_file_alone_and_a_flow_on_two_workers(tmp_path: Path) -> None:
    with Deployment(tmp_path / "home", ports="6900,6901,6902") as here:
        file = tmp_path / "low.yaml"
        file.write_text(LOW.format(schema=SCHEMA, limit=3))
        write(tmp_path / "data", 0)
        assert here.nimbus.deploy(file=file, trigger_seconds=0.3, isolated=True)[1] == "submitted"
        here.submit("readings", workers=2)
        here.runs("low", "readings")
        own = here.worker_of("low").pid
        workers = {task.pid for task in here.nimbus.flow("readings").tasks}
        assert len(workers) == 2
        assert own not in workers
        # One of the two dies: the queries of the other one are none the wiser.
        dead, well = (here.task("readings", number).pid for number in spread(here))
        psutil.Process(int(dead or 0)).kill()
        with here.feeding("readings"):
            wait_for(lambda: dead not in pids(here), PATIENCE, lambda: str(here.nimbus.flow("readings")))
            here.runs("readings")
        assert well in pids(here)
        here.settles("readings")
        assert_file_changes(here, file, own)
        here.ends_well("readings")


@pytest.mark.exhaustive
def test_queries_that_wait_for_each_others_tables(tmp_path: Path) -> None:
    with Deployment(tmp_path / "home") as here:
        here.submit("asking")
        here.runs("asking")
        here.next_batch("asking")
        here.ends_well("asking")


def assert_file_changes(here: Deployment, file: Path, pid: int) -> None:
    """The version that is deployed counts, not the file, until the file is deployed again."""
    assert here.nimbus.deploy(file=file, isolated=True)[1] == "unchanged"
    file.write_text(LOW.format(schema=SCHEMA, limit=8))
    wait_for(lambda: low_ones(here) == below(3, 0), PATIENCE, lambda: str(low_ones(here)))
    here.worker_of("low").kill()
    write(file.parent / "data", 1)
    wait_for(lambda: low_ones(here) == below(3, 0, 1), PATIENCE, lambda: str(low_ones(here)))
    pid = here.worker_of("low").pid
    assert here.nimbus.deploy(file=file)[1] == "updated"
    wait_for(lambda: here.task("low").pid not in (None, pid), PATIENCE, lambda: str(here.nimbus.flow("low")))
    write(file.parent / "data", 2)
    wanted = sorted([*below(3, 0, 1), *below(8, 2)])
    wait_for(lambda: low_ones(here) == wanted, PATIENCE, lambda: str(low_ones(here)))


def spread(here: Deployment) -> tuple[int, int]:
    """Numbers of two tasks in two workers."""
    tasks = here.nimbus.flow("readings").tasks
    return tasks[0].task, next(one.task for one in tasks if one.pid != tasks[0].pid)


def pids(here: Deployment) -> set[int | None]:
    return {task.pid for task in here.nimbus.flow("readings").tasks}


def low_ones(here: Deployment) -> list[str]:
    return sorted(row["id"] for row in here.lake.state("low_ones").scan().to_pylist())


def below(limit: int, *files: int) -> list[str]:
    return sorted(row["id"] for number in files for row in rows_of(number) if row["v"] < limit)
