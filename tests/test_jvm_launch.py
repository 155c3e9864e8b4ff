"""Spark's settings reach its JVM by a file: its command line is for all to see."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipelines.spark import jvm_launch

PROJECT = Path(__file__).resolve().parent.parent
ODD = "a=b: c\\d\n\t#!'\" é 日 \U0001f600 "


def test_settings_are_in_a_file_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def launch(conf: Any, options: Any) -> str:
        words = os.environ["PYSPARK_SUBMIT_ARGS"].split()
        file = Path(words[words.index("--properties-file") + 1])
        seen.update(conf=conf, words=words, text=file.read_text(), mode=file.stat().st_mode & 0o777, file=file)
        return "gateway"

    monkeypatch.setattr(jvm_launch, "launch_gateway", launch)
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--verbose pyspark-shell")
    assert jvm_launch.launched({"spark.a": "hunter2"}.items()) == "gateway"
    assert (seen["conf"], seen["mode"], seen["text"]) == (None, 0o600, "spark.a=hunter2\n")
    assert seen["words"][-2:] == ["--verbose", "pyspark-shell"]
    assert not seen["file"].exists()
    assert os.environ["PYSPARK_SUBMIT_ARGS"] == "--verbose pyspark-shell"


def test_no_value_becomes_another_setting() -> None:
    text = jvm_launch.properties([("spark.a", ODD), ("spark.b", "x\nspark.plugins=evil")])
    assert len(text.splitlines()) == 2
    assert text.isascii()


@pytest.mark.slow
@pytest.mark.spark
def test_the_jvm_has_the_settings_and_shows_none() -> None:
    code = f"""
import json, pathlib
from pipelines import spark_session
from pyspark import SparkContext
spark = spark_session(conf={{"spark.hadoop.x": "hunter2", "spark.hadoop.odd": {ODD.strip()!r}, "spark.ui.enabled": "false"}})
jvm = SparkContext._gateway.jvm
conf = spark.sparkContext._jsc.sc().conf()
commands = []
for one in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
        commands.append(one.read_bytes().decode(errors="replace"))
    except OSError:
        pass
system = jvm.java.lang.System.getProperty("spark.hadoop.odd")
print(json.dumps([conf.get("spark.hadoop.x"), system, any("hunter2" in one and "from pipelines" not in one for one in commands)]))
spark.stop()
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == ["hunter2", ODD.strip(), False]
