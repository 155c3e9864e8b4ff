"""Word count: a stream of sentences, a state, a query; then the state as of an earlier batch.

Run it: `.venv/bin/python examples/word_count.py`
"""

from __future__ import annotations

import tempfile

from pipelines import Lake, Runtime, spark_session
from pipelines.sources import FixedBatches
from pipelines.trident import Count, DeltaState, MapGet, Split, Sum, TridentTopology


def main(root: str) -> list[dict[str, int]]:
    """Count words into a lake at `root`; returns the answer of the query."""
    topology = TridentTopology("wordcount")
    sentences = topology.new_stream(
        "sentences", FixedBatches("sentence string", [[("the man went to the store",)], [("the moon",)]])
    )
    counts = (
        sentences.each("sentence", Split(), "word")
        .group_by("word")
        .persistent_aggregate(DeltaState("word_counts"), Count(), "count")
    )
    (
        topology.new_query_stream("words", "args string")
        .each("args", Split(), "word")
        .group_by("word")
        .state_query(counts, "word", MapGet(), "count")
        .aggregate("count", Sum(), "sum")
    )

    lake = Lake(root)
    runtime = Runtime(spark_session(), lake)
    for batch in runtime.catch_up(topology).batches:
        print(f"batch {batch.txid}: {batch.received} sentences")
    state = lake.state("word_counts")
    print("the:", state.get([{"word": "the"}]), "as of batch 0:", state.get([{"word": "the"}], txid=0))
    answer = runtime.query(topology, "words", [("the moon",)])
    print("how often 'the' and 'moon' together:", answer)
    return answer


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
