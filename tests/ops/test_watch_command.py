"""`tridelta watch`: it runs the flows of a folder until a signal, and drains them; nothing of it stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ops.cli.app import app
from pipelines import Lake
from pipelines.nimbus import Nimbus
from tests.nimbus.deployment import PATIENCE, end_all, processes_of, wait_for

FLOW = """\
flow: kept
streams:
  - name: s
    source: {json_files: {path: ../in, schema: "v bigint"}}
    operations:
      - persist: kept
"""


def test_a_folder_that_is_not_there_is_told_without_spark(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["watch", str(tmp_path / "none")])
    assert done.exit_code == 1
    assert "MissingPathError" in done.stderr


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_signal_drains_all_flows(home: Path) -> None:
    for folder in ("flows", "in"):
        (home / folder).mkdir()
    (home / "flows" / "kept.yaml").write_text(FLOW)
    (home / "flows" / "wrong.yaml").write_text(FLOW.replace("persist", "persits"))
    (home / "in" / "1.json").write_text('{"v": 1}\n')
    command = [sys.executable, "-m", "ops.cli.app", "watch", str(home / "flows"), "--trigger-seconds", "0.2"]
    with (
        (home / "log").open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log, env=os.environ, start_new_session=True) as running,
    ):
        lake = Lake(home / "lake")

        def runs() -> bool:
            started = "event='flow started'" in (home / "log").read_text()
            return started and "kept" in lake.states() and lake.state("kept").scan().num_rows > 0

        try:
            wait_for(runs, PATIENCE, (home / "log").read_text)
            running.send_signal(signal.SIGTERM)
            code = running.wait(PATIENCE)
            wait_for(lambda: not processes_of(home), 30, lambda: str(processes_of(home)))
        finally:
            end_all(home, [running])
    told = (home / "log").read_text()
    assert code == 0, told
    assert "event='flow stopped'" in told
    assert "line=6 reason=" in told
    assert "Traceback" not in told
    assert lake.state("kept").scan().to_pylist()[0]["v"] == 1
    with Nimbus(f"sqlite:///{home}/nimbus/registry.db", lake) as nimbus:
        assert nimbus.cluster().flows == ()
