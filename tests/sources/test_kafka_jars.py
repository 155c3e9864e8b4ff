"""Kafka's jars: beside Delta's in the cache, behind them on the class path, and not needed by a flow without Kafka."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from pipelines.errors import JarsError
from pipelines.spark import jars, session
from pipelines.spark.java import find_java


def with_delta_alone(cache: Path) -> Path:
    (cache / "jars").mkdir()
    for path in jars.set_paths(jars.DELTA):
        shutil.copy(path, cache / "jars")
    return cache


def test_missing_ones_are_named(tmp_path: Path) -> None:
    with pytest.raises(JarsError, match="Kafka's jars are not in") as caught:
        jars.set_paths(jars.KAFKA, with_delta_alone(tmp_path))
    assert caught.value.missing == tuple(jar.file_name for one in jars.KAFKA for jar in one.jars)
    assert "make setup" in caught.value.hint


def test_a_session_does_without_them(tmp_path: Path) -> None:
    java = find_java()
    without = session.settings("spark://h:7077", java=java, cache=with_delta_alone(tmp_path))
    assert without["spark.jars"] == ",".join(map(str, jars.set_paths(jars.DELTA, tmp_path)))
    both = session.settings("spark://h:7077", java=java, cache=jars.cache_folder())
    assert both["spark.jars"].split(",") == [str(path) for path in jars.set_paths((*jars.DELTA, *jars.KAFKA))]
    # The archive is made for what comes first in the class path, which Kafka never does.
    local = session.settings("local[2]", java=java, cache=jars.cache_folder())
    assert "kafka" not in local["spark.driver.extraClassPath"]


def test_they_come_last_on_the_class_path_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_DIST_CLASSPATH", "/own/conf")
    # What preparing changes is put back by monkeypatch.
    for name in ("JAVA_HOME", "SPARK_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, os.environ.get(name, "x"))
    for _ in range(2):
        session._prepare_environment(find_java(), jars.set_paths(jars.KAFKA), home=tmp_path)
    assert os.environ["SPARK_DIST_CLASSPATH"].split(os.pathsep) == ["/own/conf", *map(str, jars.set_paths(jars.KAFKA))]


def test_setup_goes_on_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIDELTA_CACHE", str(with_delta_alone(tmp_path)))
    monkeypatch.setattr(jars, "fetch", lambda *_: "they could not be fetched")
    assert jars.main() == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("Sources of Kafka will not work, all else will. Kafka's jars are not in")
