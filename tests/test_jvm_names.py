"""Names that the JVM is asked for once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from py4j.clientserver import JavaClient
from py4j.java_gateway import java_import
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the JVM is asked for each name."""
    found: Counter[str] = Counter()
    send = JavaClient.send_command

    def counted(self: Any, command: str, *more: Any, **options: Any) -> Any:
        if command.startswith("r\n"):
            found[command.split("\n")[2]] += 1
        return send(self, command, *more, **options)

    monkeypatch.setattr(JavaClient, "send_command", counted)
    return found


def test_a_class_is_asked_for_once(spark: SparkSession, asked: Counter[str]) -> None:
    def columns() -> str:
        return str(F.coalesce(F.col("a"), F.lit(1)).cast("long"))

    columns()
    asked.clear()
    assert "coalesce(a, 1)" in columns()
    assert not asked


def test_packages_and_nested_classes(spark: SparkSession, asked: Counter[str]) -> None:
    jvm: Any = spark._jvm
    assert jvm.java.util.ArrayList().size() == 0
    entry = jvm.java.util.AbstractMap.SimpleEntry("a", 1)
    asked.clear()
    assert jvm.java.util.ArrayList().size() == 0
    assert jvm.java.util.AbstractMap.SimpleEntry("a", 1).equals(entry)
    assert not asked


def test_a_static_field_is_read_each_time(spark: SparkSession, asked: Counter[str]) -> None:
    jvm: Any = spark._jvm
    jvm.java.lang.Integer.parseInt("1")
    asked.clear()
    assert jvm.java.lang.Integer.MAX_VALUE == jvm.java.lang.Integer.MAX_VALUE == 2**31 - 1
    assert asked["java.lang.Integer"] == 2


def test_a_name_that_is_imported_later(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    with pytest.raises((Py4JError, TypeError)):
        jvm.StringJoiner("-")
    java_import(jvm, "java.util.StringJoiner")
    assert jvm.StringJoiner("-").add("a").add("b").toString() == "a-b"
    with pytest.raises(Py4JError):
        jvm.java.lang.Integer.no_such_member  # noqa: B018
