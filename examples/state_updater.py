"""A state that one's own code updates: the last price of each share, and an alert where it moved by more than a tenth.

Run it: `.venv/bin/python examples/state_updater.py`
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

from pipelines import Lake, Runtime, spark_session
from pipelines.sources import FixedBatches
from pipelines.trident import DeltaState, StateUpdater, TridentTopology

PRICES = [
    [("acme", 1, 100.0), ("globex", 2, 50.0), ("acme", 4, 120.0), ("acme", 3, 104.0)],
    [("globex", 5, 30.0), ("initech", 6, 7.0)],
]


class LastPrice(StateUpdater):
    """Keeps the last price of each share; emits share, price before and price now where it jumped."""

    keys = "share string"
    values = "price double"

    def update_state(self, state: Any, tuples: list[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        shares = list(dict.fromkeys((share,) for share, _, _ in tuples))
        last = dict(zip(shares, state.multi_get(shares), strict=True))  # one read for all of the batch
        for share, _, price in sorted(tuples, key=lambda one: one[1]):  # tuples of a batch have no order of their own
            before = last[(share,)]
            if before is not None and abs(price - before) > 0.1 * before:
                yield share, before, price
            last[(share,)] = price
        state.multi_put(list(last), list(last.values()))  # committed with the batch, or not at all


def main(root: str) -> list[dict[str, Any]]:
    """Follow prices in a lake at `root`; returns the alerts."""
    topology = TridentTopology("prices")
    last = (
        topology.new_stream("prices", FixedBatches("share string, second bigint, price double", PRICES))
        .partition_by("share")  # several tasks, and each share in one of them
        .partition_persist(DeltaState("last_price"), None, LastPrice(), "share string, before double, now double")
        .parallelism_hint(2)
    )
    last.new_values_stream().partition_persist(DeltaState("jumps"))

    lake = Lake(root)
    Runtime(spark_session(), lake).catch_up(topology)
    jumps = sorted(lake.state("jumps").scan().to_pylist(), key=lambda row: row["share"])
    print("last prices:", lake.state("last_price").scan().to_pylist(), "jumps:", jumps)
    return jumps


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
