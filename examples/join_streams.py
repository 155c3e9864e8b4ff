"""Two streams joined batch by batch: orders with their payments, and the orders that are not paid yet.

Run it: `.venv/bin/python examples/join_streams.py`
"""

from __future__ import annotations

import tempfile
from typing import Any

from pipelines import Lake, Runtime, spark_session
from pipelines.sources import FixedBatches
from pipelines.trident import INNER, OUTER, Count, DeltaState, Sum, TridentTopology, mixed

ORDERS = [[("o1", "tea", 3), ("o2", "ham", 9)], [("o3", "tea", 4)]]
PAYMENTS = [[("o1", "card")], [("o3", "cash"), ("o9", "card")]]


def main(root: str) -> list[dict[str, Any]]:
    """Join orders and payments into a lake at `root`; returns the sums by the way of payment."""
    topology = TridentTopology("paid_orders")
    orders = topology.new_stream("orders", FixedBatches("order_id string, item string, amount bigint", ORDERS))
    payments = topology.new_stream("payments", FixedBatches("id string, method string", PAYMENTS))

    # The two meet, so they share their txids: batch 0 of the one is joined with batch 0 of the other.
    # mixed(INNER, OUTER) is a left join: an order without a payment has no method, a payment without an order is left out.
    joined = topology.join(
        orders, "order_id", payments, "id", ["order_id", "item", "amount", "method"], kind=mixed(INNER, OUTER)
    )
    joined.partition_persist(DeltaState("joined_orders"))
    joined.group_by("method").persistent_aggregate(DeltaState("by_method"), [Count("orders"), Sum("amount", "total")])

    lake = Lake(root)
    for batch in Runtime(spark_session(), lake).catch_up(topology).batches:
        print(f"batch {batch.txid}: {batch.received} rows of both streams")
    for row in lake.state("joined_orders").scan().to_pylist():
        print(row)
    totals = sorted(lake.state("by_method").scan().to_pylist(), key=lambda row: row["method"] or "")
    print("by method:", totals)
    return totals


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
