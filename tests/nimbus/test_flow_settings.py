"""What settings of flows and of Nimbus' processes may be, to the last element."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from pipelines.nimbus.deployed import SHARED, WATCHED, content_of
from pipelines.nimbus.errors import DeployError, SettingError, SubmitError
from pipelines.nimbus.flow_settings import SETTINGS, TEXTS, FlowSettingsForm, check_settings, check_user_workers
from pipelines.nimbus.settings import PREFIX, NimbusSettings
from pipelines.sources import FixedBatches
from pipelines.thresholds import Thresholds
from pipelines.trident import DeltaState, TridentTopology

WRONG = [
    ("hosts", [1, "a"]),
    ("hosts", "a"),
    ("hosts", ["a", "a"]),
    ("hosts", [["a"]]),
    ("hosts", ["a\nb"]),
    ("user_workers", [1]),
    ("user_workers", [{}]),
    ("user_workers", [{"components": {}}]),
    ("user_workers", [{"components": {"q": 0}}]),
    ("user_workers", [{"components": {"q": True}}]),
    ("user_workers", [{"components": {"q": 1}, "port": -5}]),
    ("user_workers", [{"components": {"q": 1}, "host": 5}]),
    ("user_workers", [{"components": {"q": 1}, "port": 6900}]),
    ("user_workers", [{"components": {"q": 1}, "host": "", "port": 6900}]),
    ("user_workers", [{"components": {"q": 1}, "prot": 5}]),
    ("max_attempts", -5),
    ("max_attempts", 0),
    ("max_attempts", True),
    ("max_attempts", 10**30),
    ("max_attempts", "3"),
    ("trigger_seconds", math.nan),
    ("trigger_seconds", 0),
    ("trigger_seconds", 10**400),
    ("message_timeout_seconds", math.inf),
    ("message_timeout_seconds", 1e300),
    ("on_fresh_checkpoint", "resett"),
    ("on_fresh_checkpoint", None),
    ("isolated", 1),
    ("master", "locl[4]"),
    ("master", "local[0]"),
    ("master", "local[4]\n"),
    ("spark", {"spark.a": [1]}),
    ("spark", {1: "x"}),
    ("rebalance", {"bussy": 0.5}),
    ("rebalance", {"busy": "x"}),
    ("rebalance", {"busy": math.nan}),
    ("rebalance", {"busy": 0.5}),
    ("rebalance", {"looks": 0}),
    ("clustering", {"a": [1]}),
    ("clustering", ["a"]),
    ("owner", 5),
    ("owner", "a\0b"),
    ("application", ""),
    ("application", "x" * 10_000),
    ("nobody_has_it", 1),
]


@pytest.mark.parametrize(("name", "value"), WRONG, ids=lambda one: repr(one)[:40])
def test_settings_that_nobody_could_use(name: str, value: Any) -> None:
    with pytest.raises(SubmitError) as caught:
        check_settings("f", {name: value})
    assert name in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_settings_that_hold() -> None:
    check_settings(
        "f",
        {
            "trigger_seconds": 5,
            "message_timeout_seconds": -1,
            "max_attempts": 4,
            "hosts": ("a", "b"),
            "user_workers": [{"components": {"q": 1}, "host": "a", "port": 6900}],
            "master": "spark://h:7077",
            "spark": {"spark.executor.memory": "2g", "spark.executor.cores": 2},
            "rebalance": {"busy": 0.9},
            "clustering": {"a": "k", "b": ["k", "l"]},
            "on_fresh_checkpoint": "continue",
        },
    )
    for master in (
        "local",
        "local[*]",
        "local[4]",
        "local[4,2]",
        "local-cluster[2,1,1024]",
        "yarn",
        "k8s://https://h:6443",
    ):
        check_settings("f", {"master": master})


def test_workers_of_queries_that_the_flow_lacks() -> None:
    check_user_workers("f", {"user_workers": [{"components": {"q": 1}}]}, ["q"])
    with pytest.raises(SubmitError, match="no query 'r'; it has q"):
        check_user_workers("f", {"user_workers": [{"components": {"r": 1}}]}, ["q"])


def test_the_form_knows_which_settings_are_texts() -> None:
    texts = {name for name in SETTINGS if isinstance(_example(name), str)}
    assert texts == TEXTS


def _example(name: str) -> Any:
    return FlowSettingsForm(application="a", master="local").__dict__[name]


OF_PROCESSES = [
    *(
        (name, text)
        for name in ("lease_seconds", "beat_seconds", "stop_seconds")
        for text in ("nan", "inf", "-1", "²", "")
    ),
    ("lease_seconds", "0"),
    ("ports", "-5"),
    ("ports", "0"),
    ("ports", "1,1"),
    ("ports", "1,,2"),
    ("ports", "65536"),
    ("worker_memory_mb", "0"),
    ("worker_memory_mb", "1.5"),
    ("metrics_port", "70000"),
    ("metrics_port", "-1"),
    ("log_files", "0"),
    ("log_megabytes", "0"),
    ("retention_days", "-1"),
    ("retention_days", "1e300"),
    ("warm", "perhaps"),
]


@pytest.mark.parametrize(("name", "text"), OF_PROCESSES)
def test_settings_of_processes(name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIDELTA_HOME", str(tmp_path))
    monkeypatch.setenv(PREFIX + name.upper(), text)
    if not text:
        assert NimbusSettings.from_environment() == NimbusSettings(tmp_path / "nimbus")
        return
    with pytest.raises(SettingError) as caught:
        NimbusSettings.from_environment()
    assert PREFIX + name.upper() in str(caught.value)
    assert len(str(caught.value).splitlines()) == 2


def test_settings_of_processes_that_do_not_fit_each_other(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="two beats"):
        NimbusSettings(tmp_path, lease_seconds=5.0, beat_seconds=5.0)
    with pytest.raises(SettingError, match="two beats"):
        NimbusSettings(tmp_path, supervisor_timeout_seconds=1.0)


def test_each_setting_of_processes_has_limits(tmp_path: Path) -> None:
    numbers = [
        one.name for one in fields(NimbusSettings) if isinstance(getattr(NimbusSettings(tmp_path), one.name), float)
    ]
    for name in numbers:
        with pytest.raises(SettingError, match=name):
            NimbusSettings(tmp_path, **{name: math.nan})  # type: ignore[arg-type]


def test_each_threshold_has_limits() -> None:
    for one in fields(Thresholds):
        with pytest.raises(ValueError, match=one.name):
            Thresholds(**{one.name: math.nan})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [SHARED, WATCHED])
def test_no_flow_has_the_name_of_an_application_that_flows_share(name: str) -> None:
    """Isolated, or with Spark settings of its own, its application would be theirs."""
    topology = TridentTopology(name)
    topology.new_stream("s", FixedBatches("k string", [])).partition_persist(DeltaState("t"))
    with pytest.raises(DeployError, match="an application that flows share has that name"):
        content_of(topology, {"kind": "catalog", "name": name, "lake": "/lake"})
