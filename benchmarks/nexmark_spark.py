"""Queries of Nexmark as Spark's own Structured Streaming into Delta, to measure beside.

Missing are those whose rows change while bids come (q9, q12, q15 to q19): it appends to Delta, and updates nothing there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from examples.nexmark.queries import AUCTION, BID, EVENTS, PERSON, SIDE_INPUT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EURO = "cast(0.908 as decimal(3,3))"
_CHANNEL_ID = "regexp_extract(url, '(&|^)channel_id=([^&]*)', 2)"
_NAMED = "case lower(channel) when 'apple' then '0' when 'google' then '1' when 'facebook' then '2' when 'baidu' then '3' end"


class Streams:
    """The streams of persons, auctions and bids of a folder, a file per batch, with a watermark of no delay."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        events = spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1).json(str(folder))
        # The time of all events is the watermark of each kind, as it is in the other engines.
        at = F.coalesce("bid.dateTime", "auction.dateTime", "person.dateTime")
        self._events = events.withColumn("at", at).withWatermark("at", "0 seconds")

    def kind(self, name: str, schema: str) -> DataFrame:
        fields = (field.split()[0] for field in schema.split(", "))
        return self._events.where(f"{name} is not null").select("at", *(f"{name}.{field}" for field in fields))

    @property
    def bids(self) -> DataFrame:
        return self.kind("bid", BID)

    @property
    def auctions(self) -> DataFrame:
        return self.kind("auction", AUCTION)

    @property
    def persons(self) -> DataFrame:
        return self.kind("person", PERSON)


def q0(streams: Streams) -> DataFrame:
    return streams.bids.drop("at")


def q1(streams: Streams) -> DataFrame:
    return streams.bids.selectExpr("auction", "bidder", f"price * {_EURO} as euros", "dateTime", "extra")


def q2(streams: Streams) -> DataFrame:
    return streams.bids.where("auction % 123 = 0").select("auction", "price")


def q3(streams: Streams) -> DataFrame:
    sellers = streams.persons.where("state in ('OR', 'ID', 'CA')").selectExpr("id as seller", "name", "city", "state")
    sold = streams.auctions.where("category = 10").selectExpr("id as auction", "seller")
    return sold.join(sellers, "seller").select("name", "city", "state", "auction")


def q5(streams: Streams) -> DataFrame:
    counted = streams.bids.groupBy(F.window("at", "10 seconds", "2 seconds"), "auction").agg(F.count("*").alias("num"))
    per_window = counted.groupBy(F.window(F.window_time("window"), "2 seconds"))
    gathered = per_window.agg(F.max("num").alias("most"), F.collect_list(F.struct("auction", "num")).alias("counts"))
    return gathered.selectExpr("window", "most", "inline(counts)").where("num = most").drop("most")


def q7(streams: Streams) -> DataFrame:
    highest = streams.bids.groupBy(F.window("at", "10 seconds")).agg(F.max("price").alias("highest"))
    bids = streams.bids.withColumn("window", F.window("at", "10 seconds"))
    return bids.join(highest, "window").where("price = highest").drop("at", "highest")


def q8(streams: Streams) -> DataFrame:
    window = F.window("at", "10 seconds")
    came = streams.persons.groupBy(window, "id", "name").agg(F.count("*").alias("persons"))
    opened = streams.auctions.groupBy(window, F.col("seller").alias("id")).agg(F.count("*").alias("auctions"))
    return came.join(opened, ["window", "id"]).select("id", "name", "window")


def q10(streams: Streams) -> DataFrame:
    day, minute = (f"date_format(dateTime, '{text}')" for text in ("yyyy-MM-dd", "HH:mm"))
    return streams.bids.selectExpr("auction", "bidder", "price", "dateTime", "extra", f"{day} as dt", f"{minute} as hm")


def q11(streams: Streams) -> DataFrame:
    return streams.bids.groupBy(F.session_window("at", "10 seconds"), "bidder").agg(F.count("*").alias("bid_count"))


def q13(streams: Streams) -> DataFrame:
    side = streams.spark.range(SIDE_INPUT).selectExpr("id as key", "concat('value-', id) as value")
    keyed = streams.bids.withColumn("key", F.col("auction") % SIDE_INPUT)
    return keyed.join(F.broadcast(side), "key").select("auction", "bidder", "price", "dateTime", "value")


def q14(streams: Streams) -> DataFrame:
    hour = "hour(dateTime)"
    part = (
        f"case when {hour} between 8 and 18 then 'dayTime' when {hour} <= 6 or {hour} >= 20 then 'nightTime' "
        "else 'otherTime' end as bidTimeType"
    )
    letters = "length(extra) - length(replace(extra, 'c', '')) as c_counts"
    priced = streams.bids.withColumn("euros", F.expr(f"price * {_EURO}")).where("euros > 1000000 and euros < 50000000")
    return priced.selectExpr("auction", "bidder", "euros", part, "dateTime", "extra", letters)


def q20(streams: Streams) -> DataFrame:
    auctions = streams.auctions.where("category = 10").drop("at")
    renamed = auctions.withColumnsRenamed({"id": "auction", "dateTime": "auction_dateTime", "extra": "auction_extra"})
    return streams.bids.drop("at").join(renamed, "auction")


def q21(streams: Streams) -> DataFrame:
    numbered = streams.bids.selectExpr(
        "auction", "bidder", "price", "channel", f"coalesce({_NAMED}, nullif({_CHANNEL_ID}, '')) as channel_id"
    )
    return numbered.where("channel_id is not null")


def q22(streams: Streams) -> DataFrame:
    parts = (f"split(url, '/')[{place}] as dir{place - 2}" for place in (3, 4, 5))
    return streams.bids.selectExpr("auction", "bidder", "price", "channel", *parts)


QUERIES: dict[str, Callable[[Streams], DataFrame]] = {
    query.__name__: query for query in (q0, q1, q2, q3, q5, q7, q8, q10, q11, q13, q14, q20, q21, q22)
}


def run(spark: SparkSession, query: str, folder: Path, out: Path) -> None:
    """Run a query over a folder's files, to the end, into the Delta table `out/table`."""
    writer = QUERIES[query](Streams(spark, folder)).writeStream.format("delta").outputMode("append")
    started = writer.option("checkpointLocation", str(out / "checkpoint")).trigger(availableNow=True)
    started.start(str(out / "table")).awaitTermination()
