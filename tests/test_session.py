from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines.errors import JarsError, JavaError, TrideltaError
from pipelines.spark import class_data, jars, java, session

PROJECT = Path(__file__).resolve().parent.parent


def fake_java(home: Path, version: str, modules: str = java.NEEDED_MODULE) -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="java.base {modules}"\n')
    return home


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine on which nothing is installed; returns its /usr/lib/jvm."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "jvm").mkdir()
    return tmp_path / "jvm"


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("21", 21), ("1.8.0_292", 8), ("25.0.1", 25)])
def test_major_version(version: str, major: int) -> None:
    assert java.Java(Path("/x"), version).major == major


def test_no_java_says_where_it_looked(bare: Path) -> None:
    with pytest.raises(JavaError, match="found none in JAVA_HOME, PATH or /usr/lib/jvm") as caught:
        java.find_java(bare)
    assert "apt-get install openjdk-17-jre-headless" in str(caught.value)


def test_an_unsupported_java_is_named(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(bare / "eleven", "11.0.2")))
    fake_java(bare / "lean-17", "17.0.1", modules="java.sql")
    with pytest.raises(JavaError, match=r"JAVA_HOME: Java 11\.0\.2 .*Java 17\.0\.1 without the module") as caught:
        java.find_java(bare)
    assert caught.value.seen.count("11.0.2") == 1


def test_a_good_java_elsewhere_is_used_instead_of_java_home(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(bare / "25", "25")))
    good = fake_java(bare / "21", "21.0.4")
    assert java.find_java(bare) == java.Java(good, "21.0.4")


def test_a_java_home_without_java_is_named(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(JavaError, match="JAVA_HOME: no Java in /nowhere"):
        java.find_java(bare)


def test_a_java_without_a_release_file_is_asked(bare: Path) -> None:
    home = fake_java(bare / "odd", "0")
    (home / "release").unlink()
    (home / "bin" / "java").write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = -version ]; then echo \'openjdk version "17.0.9"\' >&2; else echo {java.NEEDED_MODULE}@17; fi\n'
    )
    assert java.inspect(home) == java.Java(home, "17.0.9")


def test_missing_and_torn_jars_are_named(tmp_path: Path) -> None:
    with pytest.raises(JarsError) as caught:
        jars.set_paths(jars.DELTA, tmp_path)
    assert caught.value.missing == tuple(jar.file_name for jar in jars.JARS)
    (tmp_path / "jars").mkdir()
    for path in jars.set_paths(jars.DELTA):
        shutil.copy(path, tmp_path / "jars")
    os.truncate(tmp_path / "jars" / jars.JARS[1].file_name, 1000)
    with pytest.raises(JarsError) as caught:
        jars.set_paths(jars.DELTA, tmp_path)
    assert caught.value.missing == (f"{jars.JARS[1].file_name} (torn: 1000 of {jars.JARS[1].size} bytes)",)


def test_resolving_does_nothing_when_all_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "_run_ivy", lambda *_: pytest.fail("the resolver ran"))
    assert jars.resolve() is False


def test_a_changed_jar_of_the_right_size_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    originals = jars.set_paths(jars.DELTA)
    (tmp_path / "jars").mkdir()
    for path in originals:
        shutil.copy(path, tmp_path / "jars")
    changed = tmp_path / "jars" / jars.JARS[3].file_name
    with changed.open("r+b") as file:
        file.seek(5000)
        file.write(b"torn")

    def fetch(work: Path, _: Path) -> None:
        shutil.copytree(originals[0].parent, work / "jars")

    monkeypatch.setattr(jars, "_run_ivy", fetch)
    assert jars.resolve(tmp_path) is True
    assert jars.resolve(tmp_path) is False


def test_a_wrong_download_never_reaches_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(work: Path, _: Path) -> None:
        (work / "jars").mkdir()
        for jar in jars.JARS:
            (work / "jars" / jar.file_name).write_bytes(b"<html>sign in</html>")

    monkeypatch.setattr(jars, "_run_ivy", fetch)
    with pytest.raises(JarsError, match="torn: 20 of"):
        jars.resolve(tmp_path)
    assert list((tmp_path / "jars").iterdir()) == []


