"""Settings, URLs, folders and records that are wrong, where no Spark is needed to find out."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from ops import housekeeping
from ops.web import ui
from pipelines import Lake, Runtime
from pipelines.bounds import required_master
from pipelines.catalog import FlowSettings
from pipelines.errors import DefinitionError, TrideltaError
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.flowmix import Flow
from pipelines.maintenance import Retention
from pipelines.maintenance.housekeeping_report import RetentionSettingError
from pipelines.nimbus.errors import RegistryError
from pipelines.nimbus.flow_folder import FlowFolder
from pipelines.nimbus.handover.serving import Endpoint
from pipelines.nimbus.registry.store import Store
from pipelines.sources import CsvFiles, DeltaTableSource, JsonFiles, ParquetFiles, Rate, TextFiles
from pipelines.surroundings import FileAccessError, NotAFolderError, refused

NONE: Any = None
PROJECT = Path(__file__).resolve().parents[1]


def plain(error: TrideltaError) -> str:
    text = str(error)
    assert len(text.splitlines()) <= 2, text
    assert "Traceback" not in text
    return text


# --- the registry's URL ---------------------------------------------------------------------------------------------

URLS = [
    "postgresql://u@h:99x/db",
    "postgresql://u@h:-1/db",
    "postgresql+nodriver://u@h/db",
    "sqlite+nodriver:///{tmp}/x.db",
    "mysql://u@h/db",
    "sqlite:///{tmp}/file/x.db",
    "sqlite:///{tmp}/folder",
    "sqlite:///{tmp}/text.db",
    "sqlite:///{tmp}/a\0b.db",
    "sqlite:///{tmp}/" + "x" * 300 + ".db",
    "sqlite:///{tmp}/other.db",
    "sqlite:///{tmp}/x.db?nobody_has_it=1",
    "sqlite://host/x.db",
    "://",
    "x",
    " ",
    "sqlite:///{tmp}/\udcff.db",
]


@pytest.mark.parametrize("url", URLS)
def test_urls_that_are_no_registry(url: str, tmp_path: Path) -> None:
    import sqlite3

    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.db").write_text("this is no database, and long enough to be looked at as one" * 20)
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        other.execute("INSERT INTO alembic_version VALUES ('nobody')")
    other.close()
    with pytest.raises(RegistryError) as caught:
        Store.migrated(url.replace("{tmp}", str(tmp_path)), busy_seconds=1)
    plain(caught.value)


# --- the home and the lake ------------------------------------------------------------------------------------------


def test_a_lake_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("x")
    for path in (tmp_path / "lake", tmp_path / "lake" / "below"):
        with pytest.raises(NotAFolderError) as caught:
            Lake(path)
        assert caught.value.path == str(tmp_path / "lake")
        assert "is no folder" in plain(caught.value)


@pytest.mark.parametrize(
    "look", [Lake.states, Lake.channels, lambda lake: lake.state("x"), lambda lake: lake.channel("x")]
)
def test_a_part_of_the_lake_that_is_a_file(look: Callable[[Lake], Any], tmp_path: Path) -> None:
    for name in ("states", "channels"):
        (tmp_path / name).write_text("x")
    with pytest.raises(NotAFolderError):
        look(Lake(tmp_path))


def test_a_table_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "states").mkdir()
    (tmp_path / "states" / "x").write_text("x")
    with pytest.raises(NotAFolderError, match='the table of "x"'):
        Lake(tmp_path).state("x")


def test_a_home_of_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIDELTA_HOME", "~nobody_has_this_name/x")
    with pytest.raises(FileAccessError, match="TRIDELTA_HOME"):
        FlowSettings.from_environment()


def test_a_durable_that_is_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, on in (("1", True), ("no", False), ("", False), (" On ", True)):
        monkeypatch.setenv("TRIDELTA_DURABLE", text)
        assert Lake(tmp_path).durable is on
    monkeypatch.setenv("TRIDELTA_DURABLE", "perhaps")
    with pytest.raises(DefinitionError, match="TRIDELTA_DURABLE must be 1 or 0, not 'perhaps'"):
        Lake(tmp_path)


def command(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """`tridelta` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "ops.cli.app", *arguments],
        env={**os.environ, "PYTHONPATH": str(PROJECT), "COLUMNS": "200", **environment},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
