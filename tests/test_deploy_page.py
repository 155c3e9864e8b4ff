"""docs/deploy.md names every setting, command, job and metric that there is."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import typer.main

from pipelines.nimbus.deployed import SETTINGS
from pipelines.nimbus.settings import PREFIX, NimbusSettings

PAGE = (Path(__file__).parent.parent / "docs" / "deploy.md").read_text(encoding="utf-8")


def test_every_setting_of_the_processes_and_of_flows_is_named() -> None:
    missing = [one.name for one in fields(NimbusSettings) if f"`{PREFIX}{one.name.upper()}`" not in PAGE]
    assert missing == []
    assert [name for name in SETTINGS if f"`{name}`" not in PAGE] == []


def test_every_command_is_named() -> None:
    from ops.cli import deployed

    words = set(re.findall(r"[a-z]+", " ".join(re.findall(r"^\| `tridelta [^|]*\|", PAGE, re.MULTILINE))))
    assert set(typer.main.get_group(deployed.app).commands) <= words


def test_every_metric_is_named() -> None:
    from prometheus_client import CollectorRegistry

    from pipelines.nimbus.telemetry.metrics import collector
    from tests.fake_nimbus import FakeNimbus
    from tests.nimbus.looks import RUNNING, flow

    registry = CollectorRegistry()
    registry.register(collector(FakeNimbus(flow("flights", RUNNING))))
    names = [f"{family.name}_total" if family.type == "counter" else family.name for family in registry.collect()]
    # A row of the table gives the first name in full, of the others the ends.
    told = re.findall(r"`(?:tridelta)?(_\w+)`", PAGE)
    assert [name for name in names if not any(name.endswith(end) for end in told)] == []
