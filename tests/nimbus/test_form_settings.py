"""What forms may ask of Spark: sizes, counts and switches, and nothing that runs code or leads elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.nimbus.errors import FormSettingError, UnknownFormSettingError
from pipelines.nimbus.flow_settings import SETTINGS, check_form
from pipelines.private import SPARK_SETTINGS


@pytest.mark.parametrize(
    "name",
    [
        "spark.plugins",
        "spark.jars",
        "spark.jars.packages",
        "spark.jars.repositories",
        "spark.jars.ivySettings",
        "spark.submit.pyFiles",
        "spark.extraListeners",
        "spark.sql.extensions",
        "spark.sql.catalog.spark_catalog",
        "spark.driver.extraJavaOptions",
        "spark.executor.extraJavaOptions",
        "spark.driver.extraClassPath",
        "spark.executorEnv.LD_PRELOAD",
        "spark.pyspark.python",
        "spark.pyspark.driver.python",
        "spark.kubernetes.container.image",
        "spark.hadoop.fs.file.impl",
        "spark.serializer",
        "spark.master",
        "spark.Executor.memory",
        " spark.executor.memory",
        "spark.executor.memory ",
        "SPARK.PLUGINS",
        "spark.sql.warehouse.dir",
        "spark.eventLog.dir",
        "spark.ui.enabled",
        "",
    ],
)
def test_what_runs_code_is_refused(name: str) -> None:
    with pytest.raises(FormSettingError) as refused:
        check_form("flights", {"spark": {name: "1"}})
    assert refused.value.setting == name
    assert "--setting" in str(refused.value)


@pytest.mark.parametrize(
    "value", ["$(id)", "4g -javaagent:x", "4g\n", "", "4 g", "file:/x", None, ["1"], {"a": 1}, "1" * 40]
)
def test_a_value_is_a_number_a_size_or_a_switch(value: Any) -> None:
    with pytest.raises(FormSettingError):
        check_form("flights", {"spark": {"spark.executor.memory": value}})


@pytest.mark.parametrize(
    "master", ["spark://evil:7077", "yarn", "k8s://https://evil", "local[2]\n", "local-cluster[1,1,1]", 5]
)
def test_a_form_names_no_other_master(master: Any) -> None:
    with pytest.raises(FormSettingError):
        check_form("flights", {"master": master})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("file", None),
        ("inactive", None),
        ("flow", None),
        ("workers", "user_workers"),
        ("parallelism", None),
        ("max_atempts", "max_attempts"),
        ("Isolated", "isolated"),
        ("", None),
    ],
)
def test_a_form_takes_settings_alone(name: str, meant: str | None) -> None:
    """What is none would be another argument of `Nimbus.update`: a file that is read and built as the operator."""
    with pytest.raises(UnknownFormSettingError) as refused:
        check_form("flights", {"max_attempts": 5, name: "/tmp/x.yaml"})
    assert (refused.value.flow, refused.value.setting, refused.value.known) == ("flights", name, SETTINGS)
    assert "max_attempts" in refused.value.hint
    assert meant is None or f'did you mean "{meant}"?' in str(refused.value)


def test_the_rest_passes() -> None:
    values = ["4g", "512m", "2", "0.6", 3, True, "false", "10485760", "-1"]
    for number, name in enumerate(sorted(SPARK_SETTINGS)):
        check_form("flights", {"spark": {name: values[number % len(values)]}})
    check_form("flights", {"master": "local[*]", "isolated": True, "spark": {}, "max_attempts": 5})
    # Of another kind: that is for the check of all settings.
    check_form("flights", {"spark": ["x"]})
