"""Processes that the product starts take no module from the folder that they happen to be started in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.nimbus.processes.supervisor import worker_command, worker_environment
from pipelines.nimbus.registry.store import Store
from pipelines.nimbus.settings import NimbusSettings

PROJECT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        worker_command("s1", 6900, "life"),
        [sys.executable, "-P", "-m", "pipelines.nimbus.processes.supervisor", "--help"],
    ],
    ids=["worker", "supervisor"],
)
def test_a_module_in_the_working_directory_is_not_run(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "argparse.py").write_text("print('taken from here')\nraise SystemExit(3)\n")
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    done = subprocess.run(
        [*command[: command.index("-m") + 2], "--help"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "taken from here" not in done.stdout


def test_what_a_worker_starts_takes_none_either(tmp_path: Path) -> None:
    store = Store.migrated(f"sqlite:///{tmp_path}/registry.db")
    try:
        assert worker_environment(store, NimbusSettings(tmp_path))["PYTHONSAFEPATH"] == "1"
    finally:
        store.close()


def test_every_python_child_is_started_with_p() -> None:
    found = [
        (str(file), line)
        for room in ("pipelines", "ops", "assets", "resources")
        for file in (PROJECT / room).rglob("*.py")
        for line in file.read_text("utf-8").splitlines()
        if "sys.executable, " in line
    ]
    assert len(found) >= 5
    assert [one for one in found if '"-P"' not in one[1]] == []