@pytest.mark.slow
def test_offline_is_one_clear_sentence(tmp_path: Path) -> None:
    settings = tmp_path / "spark-defaults.conf"
    settings.write_text("spark.driver.extraJavaOptions -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=9\n")
    environment = os.environ | {"TRIDELTA_CACHE": str(tmp_path / "cache"), "SPARK_CONF_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "pipelines.spark.jars"]
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "could not be fetched" in done.stderr
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.parametrize(
    ("master", "count"),
    [("local", 1), ("local[3]", 3), ("local[2,4]", 2), ("local[*]", None), ("spark://h:7077", None)],
)
def test_cores(master: str, count: int | None) -> None:
    assert session.cores(master) == (count or len(os.sched_getaffinity(0)))


def test_the_archive_is_used_only_when_it_is_there(tmp_path: Path) -> None:
    shutil.copytree(jars.set_paths(jars.DELTA)[0].parent, tmp_path / "jars")
    installed = java.find_java()
    archive = session.archive_path(installed, tmp_path)
    assert "SharedArchiveFile" not in session.java_options(installed, tmp_path)
    archive.touch()
    assert f"-XX:SharedArchiveFile={archive}" in session.java_options(installed, tmp_path)
    other = java.Java(installed.home, "17.0.99")
    assert session.archive_path(other, tmp_path) != archive
    assert class_data.make_archive(tmp_path) is False


def test_jars_go_to_the_executors_of_a_cluster_only(tmp_path: Path) -> None:
    installed, cache = java.find_java(), jars.cache_folder()
    assert "spark.jars" not in session.settings("local[*]", java=installed, cache=cache)
    assert "delta-spark" in session.settings("spark://h:7077", java=installed, cache=cache)["spark.jars"]


def test_a_process_of_a_cluster_does_not_take_the_home_of_a_local_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a process with a local Spark has started: YARN needs what that home leaves out."""
    for name in ("JAVA_HOME", "SPARK_LAUNCHER_OPTS", "PYSPARK_PYTHON", "PYTHONSAFEPATH"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setenv("SPARK_HOME", str(session.spark_home(tmp_path)))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    session._prepare_environment(java.find_java(), [], home=None)
    assert Path(os.environ["SPARK_HOME"], "python", "lib", "pyspark.zip").exists()
    assert "SPARK_LOCAL_IP" not in os.environ
    # What the user says holds.
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    session._prepare_environment(java.find_java(), [], home=None)
    assert os.environ["SPARK_HOME"] == str(tmp_path)
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"


def test_one_session_a_process(spark: SparkSession) -> None:
    assert session.spark_session() is spark
    assert session.spark_session("other", master="local[2]") is spark
    spark.newSession().createDataFrame([(1,)], "n int")
    assert session.spark_session() is spark
    spark.createDataFrame([(1,)], "n int")


@pytest.mark.parametrize(
    ("master", "conf"), [("local[1]", None), (None, {"spark.sql.shuffle.partitions": "7"}), (None, {"spark.new": "x"})]
)
def test_a_second_session_of_another_kind_is_refused(
    spark: SparkSession, master: str | None, conf: dict[str, str] | None
) -> None:
    with pytest.raises(TrideltaError, match="this process has a Spark session already"):
        session.spark_session(master=master, conf=conf)


@pytest.mark.slow
def test_settings_hold_in_the_session(spark: SparkSession, lake_root: str) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.conf.get("spark.sql.adaptive.enabled") == "false"
    assert spark.sparkContext.uiWebUrl is None
    spark.range(3).write.format("delta").save(lake_root)
    assert spark.read.format("delta").load(lake_root).count() == 3
    assert spark.range(1).mapInArrow(lambda batches: batches, "id long").count() == 1


START = """
import os, sys
os.environ["SPARK_HOME"], os.environ["PYSPARK_PYTHON"], os.environ["SPARK_REMOTE"] = "/nowhere", "/nowhere", "sc://x"
from pipelines import session
spark = session.spark_session(master="local[1]")
spark.range(3).write.format("delta").save(sys.argv[1])
spark.createDataFrame([(1,)], "n long").mapInArrow(lambda batches: batches, "n long").collect()
spark.stop()
again = session.spark_session(master="local[1]")
print(again is not spark, again.read.format("delta").load(sys.argv[1]).count())
"""


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_start_is_silent_leaves_no_litter_and_ignores_another_spark(tmp_path: Path) -> None:
    (tmp_path / "cwd").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", START, str(tmp_path / "table")],
        cwd=tmp_path / "cwd",
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("True 3\n", "")
    assert list((tmp_path / "cwd").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["java", "jars"])
def test_what_is_missing_is_said_before_spark_starts(tmp_path: Path, missing: str) -> None:
    code = (
        "import pipelines.spark.java, pathlib, sys; from pipelines.errors import TrideltaError\n"
        "from pipelines.spark.session import spark_session\n"
        "pipelines.spark.java.find_java.__defaults__ = (pathlib.Path('/nowhere'),)\n"
        "try: spark_session()\n"
        "except TrideltaError as error: sys.exit(f'{type(error).__name__}: {error}')\n"
    )
    environment = {"PATH": str(tmp_path), "JAVA_HOME": "/nowhere", "TRIDELTA_CACHE": str(jars.cache_folder())}
    if missing == "jars":
        environment |= {"JAVA_HOME": str(java.find_java().home), "TRIDELTA_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith(
        {"java": "JavaError: Spark needs Java 17 or 21", "jars": "JarsError: Delta's jars"}[missing]
    )
    assert "Traceback" not in done.stderr


def test_a_worker_that_ends_with_the_jvm_is_not_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    from pipelines.spark import session

    idle = b'Traceback (most recent call last):\n  File "pyspark/daemon.py", line 90, in worker\n    raise EOFError\nEOFError\n'
    other = b'Traceback (most recent call last):\n  File "mine.py", line 1\nValueError: no\n'
    session._pass_on(
        io.BytesIO(b"before\n" + idle + b"between\n" + other + b"after\nTraceback (most recent call last):\n")
    )
    assert (
        capsys.readouterr().err == "before\nbetween\n" + other.decode() + "after\nTraceback (most recent call last):\n"
    )


def test_yarn_gets_its_files_through_the_file_system_of_its_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "HADOOP_USER_NAME"):
        monkeypatch.delenv(name, raising=False)
    assert session._of_yarn() == {}
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("YARN_CONF_DIR", str(tmp_path))
    site = tmp_path / "core-site.xml"
    entry = "<property><name>fs.defaultFS</name><value>hdfs://name:8020/</value></property>"
    site.write_text(f"<configuration>{entry}</configuration>")
    monkeypatch.setattr("getpass.getuser", lambda: "ann")
    assert session._of_yarn() == {"spark.yarn.stagingDir": "hdfs://name:8020/user/ann"}
    monkeypatch.setenv("HADOOP_USER_NAME", "bob")
    assert session._of_yarn() == {"spark.yarn.stagingDir": "hdfs://name:8020/user/bob"}
    site.write_text("<configuration/>")
    assert session._of_yarn() == {}
    site.write_text("<configuration>")
    with pytest.raises(TrideltaError, match=r"core-site.xml: it is no XML.*\n.*HADOOP_CONF_DIR"):
        session._of_yarn()


@pytest.mark.parametrize("error", [KeyError("getpwuid(): uid not found: 12345"), OSError("No username set")])
def test_a_user_without_a_name_is_told_what_yarn_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    entry = "<property><name>fs.defaultFS</name><value>hdfs://name:8020</value></property>"
    (tmp_path / "core-site.xml").write_text(f"<configuration>{entry}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("HADOOP_USER_NAME", raising=False)

    def nobody() -> str:
        raise error

    monkeypatch.setattr("getpass.getuser", nobody)
    with pytest.raises(TrideltaError, match=r"this user has no name.*\n.*HADOOP_USER_NAME"):
        session._of_yarn()


def test_what_the_jvm_quotes_of_a_record_does_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    session._pass_on(io.BytesIO(b"bad value \x1b]0;owned\x07 \xc2\x9b2J\n"))
    assert capsys.readouterr().err == "bad value \\x1b]0;owned\\x07 \\x9b2J\n"
