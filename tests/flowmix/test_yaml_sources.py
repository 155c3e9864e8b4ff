"""What a source of a flow's file may name: whose secrets, files and folders it cannot reach."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipelines.errors import DefinitionError, FlowFileError, SourceError
from pipelines.flowmix.yaml_form import load_flow
from pipelines.flowmix.yaml_sources import _in_variables
from pipelines.private import SecretError
from pipelines.sources import Kafka
from pipelines.surroundings import may_hold_private

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_SPARK: SparkSession = None  # type: ignore[assignment]


def source_of(tmp_path: Path, form: str) -> Any:
    """Return the source of a flow's file in a folder."""
    file = tmp_path / "flow.yaml"
    text = f"flow: f\nstreams:\n  - name: s\n    source: {{{form}}}\n    operations: [output]\n"
    file.write_text(text)
    return load_flow(file).streams["s"].source


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    (home / "nimbus/supervisors").mkdir(parents=True)
    monkeypatch.setenv("TRIDELTA_HOME", str(home))
    (tmp_path / "keys").symlink_to(home / "nimbus")
    (tmp_path / "environment").symlink_to("/proc/self")
    return home


@pytest.mark.parametrize(
    "path",
    ["/proc/self", "/proc", "/sys/kernel", "/dev", "file:///proc/self", "/tmp/../proc/self", "environment", "keys",
     "home/nimbus", "home/nimbus/supervisors/host", "home/dagster", "home/reports/", "a:b/../../../../../../../../proc"],
)  # fmt: skip
def test_a_source_reads_nothing_of_the_system_or_the_deployment(tmp_path: Path, home: Path, path: str) -> None:
    for kind, fields in (
        ("json_files", ", schema: x string"),
        ("text_files", ""),
        ("delta_table", ", schema: x string"),
    ):
        with pytest.raises(FlowFileError, match=r"line 3.* is no folder of a flow's"):
            source_of(tmp_path, f"{kind}: {{path: '{path}'{fields}}}")


def test_a_source_reads_what_lies_beside_that(tmp_path: Path, home: Path) -> None:
    for path in ("home/data", "home/lake/t", "home", "/dev/shm/x", "/procs", "s3://bucket/proc", "home/nimbus2"):
        assert source_of(tmp_path, f"json_files: {{path: '{path}', schema: x string}}").confined


def test_a_relative_path_is_one_beside_the_file(tmp_path: Path, home: Path) -> None:
    for path in ("in", "./in", "a:b/in"):
        assert source_of(tmp_path, f"text_files: {{path: '{path}'}}").path == os.path.normpath(tmp_path / path)


