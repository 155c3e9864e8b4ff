"""Executors get the package, and say before the first batch what they lack. Here they are a local Spark's Python workers."""

from __future__ import annotations

import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime, catalog
from pipelines.execution.protocol.failures import MissingModuleError
from pipelines.execution.runners import executors
from pipelines.execution.runners.executors import ExecutorError, check_executors, code_archive
from pipelines.sources import JsonFiles
from pipelines.trident import DeltaState, TridentTopology


def asked(spark: SparkSession, root: Path) -> None:
    """The question itself; a local session is not asked."""
    probe = root / "probe"
    probe.write_text("tridelta\n")
    executors._ask(spark, probe.parent, probe)


def test_a_local_session_is_not_asked(spark: SparkSession, tmp_path: Path) -> None:
    check_executors(spark, tmp_path / "lake")
    assert not (tmp_path / "lake").exists()


@pytest.mark.slow
def test_they_answer(spark: SparkSession, tmp_path: Path) -> None:
    executors._within(spark.sparkContext, 100, lambda: asked(spark, tmp_path))


@pytest.mark.slow
def test_a_module_that_they_lack_is_named(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "_LOADED", ("no_such_module",))
    with pytest.raises(ExecutorError, match=r"cannot run this: on \S+: No module named 'no_such_module'"):
        asked(spark, tmp_path)


@pytest.mark.slow
def test_a_lake_that_they_do_not_see_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ExecutorError, match="does not see the lake") as caught:
        executors._ask(spark, tmp_path / "lake", tmp_path / "lake" / "probe")
    assert str(tmp_path / "lake") in str(caught.value)
    assert "TRIDELTA_LAKE" in str(caught.value)


def test_a_cluster_without_free_cores_is_not_waited_for_without_end() -> None:
    class Context:
        master = "spark://nobody:7077"
        cancelled: list[str] = []

        def setJobGroup(self, *given: Any, **more: Any) -> None: ...  # noqa: N802

        def cancelJobGroup(self, group: str) -> None:  # noqa: N802
            self.cancelled.append(group)

    context: Any = Context()
    with pytest.raises(ExecutorError, match=r"none has answered for 0\.1 seconds"):
        executors._within(context, 0.1, lambda: time.sleep(1))
    assert len(context.cancelled) == 1


def test_the_archive_holds_the_package_and_the_modules_of_flows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert executors._FLOWS == catalog.MODULES
    (tmp_path / "shop_flows.py").write_text("FLOWS = ()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(executors._FLOWS, "shop_flows, tests.nimbus.deployed_flows")
    archive = code_archive(tmp_path / "cache")
    with zipfile.ZipFile(archive) as whole:
        names = set(whole.namelist())
    assert {"pipelines/__init__.py", "pipelines/windows/__init__.py", "shop_flows.py"} <= names
    assert "tests/nimbus/deployed_flows.py" in names
    assert code_archive(tmp_path / "cache") == archive
    (tmp_path / "shop_flows.py").write_text("FLOWS = []\n")
    assert code_archive(tmp_path / "cache") != archive


def test_threads_of_one_process_make_an_archive_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, written = threading.Barrier(2), zipfile.ZipFile

    def opened(*given: Any) -> zipfile.ZipFile:
        archive = written(*given)
        begun.wait(60)
        return archive

    monkeypatch.setattr("pipelines.execution.runners.executors.zipfile.ZipFile", opened)
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(code_archive, [tmp_path / "cache"] * 2))
    assert [*(tmp_path / "cache").iterdir()] == [made[0]] == [made[1]]
    with written(made[0]) as whole:
        assert whole.testzip() is None


@pytest.mark.slow
def test_a_module_that_is_missing_in_a_batch_puts_no_row_into_quarantine(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"k": "a"}\n')

    def lacking(k: str) -> Iterator[str]:
        import no_such_module  # type: ignore[import-not-found]

        yield no_such_module.shown(k)

    topology = TridentTopology("rows")
    stream = topology.new_stream("in", JsonFiles(tmp_path / "in", "k string"))
    stream.each(["k"], lacking, "s string").partition_persist(DeltaState("kept"))
    lake = Lake(tmp_path / "lake")
    with pytest.raises(MissingModuleError, match="no module no_such_module"):
        Runtime(spark, lake).catch_up(topology)
    assert not lake.quarantine_path("rows").exists()
