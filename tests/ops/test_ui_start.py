"""The UI's start: its home, its port, its environment."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
from pathlib import Path

import pytest

from ops.web import ui
from pipelines.catalog import FlowSettings
from pipelines.catalog.flow import PROJECT


def test_home_has_our_dagster_yaml(tmp_path: Path) -> None:
    home = ui.prepare_home(FlowSettings(tmp_path))
    text = (home / "dagster.yaml").read_text()
    assert "telemetry:\n  enabled: false" in text
    (home / "dagster.yaml").write_text("old")
    ui.prepare_home(FlowSettings(tmp_path))
    assert (home / "dagster.yaml").read_text() == text


def test_a_clusters_dagster_yaml_stays(tmp_path: Path) -> None:
    home = ui.prepare_home(FlowSettings(tmp_path))
    clusters = (PROJECT / "deploy" / "dagster.yaml").read_text()
    (home / "dagster.yaml").write_text(clusters)
    ui.prepare_home(FlowSettings(tmp_path))
    assert (home / "dagster.yaml").read_text() == clusters


def test_dagster_takes_our_dagster_yaml(tmp_path: Path) -> None:
    import dagster as dg
    from dagster._core.instance.config import PoolGranularity

    home = ui.prepare_home(FlowSettings(tmp_path))
    with dg.DagsterInstance.from_config(str(home)) as instance:
        assert not instance.telemetry_enabled
        assert instance.run_monitoring_enabled
        pools = instance.get_concurrency_config().pool_config
        assert (pools.default_pool_limit, pools.pool_granularity) == (1, PoolGranularity.RUN)


def test_a_taken_port_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind((ui.HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit) as stopped:
            ui.main(["--port", str(port)])
        said = str(stopped.value)
        assert f"port {port} of 127.0.0.1 is taken" in said
        assert f"make ui PORT={port + 1}" in said
    ui.check_port(port)


def test_make_passes_the_port_that_it_is_told() -> None:
    def command(*words: str) -> str:
        # Hosting services set PORT for another purpose. A make within `make test` names the folder that it enters and leaves.
        asked = ["make", "--no-print-directory", "--dry-run", "ui", *words]
        done = subprocess.run(
            asked, cwd=PROJECT, env=os.environ | {"PORT": "1"}, capture_output=True, text=True, check=True
        )
        return done.stdout.splitlines()[-1]

    assert shlex.split(command())[-2:] == ["-m", "ops.web.ui"]
    assert shlex.split(command("PORT=3100"))[-2:] == ["--port", "3100"]


def test_command_and_environment(tmp_path: Path) -> None:
    words = ui.command(3100)
    assert words[words.index("--host") + 1] == "127.0.0.1"
    assert words[words.index("--port") + 1] == "3100"
    assert Path(words[words.index("-w") + 1]).name == "workspace.yaml"
    made = ui.environment(FlowSettings(tmp_path))
    assert made["DAGSTER_HOME"] == str(tmp_path / "dagster")
    assert made["TRIDELTA_HOME"] == str(tmp_path)