def test_a_home_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    done = command("list", TRIDELTA_HOME=str(tmp_path / "file"))
    assert done.returncode == 1
    assert "NotAFolderError" in done.stderr
    assert "Traceback" not in done.stderr
    # HOME itself is of no matter to a command that needs nothing of it.
    assert command("list", HOME=str(tmp_path / "file"), TRIDELTA_HOME=str(tmp_path / "home")).returncode == 0


@pytest.mark.slow
def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    script = f'mkdir {gone}; cd {gone}; rmdir {gone}; exec "{sys.executable}" -m ops.cli.app new mine --yaml'
    done = subprocess.run(
        ["sh", "-c", script],
        env={**os.environ, "PYTHONPATH": str(PROJECT), "TRIDELTA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert "is gone" in done.stderr


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A file system that holds a lake and was mounted anew, read-only."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m", "tridelta-test", str(folder)], check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this test mounts a file system, which is not permitted here: {error}")
    try:
        Lake(folder / "lake").checkpoint_path("counting", "rows").mkdir(parents=True)
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        yield folder / "lake"
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("group", ["rows", "others"])
def test_a_read_only_lake_is_told_before_anything_runs(read_only: Path, group: str) -> None:
    """Whatever runs a flow takes the checkpoint's lock first."""
    checkpoint = Checkpoint("counting", Lake(read_only).checkpoint_path("counting", group))
    for lock in (checkpoint.running, checkpoint.committing, checkpoint.rewriting):
        with pytest.raises(FileAccessError, match="Read-only file system") as caught, lock(1):
            pass
        assert "mount it for writing" in caught.value.hint
        assert caught.value.path.startswith(str(read_only))
        plain(caught.value)


# --- tidy -----------------------------------------------------------------------------------------------------------


def test_odd_folders_do_not_stop_tidy(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    for odd in ("Odd Name", ".hidden", "empty_log", "x-y"):
        (lake.root / "states" / odd / "_delta_log").mkdir(parents=True)
        (lake.root / "quarantine" / odd / "_delta_log").mkdir(parents=True)
        (lake.root / "checkpoints" / odd / "q" / "spark" / "state").mkdir(parents=True)
        (lake.root / "copies" / odd / "q" / "c").mkdir(parents=True)
    write_deltalake(lake.root / "states" / "foreign", pa.table({"a": [1]}))
    damaged = lake.root / "states" / "damaged" / "_delta_log"
    damaged.mkdir(parents=True)
    (damaged / "00000000000000000000.json").write_text("{not json")
    assert lake.states() == ["damaged", "empty_log", "foreign"]
    report = housekeeping.run_round(lake, FlowSettings(tmp_path), Retention(), compacts=True)
    assert {one.what for one in report.things} >= {"state of windows", "copies of checkpoints", "replaced checkpoints"}


# --- numbers and words of Python's API, of environment and records ---------------------------------------------------


@pytest.mark.parametrize("number", [0, -1, True, 1.5, "1", 2**80, math.nan])
def test_limits_of_sources(number: Any, tmp_path: Path) -> None:
    made: list[Callable[[], Any]] = [
        lambda: JsonFiles(tmp_path, "a int", max_files_per_batch=number),
        lambda: CsvFiles(tmp_path, "a int", max_bytes_per_batch=number),
        lambda: ParquetFiles(tmp_path, "a int", max_files_per_batch=number),
        lambda: TextFiles(tmp_path, "a", max_files_per_batch=number),
        lambda: DeltaTableSource(tmp_path, "a int", max_files_per_batch=number),
        lambda: Rate(rows_per_second=number),
        lambda: Rate(rows_per_batch=1, partitions=number),
    ]
    for make in made if number != "1" else ():
        with pytest.raises(DefinitionError):
            make()


@pytest.mark.parametrize("kind", [JsonFiles, CsvFiles, ParquetFiles, TextFiles])
def test_files_have_one_limit(kind: Any, tmp_path: Path) -> None:
    """Spark's stream refuses two."""
    fields = () if kind is TextFiles else ("a int",)
    with pytest.raises(
        DefinitionError, match=f"{kind.__name__}: max_files_per_batch and max_bytes_per_batch are given"
    ):
        kind(tmp_path, *fields, max_files_per_batch=1, max_bytes_per_batch=1)
    DeltaTableSource(tmp_path, "a int", max_files_per_batch=1, max_bytes_per_batch=1)


@pytest.mark.parametrize(
    "option",
    ["cleanSource", "sourceArchiveDir", "mode", "MODE", "columnNameOfCorruptRecord", "ignoreCorruptFiles", "PATH",
     "ignoreMissingFiles", "modifiedBefore", "modifiedAfter", "maxFileAge", "latestFirst", "fileNameOnly",
     "maxFilesPerTrigger", "maxBytesPerTrigger", "wholetext", "columnpruning", "singleVariantColumn"],
)  # fmt: skip
def test_options_by_which_rows_or_files_would_be_lost(option: str, tmp_path: Path) -> None:
    """Spark knows an option in any case of letters."""
    for kind in (JsonFiles, CsvFiles, ParquetFiles):
        with pytest.raises(DefinitionError, match=f"no option {option}"):
            kind(tmp_path, "a int", **{option: "x"})
    with pytest.raises(DefinitionError, match=f"TextFiles: no option {option}"):
        TextFiles(tmp_path, **{option: "x"})


def test_limits_of_the_runtime(tmp_path: Path) -> None:
    for wrong in ({"max_attempts": -5}, {"max_attempts": True}, {"lock_wait_seconds": math.nan}):
        with pytest.raises(DefinitionError, match=next(iter(wrong))):
            Runtime(NONE, Lake(tmp_path), **wrong)  # type: ignore[arg-type]
    flow, runtime = Flow("f").stream("s", Rate(rows_per_batch=1)).output().build(), Runtime(NONE, Lake(tmp_path))
    for run in (runtime.catch_up, runtime.stream):
        for choice in ("on_fresh_checkpoint", "changed_windows"):
            with pytest.raises(DefinitionError, match=f"{choice} .*beginn"):
                run(flow, **{choice: "beginn"})
    for more in ({"on_fresh_checkpoint": "resett"}, {"trigger_seconds": -1.0}, {"trigger_seconds": math.inf}):
        with pytest.raises(DefinitionError, match=next(iter(more))):
            FlowFolder(NONE, tmp_path, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "1e300", "soon", "²"])
def test_retentions(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STATE_HOURS", "QUARANTINE_DAYS", "FLOW_EVENTS", "WAIT_SECONDS"):
        with monkeypatch.context() as patched:
            patched.setenv(f"TRIDELTA_KEEP_{name}", text)
            with pytest.raises(RetentionSettingError):
                Retention.from_environment()


@pytest.mark.parametrize("port", ["0", "-5", "70000", "²", "9" * 5000, "3000.5", "nan"])
def test_ports_of_the_ui(port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIDELTA_UI_PORT", port)
    with pytest.raises(SystemExit, match="TRIDELTA_UI_PORT must be a whole number from 1 to 65535"):
        ui.main(["--no-supervisor"])
    with pytest.raises(SystemExit, match="--port must be a whole number from 1 to 65535"):
        ui.main(["--port", port])


@pytest.mark.parametrize("master", ["locl[4]", "local[x]", "local[0]", "mesos://h", "local[4] ", "", "spark://"])
def test_masters(master: str) -> None:
    with pytest.raises(DefinitionError, match="must be a master of Spark"):
        required_master("master", master)


WRITTEN = {"port": 4000, "key": "ab", "waits": True, "pid": os.getpid(), "created": 1.0, "boot": "b", "ticks": 1}


@pytest.mark.parametrize(
    "change",
    [
        *({"key": key} for key in ("xyz", 5, None, [], "a", "é", {})),
        *({"port": port} for port in (0, -1, 70_000, 1e400, "x", None, [], True)),
        *({"pid": pid} for pid in (0, -1, 2**70, "x", None)),
        {"created": math.nan},
        {"ticks": "x"},
    ],
)
def test_endpoints_that_are_none(change: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "one.endpoint.json"
    file.write_text(json.dumps(WRITTEN))
    assert Endpoint.read(file) is not None
    file.write_text(json.dumps(WRITTEN | change))
    assert Endpoint.read(file) is None


@pytest.mark.parametrize("text", ["", "[]", "5", '"x"', "null", "{", "[" * 100_000, "\0"])
def test_endpoint_files_that_are_none(text: str, tmp_path: Path) -> None:
    file = tmp_path / "one.endpoint.json"
    file.write_text(text)
    assert Endpoint.read(file) is None


def test_what_the_file_system_says_in_other_languages() -> None:
    for text, code in (
        ("Generic LocalFileSystem error: Unable to open file /lake/x: Read-only file system (os error 30)", 30),
        ("java.io.IOException: Permission denied", 13),
        ("org.apache.spark.SparkException: mkdir of file:/lake/states/x: Read-only file system", 30),
    ):
        found = refused(ValueError(text))
        assert found is not None
        assert found.code == code
    assert refused(ValueError("something else")) is None
