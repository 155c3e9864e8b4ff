"""Joins of two streams whose tuples may come in either order and in any batches, each pair once.

One side is kept in a state, and the other asks it. Who finds nothing waits in a second state, which the first side asks when it
comes. A query sees the state as of its own batch, so a tuple that waits is one whose partner comes in a later batch.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import functions as F

from pipelines.trident import (
    Collect,
    CombinerAggregator,
    DeltaState,
    FilterNull,
    MapGet,
    Max,
    Not,
    Stream,
    TridentTopology,
)

BID = {
    "bidder": "bigint", "price": "bigint", "channel": "string", "url": "string", "bid_dateTime": "timestamp",
    "bid_extra": "string",
}  # fmt: skip
AUCTION = {
    "itemName": "string", "description": "string", "initialBid": "bigint", "reserve": "bigint",
    "auction_dateTime": "timestamp", "expires": "timestamp", "seller": "bigint", "category": "bigint", "auction_extra": "string",
}  # fmt: skip
JOINED = {**BID, **AUCTION}


class Together(CombinerAggregator):
    """All tuples, as a list of structs."""

    def __init__(self, fields: dict[str, str]) -> None:
        self._names = tuple(fields)
        super().__init__(returns=f"array<struct<{', '.join(f'{name}: {kind}' for name, kind in fields.items())}>>")

    def init(self, *values: Any) -> list[dict[str, Any]]:
        return [dict(zip(self._names, values, strict=True))]

    def combine(self, a: list[dict[str, Any]], b: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [*a, *b]

    def zero(self) -> None:
        return None


def sellers_of(auctions: Stream, persons: Stream, topology: TridentTopology) -> Stream:
    """Auctions with their sellers: `auction`, and the seller's `name`, `city` and `state`."""
    told = ["name", "city", "state"]
    # A person comes once, so the largest of its values is its value.
    known = persons.group_by("id").persistent_aggregate(DeltaState("q3_persons"), [Max(name, name) for name in told])
    asked = auctions.project(["seller", "id"]).state_query(known, "seller", MapGet(), told)
    early = asked.filter("name", Not(FilterNull())).group_by("seller")
    waiting = early.persistent_aggregate(DeltaState("q3_waiting"), "id", Collect(), "auctions")
    late = persons.state_query(waiting, "id", MapGet(), "auctions").filter("auctions", FilterNull())
    return topology.merge(
        asked.filter("name", FilterNull()).project(["id", *told]),
        late.each("auctions", F.explode, "auction").project(["auction", *told]),
        outputs=["auction", *told],
    )


def bids_with_auctions(bids: Stream, auctions: Stream, query: str, topology: TridentTopology) -> Stream:
    """Bids with their auctions; the fields that both have carry the prefixes `bid_` and `auction_`."""
    renamed = bids.map(lambda *fields: fields, ["auction", *BID])
    offered = auctions.map(lambda *fields: _in_order(auctions.output_fields, fields), ["id", *AUCTION])
    # An auction comes once, so the largest of its values is its value.
    known = offered.group_by("id").persistent_aggregate(DeltaState(f"{query}_auctions"), [Max(n, n) for n in AUCTION])
    asked = renamed.state_query(known, "auction", MapGet(), list(AUCTION))
    early = asked.filter("category", Not(FilterNull())).group_by("auction")
    waiting = early.persistent_aggregate(DeltaState(f"{query}_waiting"), list(BID), Together(BID), "bids")
    late = offered.state_query(waiting, "id", MapGet(), "bids").filter("bids", FilterNull())
    each_late = late.each("bids", F.explode, "bid").each("bid", lambda bid: tuple(bid[name] for name in BID), list(BID))
    return topology.merge(
        asked.filter("category", FilterNull()),
        each_late.project(["id", *BID, *AUCTION]),
        outputs=["auction", *JOINED],
    )


def _in_order(names: tuple[str, ...], fields: tuple[Any, ...]) -> tuple[Any, ...]:
    """The auction's fields, its id first, as `AUCTION` has them."""
    by_name = dict(zip(names, fields, strict=True))
    shared = {"auction_dateTime": "dateTime", "auction_extra": "extra"}
    return tuple(by_name[shared.get(name, name)] for name in ("id", *AUCTION))
