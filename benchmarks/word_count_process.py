"""Our side of the word count, as a process of its own: `python -m benchmarks.word_count_process FOLDER LAKE PASSES COUNTS`.

Each pass is a flow of its own over all files, into its own lake. Prints one line as Storm's side does: RESULT and a JSON
object with `pass_seconds` (call to last commit) and `first_committed` (seconds since 1970).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines import spark_session

if TYPE_CHECKING:
    from pipelines.trident import TridentTopology

# With files of 100,000 lines: batches of half a million.
FILES_A_BATCH = 5


def topology(folder: str) -> TridentTopology:
    from pipelines.sources import JsonFiles
    from pipelines.trident import Count, DeltaState, Split, TridentTopology

    flow = TridentTopology("wordcount")
    source = JsonFiles(folder, "sentence string", max_files_per_batch=FILES_A_BATCH)
    words = flow.new_stream("sentences", source).each("sentence", Split(), "word")
    words.group_by("word").persistent_aggregate(DeltaState("word_counts"), Count(), "count")
    return flow


def main(folder: str, lakes: str, passes: str, counts: str) -> None:
    # The session first: it imports the rest of the engine while its JVM starts.
    spark = spark_session("word count")
    from pipelines import Lake, Runtime

    seconds, committed = list[float](), list[float]()
    for number in range(int(passes)):
        lake, ends = Lake(Path(lakes) / str(number)), list[float]()
        started = time.time()
        Runtime(spark, lake).catch_up(topology(folder), progress=lambda batch, ends=ends: ends.append(time.time()))
        seconds.append(ends[-1] - started)
        committed.append(ends[-1])
    found = lake.state("word_counts").scan()
    rows = zip(found["word"].to_pylist(), found["count"].to_pylist(), strict=True)
    Path(counts).write_text("".join(f"{word}\t{count}\n" for word, count in rows))
    print("RESULT", json.dumps({"pass_seconds": seconds, "first_committed": committed[0]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
