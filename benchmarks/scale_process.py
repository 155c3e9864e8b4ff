"""One application of `benchmarks.scale`, as a process of its own: `python -m benchmarks.scale_process JSON`.

JSON: `flow` (`small` or `words`), `source`, `lake`, `master`, `conf`, and `requests`, the access log of the store. Prints one
line: RESULT and a JSON object with `batch_seconds`, and `requests` by batch and kind.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines import Lake, Runtime, spark_session
from pipelines.sources import JsonFiles
from pipelines.trident import Count, DeltaState, Split, TridentTopology

if TYPE_CHECKING:
    from pipelines.execution.report import BatchReport

FILES_A_BATCH = 2
_OPERATION = re.compile(r" s3_(\w+) ")
_KINDS = {
    "Put": "PUT",
    "Copy": "PUT",
    "Create": "PUT",
    "Complete": "PUT",
    "Upload": "PUT",
    "Get": "GET",
    "Head": "HEAD",
}


def small(source: str) -> TridentTopology:
    """Return a flow of a file per batch, with its rows and their sums: two states."""
    topology = TridentTopology("small")
    rows = topology.new_stream("rows", JsonFiles(source, "key string, n bigint", max_files_per_batch=1))
    rows.partition_persist(DeltaState("rows"))
    rows.group_by("key").persistent_aggregate(DeltaState("counts"), Count(), "count")
    return topology


def words(source: str) -> TridentTopology:
    topology = TridentTopology("words")
    lines = topology.new_stream("lines", JsonFiles(source, "sentence string", max_files_per_batch=FILES_A_BATCH))
    found = lines.each("sentence", Split(), "word")
    found.group_by("word").persistent_aggregate(DeltaState("counts"), Count(), "count")
    return topology


def requests(log: str | None) -> Counter[str]:
    """Return how many requests the store has answered, by kind."""
    if log is None:
        return Counter()
    operations = _OPERATION.findall(Path(log).read_text("utf-8", errors="replace"))
    return Counter(_kind(operation) for operation in operations)


def _kind(operation: str) -> str:
    if operation.startswith("List"):
        return "LIST"
    if operation.startswith("Delete"):
        return "DELETE"
    return next((kind for start, kind in _KINDS.items() if operation.startswith(start)), operation)


def main(text: str) -> None:
    given: dict[str, Any] = json.loads(text)
    lake = Lake(given["lake"])
    topology = {"small": small, "words": words}[given["flow"]](given["source"])
    spark = spark_session("scale", master=given.get("master"), conf=given.get("conf"))
    ends, counts = [time.perf_counter()], [requests(given.get("requests"))]

    def came(_: BatchReport) -> None:
        ends.append(time.perf_counter())
        counts.append(requests(given.get("requests")))

    Runtime(spark, lake).catch_up(topology, progress=came)
    print(
        "RESULT",
        json.dumps(
            {
                "batch_seconds": [end - start for start, end in itertools.pairwise(ends)],
                "requests": [dict(after - before) for before, after in itertools.pairwise(counts)],
            }
        ),
        flush=True,
    )
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
