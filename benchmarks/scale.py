"""Scale: one and two workers of a Spark cluster, a batch's commit on a store and on a disk, and requests per batch.

The store is versitygw over a folder of the same disk, which is built with Go once; without Go its lines are left out. Requests
are those of its access log.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.measure import Ratio, scratch
from benchmarks.scale_process import FILES_A_BATCH
from ops import demo_store
from pipelines.spark.jars import cache_folder
from tests.nimbus.spark_cluster import SparkCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PEER = (
    "ours on one worker of one core (driver, workers and master share the machine's cores); ours with its lake in a folder; "
    "for requests ours at the tenth batch, and a number that was set after measuring."
)
SMALL_FILES, SMALL_ROWS = 44, 20
WORD_FILES, WORD_LINES = 16, 60_000
# Of batches as they come, behind those that start things up.
EARLY, LATE = slice(6, 14), slice(-8, None)
# A batch of two states on 2026-11-25: see docs/benchmarks.md.
REQUESTS = 220
# Two workers and the driver share two cores.
TWO_WORKERS = 1.15
WORDS = [f"word{number}" for number in range(5_000)]


def measure(spark: SparkSession) -> list[Ratio]:
    """Each application is a process of its own; the session that is given has none of them."""
    with scratch("scale") as folder:
        return [*_workers(folder), *_store(folder)]


def _workers(folder: Path) -> list[Ratio]:
    _word_files(folder / "words")
    batch = {}
    for number in (1, 2):
        home = folder / f"cluster{number}"
        with SparkCluster(home, workers=number) as cluster:
            given = {"master": cluster.master, "conf": cluster.settings | {"spark.cores.max": str(number)}}
            found = _run(flow="words", source=str(folder / "words"), lake=str(home / "lake"), **given)
        # The first batch starts Python and compiles.
        batch[number] = statistics.median(found["batch_seconds"][1:])
    what = f"words of {FILES_A_BATCH * WORD_LINES:,} lines counted, two workers of one core"
    return [Ratio(what, "one worker", batch[2], batch[1], "s", TWO_WORKERS, "higher")]


def _store(folder: Path) -> list[Ratio]:
    program = demo_store.versity_program(cache_folder())
    if program is None:
        return []
    _small_files(folder / "small")
    here = _run(flow="small", source=str(folder / "small"), lake=str(folder / "lake"))
    buckets, log = folder / "buckets", folder / "requests.log"
    (buckets / "scale").mkdir(parents=True)
    with demo_store.versity(program, buckets, "testing-key", "testing-secret", log) as url:
        environment = {
            "AWS_ENDPOINT_URL": url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "testing-key",
            "AWS_SECRET_ACCESS_KEY": "testing-secret",
            "AWS_REGION": "us-east-1",
        }
        there = _run(environment, flow="small", source=str(folder / "small"), lake="s3://scale/lake", requests=str(log))
    _show(there["requests"])
    early, late = (_mean(there["requests"][part]) for part in (EARLY, LATE))
    seconds = [statistics.median(found["batch_seconds"][EARLY.start :]) for found in (there, here)]
    return [
        Ratio("a batch of two states, lake on a store", "in a folder", seconds[0], seconds[1], "s", 2.5),
        Ratio("requests per batch of two states", "the bar", sum(late.values()), REQUESTS, "requests", 1.0),
        Ratio("requests, batch 40", "batch 10", sum(late.values()), sum(early.values()), "requests", 1.1),
        Ratio("LISTs, batch 40", "batch 10", late["LIST"], early["LIST"], "requests", 1.1),
    ]


def _run(environment: dict[str, str] | None = None, **given: Any) -> dict[str, Any]:
    """Run an application and return what it says of itself.

    Raises:
        RuntimeError: it failed; with the end of what it printed.
    """
    command = [sys.executable, "-m", "benchmarks.scale_process", json.dumps(given)]
    done = subprocess.run(command, env=os.environ | (environment or {}), capture_output=True, text=True, check=False)
    line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT ")), None)
    if line is None:
        raise RuntimeError(f"{given['flow']} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return found


def _mean(batches: list[dict[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for batch in batches:
        total.update(batch)
    return Counter({kind: round(number / len(batches)) for kind, number in total.items()})


def _show(batches: list[dict[str, int]]) -> None:
    kinds = ("PUT", "GET", "HEAD", "LIST", "DELETE")
    table = Table("requests per batch", *kinds)
    for name, part in (("batches 7 to 14", EARLY), ("the last 8", LATE)):
        mean = _mean(batches[part])
        table.add_row(name, *(str(mean[kind]) for kind in kinds))
    Console().print(table)


def _small_files(folder: Path) -> None:
    for number in range(SMALL_FILES):
        rows = [{"key": f"k{row % 5}", "n": number} for row in range(SMALL_ROWS)]
        _put(folder, number, "".join(json.dumps(row) + "\n" for row in rows))


def _word_files(folder: Path) -> None:
    choose = np.random.default_rng(3)
    for number in range(WORD_FILES):
        picked = choose.choice(WORDS, (WORD_LINES, 8))
        _put(folder, number, "".join(json.dumps({"sentence": " ".join(row)}) + "\n" for row in picked))


def _put(folder: Path, number: int, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{number:04d}.json"
    file.write_text(text)
    os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))