@pytest.mark.parametrize("other", ["other", "home"])
def test_a_nimbus_elsewhere_has_its_own_folders(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """Where it is the home itself, lake and data lie beside them; the registry stays in `nimbus` of the home."""
    monkeypatch.setenv("TRIDELTA_NIMBUS_HOME", str(tmp_path / other))
    for path in (f"{other}/supervisors", f"{other}/logs/a", f"{other}/flows", f"{other}/rebalance", "home/nimbus"):
        with pytest.raises(FlowFileError, match="is no folder of a flow's"):
            source_of(tmp_path, f"json_files: {{path: {path}, schema: x string}}")
    for path in ("home/data", "home/lake/t"):
        source_of(tmp_path, f"json_files: {{path: {path}, schema: x string}}")


def test_a_folder_that_becomes_a_link_is_not_read(tmp_path: Path, home: Path) -> None:
    """Neither at the start nor in a batch; nor is a file further down in a folder that a flow may read."""
    (tmp_path / "in").mkdir()
    key = home / "nimbus/supervisors/a.endpoint.json"
    key.write_text('{"key": "hunter2"}')
    above = source_of(tmp_path, "json_files: {path: home, schema: key string, options: {recursiveFileLookup: true}}")
    ((layout, files),) = above._all_layouts([str(key)]).items()
    assert (layout is None, files) == (False, [str(key)])
    assert "of the deployment" in above._unread([str(key)])[str(key)]
    source = source_of(tmp_path, "json_files: {path: in, schema: key string}")
    source.check("s", NO_SPARK)
    (tmp_path / "in").rmdir()
    (tmp_path / "in").symlink_to(key.parent)
    there = str(tmp_path / "in" / key.name)
    assert list(source._unread([there])) == [there]
    with pytest.raises(SourceError, match=r'source "s": .*/in leads to files of the system'):
        source.check("s", NO_SPARK)


@pytest.mark.parametrize("kind", ["delta_table", "delta_changes"])
def test_a_table_that_becomes_a_link_is_not_read(tmp_path: Path, home: Path, kind: str) -> None:
    source = source_of(tmp_path, f"{kind}: {{path: in, schema: key string}}")
    (tmp_path / "in").symlink_to(home / "nimbus")
    with pytest.raises(SourceError, match=r'source "s": .*/in leads to files of the system'):
        source.check("s", NO_SPARK)


def test_a_batch_looks_once_where_each_file_lies(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    source = source_of(tmp_path, "json_files: {path: in, schema: key string}")
    looked: list[str] = []
    real = os.path.realpath

    def realpath(path: str) -> str:
        looked.append(str(path))
        return real(path)

    monkeypatch.setattr(os.path, "realpath", realpath)
    files = [str(tmp_path / "in" / name) for name in "abc"]
    assert source._unread(files) == {}
    assert sorted(file for file in looked if file in files) == files
    for path, may in (
        (tmp_path, True),
        (home / "nimbus/a", True),
        ("/", True),
        (home / "data", False),
        ("/procs", False),
    ):
        assert may_hold_private(str(path)) is may


@pytest.mark.parametrize(
    ("login", "held"),
    [
        ('x user="${A}" password="${B}";', True),
        ('x user="${A}" password = "hunter2";', False),
        ("x user=${A} myPassword_2='hunter2'", False),
        ("x ${A} tokenpassword=hunter2", False),
        ('x ${A} password password="";', True),
        ("x ${A} passwords of=people", True),
    ],
)
def test_variables_hold_every_password_of_a_login(login: str, held: bool) -> None:
    assert _in_variables(login) == held


@pytest.mark.parametrize("text", ["password", "password ", "xpassword\t=", "a"])
def test_a_long_login_takes_no_longer_than_others(text: str) -> None:
    began = time.process_time()
    _in_variables("${A}" + text * 80_000 + "; user=x")
    assert time.process_time() - began < 60, "hundredths; minutes where each word looks through the rest"


def kafka_of(tmp_path: Path, option: str, value: object) -> Any:
    return source_of(
        tmp_path, f"kafka: {{servers: 'b:9092', topics: t, schema: k string, options: {{{option}: '{value}'}}}}"
    )


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("kafka.sasl.jaas.config", "file:/dev/zero"),
        ("kafka.sasl.jaas.config", "file:pipe"),
        ("kafka.sasl.jaas.config", "file:keys/key"),
        ("kafka.ssl.truststore.certificates", "file:environment/environ"),
        ("kafka.ssl.truststore.location", "/dev/zero"),
        ("kafka.SSL.Keystore.Location", "pipe"),
        ("kafka.ssl.keystore.location", "environment/environ"),
    ],
)
def test_kafka_reads_no_file_without_an_end_nor_one_of_the_system(
    tmp_path: Path, home: Path, option: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the flow is loaded, and when it starts: files change."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FlowFileError, match=r"line 3.* is no file of a flow's"):
        kafka_of(tmp_path, option, value)
    kind, colon, path = value.rpartition(":")
    (tmp_path / "there").write_text("org.apache.kafka.common.security.plain.PlainLoginModule required;")
    source = kafka_of(tmp_path, option, f"{kind}{colon}there")
    assert source._reader_options()[option].startswith("org." if kind else "there")
    (tmp_path / "there").unlink()
    (tmp_path / "there").symlink_to(path)
    with pytest.raises(DefinitionError, match="is no file of a flow's"):
        source._reader_options()


def test_a_login_in_a_file_is_by_a_module_of_kafkas(tmp_path: Path) -> None:
    """Who writes the flow's file may have written that one, too; Python chooses for itself."""
    (tmp_path / "login").write_text("com.sun.security.auth.module.JndiLoginModule required x=y;")
    source = kafka_of(tmp_path, "kafka.sasl.jaas.config", f"file:{tmp_path}/login")
    with pytest.raises(SecretError, match="no login by one of Kafka's own modules"):
        source._reader_options()
    Kafka("b:9092", "t", "k string", options=source.options)._reader_options()


def test_a_file_that_cannot_be_looked_at_is_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who loads the flow may not enter the folder of what only a worker reads."""
    option, name = "kafka.sasl.jaas.config", "a" * 300
    with pytest.raises(SecretError, match="cannot be read"):
        kafka_of(tmp_path, option, f"file:{name}")._reader_options()

    def closed(path: Path, **follow: bool) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", closed)
    Kafka("b:9092", "t", "k string", options={option: "file:/closed/login"}).check_files()
