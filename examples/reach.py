"""Reach, of Storm's tutorial: how many different people see a link, because they follow someone who tweeted it.

Two static states, and a query function written in Python. Run it: `.venv/bin/python examples/reach.py`
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

from pipelines import Lake, Runtime, spark_session
from pipelines.trident import Count, DistinctCount, FixedState, QueryFunction, TridentTopology

TWEETERS = [
    ("foo.com/blog/1", ["sally", "bob", "tim", "george", "nathan"]),
    ("engineering.twitter.com/blog/5", ["adam", "david", "sally", "nathan"]),
]
FOLLOWERS = [
    ("sally", ["bob", "tim", "alice", "adam", "jim", "chris", "jai"]),
    ("bob", ["sally", "nathan", "jim", "mary", "david", "vivian"]),
    ("tim", ["alex"]),
    ("nathan", ["sally", "bob", "adam", "harry", "chris", "vivian", "emily", "jordan"]),
    ("adam", ["david", "carissa"]),
]


class Members(QueryFunction):
    """The members of the list at a key, a row each; of an unknown key none."""

    def batch_retrieve(self, state: Any, arguments: list[tuple[Any, ...]]) -> list[Any]:
        return state.multi_get(arguments)  # one read for all tuples of the batch

    def execute(self, arguments: tuple[Any, ...], result: list[str] | None) -> Iterator[str]:
        yield from result or ()


def main(root: str) -> dict[str, int]:
    """Ask for the reach of three links; returns it by link."""
    topology = TridentTopology("reach")
    tweeters = topology.new_static_state(FixedState("tweeters", "url string, names array<string>", "url", TWEETERS))
    followers = topology.new_static_state(FixedState("followers", "who string, names array<string>", "who", FOLLOWERS))
    (
        topology.new_query_stream("reach", "url string")
        .state_query(tweeters, "url", Members(), "tweeter string")
        .state_query(followers, "tweeter", Members(), "follower string")
        .aggregate([DistinctCount("follower", "people"), Count("times")])
    )

    runtime = Runtime(spark_session(), Lake(root))
    links = [url for url, _ in TWEETERS] + ["nobody.com"]
    found = {url: runtime.query(topology, "reach", [(url,)])[0]["people"] for url in links}
    print("reach:", found)
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
