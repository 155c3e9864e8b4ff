"""The queries of Nexmark as Trident topologies: each is a function that takes the events and keeps its answer in a state.

The queries and their numbers are those of https://github.com/nexmark/nexmark (`queries/q*.sql`); `sql.py` has the same as SQL.
docs/nexmark.md says which are missing, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from examples.nexmark.joins import JOINED, bids_with_auctions, sellers_of
from examples.nexmark.largest import Largest
from pipelines.sources import JsonFiles
from pipelines.trident import (
    OPAQUE,
    Average,
    Count,
    DeltaState,
    DistinctCount,
    FilterNull,
    FixedState,
    MapGet,
    Max,
    Min,
    Stream,
    Sum,
    TridentTopology,
)

PERSON = (
    "id bigint, name string, emailAddress string, creditCard string, city string, state string, "
    "dateTime timestamp, extra string"
)
AUCTION = (
    "id bigint, itemName string, description string, initialBid bigint, reserve bigint, dateTime timestamp, "
    "expires timestamp, seller bigint, category bigint, extra string"
)
BID = "auction bigint, bidder bigint, price bigint, channel string, url string, dateTime timestamp, extra string"
EVENTS = f"person struct<{PERSON}>, auction struct<{AUCTION}>, bid struct<{BID}>"
DAY = "date_format(coalesce(bid.dateTime, auction.dateTime, person.dateTime), 'yyyy-MM-dd')"
SIDE_INPUT = 10_000


def names(schema: str) -> list[str]:
    """The names of a schema whose types have no commas."""
    return [field.split()[0] for field in schema.split(", ")]


class Events:
    """The stream of all events, as a source gives it, and its three kinds."""

    def __init__(self, topology: TridentTopology, source: Any, slice_by: str | None = None) -> None:
        self.topology = topology
        self.stream = topology.new_stream("events", source, slice_by=slice_by)

    @cached_property
    def persons(self) -> Stream:
        return self._kind("person", PERSON)

    @cached_property
    def auctions(self) -> Stream:
        return self._kind("auction", AUCTION)

    @cached_property
    def bids(self) -> Stream:
        return self._kind("bid", BID)

    def _kind(self, name: str, schema: str) -> Stream:
        fields = names(schema)
        kind = self.stream.project(name).filter(FilterNull()).name(name)
        return kind.map(lambda event: tuple(event[field] for field in fields), fields)


def q0(events: Events) -> None:
    """Pass through."""
    events.bids.partition_persist(DeltaState("q0"))


def q1(events: Events) -> None:
    """Currency conversion: prices in euros."""
    euros = events.bids.each("price", lambda price: price * F.lit(Decimal("0.908")), "euros")
    euros.partition_persist(DeltaState("q1"), ["auction", "bidder", "euros", "dateTime", "extra"])


def q2(events: Events) -> None:
    """Selection: the bids for some auctions."""
    events.bids.filter("auction % 123 = 0").partition_persist(DeltaState("q2"), ["auction", "price"])


def q3(events: Events) -> None:
    """Local item suggestion: who sells in Oregon, Idaho or California in category 10. A join with all that came before."""
    sold = sellers_of(events.auctions.filter("category = 10"), events.persons, events.topology)
    local = sold.filter("state in ('OR', 'ID', 'CA')")
    local.partition_persist(DeltaState("q3"), ["name", "city", "state", "auction"])


def q9(events: Events) -> None:
    """Winning bids: of each auction the highest bid while it was open, the first of equals."""
    joined = bids_with_auctions(events.bids, events.auctions, "q9", events.topology)
    taken = joined.filter("bid_dateTime between auction_dateTime and expires")
    winner = Largest(JOINED, by=["price"], then_first=["bid_dateTime"])
    taken.group_by("auction").persistent_aggregate(DeltaState("q9"), list(JOINED), winner, "winner")


def q10(events: Events) -> None:
    """Log to files: bids with their day and minute; `slice_by` cuts the table by day."""
    logged = events.bids.each(
        "dateTime", lambda at: (F.date_format(at, "yyyy-MM-dd"), F.date_format(at, "HH:mm")), ["dt", "hm"]
    )
    logged.partition_persist(DeltaState("q10"), ["auction", "bidder", "price", "dateTime", "extra", "dt", "hm"])


def q12(events: Events, now: Callable[[], Column] = F.current_timestamp) -> None:
    """Processing time windows: bids per bidder and ten seconds of the clock on the wall, by the time of the batch.

    A batch that is run again has another time: the state is opaque, so what its first attempt counted is replaced.
    """
    arrived = events.bids.each(lambda: _window(now(), 10), ["starttime", "endtime"])
    by_window = arrived.group_by(["bidder", "starttime", "endtime"])
    by_window.persistent_aggregate(DeltaState("q12", kind=OPAQUE), Count(), "bid_count")


def q13(events: Events) -> None:
    """Bounded side input join: each bid with what a fixed table says of its auction."""
    side = events.topology.new_static_state(
        FixedState("side_input", "key bigint, value string", "key", [(n, f"value-{n}") for n in range(SIDE_INPUT)])
    )
    keyed = events.bids.each("auction", lambda auction: auction % SIDE_INPUT, "key")
    joined = keyed.state_query(side, "key", MapGet(), "value").filter("value", FilterNull())
    joined.partition_persist(DeltaState("q13"), ["auction", "bidder", "price", "dateTime", "value"])


def q14(events: Events) -> None:
    """Calculation: bids of a range of prices, with the time of day and a count of letters."""

    def time_of_day(at: Column) -> Column:
        hour = F.hour(at)
        by_day = F.when((hour >= 8) & (hour <= 18), "dayTime")
        return by_day.when((hour <= 6) | (hour >= 20), "nightTime").otherwise("otherTime")

    priced = events.bids.each("price", lambda price: price * F.lit(Decimal("0.908")), "euros")
    calculated = (
        priced.filter("euros > 1000000 and euros < 50000000")
        .each("dateTime", time_of_day, "bidTimeType")
        .each("extra", lambda extra: F.length(extra) - F.length(F.replace(extra, F.lit("c"), F.lit(""))), "c_counts")
    )
    fields = ["auction", "bidder", "euros", "bidTimeType", "dateTime", "extra", "c_counts"]
    calculated.partition_persist(DeltaState("q14"), fields)


def q15(events: Events) -> None:
    """Bidding statistics: per day the bids, bidders and auctions, by level of price."""
    ranked_by(_with_day(events.bids), ["bidder", "auction"]).group_by("day").persistent_aggregate(
        DeltaState("q15"), [*bids_by_rank(), *distinct_by_rank("bidder"), *distinct_by_rank("auction")]
    )


def q16(events: Events) -> None:
    """Channel statistics: as q15, per channel and day, with the last minute."""
    minute = _with_day(events.bids).each("dateTime", lambda at: F.date_format(at, "HH:mm"), "minute_of_bid")
    ranked_by(minute, ["bidder", "auction"]).group_by(["channel", "day"]).persistent_aggregate(
        DeltaState("q16"),
        [
            Max("minute_of_bid", "minute"),
            *bids_by_rank(),
            *distinct_by_rank("bidder"),
            *distinct_by_rank("auction"),
        ],
    )


def q17(events: Events) -> None:
    """Auction statistics: per auction and day the bids by level of price, and the prices."""
    ranked_by(_with_day(events.bids), []).group_by(["auction", "day"]).persistent_aggregate(
        DeltaState("q17"),
        [
            *bids_by_rank(),
            Min("price", "min_price"),
            Max("price", "max_price"),
            Average("price", "avg_price"),
            Sum("price", "sum_price"),
        ],
    )


def q18(events: Events) -> None:
    """Find last bid: of each bidder for each auction."""
    kept = {"price": "bigint", "channel": "string", "url": "string", "dateTime": "timestamp", "extra": "string"}
    by_pair = events.bids.group_by(["bidder", "auction"])
    by_pair.persistent_aggregate(DeltaState("q18"), list(kept), Largest(kept, by=["dateTime", "price"]), "last")


def q19(events: Events) -> None:
    """Auction top 10: the ten highest bids of each auction, the latest of equals first."""
    kept = {
        "bidder": "bigint", "price": "bigint", "channel": "string", "url": "string", "dateTime": "timestamp",
        "extra": "string",
    }  # fmt: skip
    highest = Largest(kept, by=["price", "dateTime"], number=10)
    events.bids.group_by("auction").persistent_aggregate(DeltaState("q19"), list(kept), highest, "top")


def q20(events: Events) -> None:
    """Expand bid with auction: the bids for auctions of category 10, with the auction. A join with all that came before."""
    joined = bids_with_auctions(events.bids, events.auctions, "q20", events.topology)
    joined.filter("category = 10").partition_persist(DeltaState("q20"))


def q21(events: Events) -> None:
    """Add channel id: by name, or out of the URL; bids without one are left out."""

    def channel_id(channel: Column, url: Column) -> Column:
        told = F.regexp_extract(url, "(&|^)channel_id=([^&]*)", 2)
        name, by_name = F.lower(channel), F.lit(None)
        for number, known in enumerate(("apple", "google", "facebook", "baidu")):
            by_name = F.when(name == known, str(number)).otherwise(by_name)
        # Spark gives an empty text where nothing matches.
        return F.coalesce(by_name, F.nullif(told, F.lit("")))

    numbered = events.bids.each(["channel", "url"], channel_id, "channel_id").filter("channel_id", FilterNull())
    numbered.partition_persist(DeltaState("q21"), ["auction", "bidder", "price", "channel", "channel_id"])


def q22(events: Events) -> None:
    """Get URL directories: the first three."""
    parts = events.bids.each(
        "url", lambda url: tuple(F.split(url, "/").getItem(place) for place in (3, 4, 5)), ["dir1", "dir2", "dir3"]
    )
    parts.partition_persist(DeltaState("q22"), ["auction", "bidder", "price", "channel", "dir1", "dir2", "dir3"])


RANKS = ("rank1", "rank2", "rank3")


def ranked_by(bids: Stream, fields: list[str]) -> Stream:
    """Bids with 0 or 1 for each level of price, and per level the fields, null in bids of another one."""

    def levels(price: Column, *values: Column) -> tuple[Column, ...]:
        low, high = price < 10_000, price >= 1_000_000
        ranks = (low, ~low & ~high, high)
        return (*(rank.cast("int") for rank in ranks), *(F.when(rank, value) for value in values for rank in ranks))

    of_ranks = [f"{rank}_{field}" for field in fields for rank in RANKS]
    return bids.each(["price", *fields], levels, [*RANKS, *of_ranks])


def bids_by_rank() -> list[Any]:
    return [Count("total_bids"), *(Sum(rank, f"{rank}_bids") for rank in RANKS)]


def distinct_by_rank(field: str) -> list[Any]:
    by_rank = (DistinctCount(f"{rank}_{field}", f"{rank}_{field}s") for rank in RANKS)
    return [DistinctCount(field, f"total_{field}s"), *by_rank]


def _with_day(bids: Stream) -> Stream:
    return bids.each("dateTime", lambda at: F.date_format(at, "yyyy-MM-dd"), "day")


def _window(now: Column, seconds: int) -> tuple[Column, Column]:
    start = F.floor(F.unix_timestamp(now) / seconds) * seconds
    return F.timestamp_seconds(start), F.timestamp_seconds(start + seconds)


QUERIES: dict[str, Callable[[Events], None]] = {
    query.__name__: query for query in (q0, q1, q2, q3, q9, q10, q12, q13, q14, q15, q16, q17, q18, q19, q20, q21, q22)
}
SLICED = ("q0", "q1", "q2", "q10", "q13", "q14", "q15", "q16", "q17", "q21", "q22")
"""What can be backfilled by day: its states are rows or logs."""


def topology(
    queries: Sequence[str], folder: Path, files_per_batch: int | None = None, slice_by: str | None = None
) -> TridentTopology:
    """Queries over the events of a folder, as one topology."""
    made = TridentTopology("nexmark")
    events = Events(made, JsonFiles(folder, EVENTS, max_files_per_batch=files_per_batch), slice_by)
    for name in queries:
        QUERIES[name](events)
    return made


def rows_of(query: str, scanned: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A state's rows as the query's answer: what is kept as one value, or as a list by rank, becomes columns."""
    if query in ("q9", "q18"):
        return [{**row, **row.pop("winner" if query == "q9" else "last")} for row in scanned]
    if query == "q19":
        return [
            {"auction": row["auction"], **bid, "rank_number": rank}
            for row in scanned
            for rank, bid in enumerate(row["top"], 1)
        ]
    return scanned
