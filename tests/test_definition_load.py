"""A hundred flows: the definitions load without Spark, a JVM, pandas or Arrow. Seconds: benchmarks/definition_load.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.definition_load import HOW_MANY, load_seconds
from pipelines.catalog.flow import PROJECT

HEAVY = (
    "pyspark",
    "py4j",
    "great_expectations",
    "pandas",
    "pyarrow",
    "numpy",
    "matplotlib",
    "alembic",
    "sqlalchemy.orm",
)

PROGRAM = f"""
import json, sys
from definitions import defs
repository = defs.get_repository_def()
import psutil
print(json.dumps({{
    "states": sum(one.to_user_string().endswith(("_totals", "_told")) for one in repository.asset_graph.get_all_asset_keys()),
    "jobs": sum(job.name.startswith("topology_") for job in repository.get_all_jobs()),
    "heavy": [name for name in {HEAVY!r} if name in sys.modules],
    "children": [one.name() for one in psutil.Process().children(recursive=True)],
}}))
"""


@pytest.mark.slow
def test_a_hundred_flows_load_without_a_jvm(tmp_path: Path) -> None:
    given = {"TRIDELTA_FLOWS": "benchmarks.definition_load", HOW_MANY: "100", "TRIDELTA_HOME": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    done = subprocess.run(command, cwd=PROJECT, env=os.environ | given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen == {"states": 100, "jobs": 50, "heavy": [], "children": []}
    assert not list(tmp_path.iterdir()), "loading writes nothing"


@pytest.mark.slow
def test_the_benchmark_measures_a_load(tmp_path: Path) -> None:
    clock, processor = load_seconds(2, str(tmp_path))
    assert clock > 0
    assert processor > 0
