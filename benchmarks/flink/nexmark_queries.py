"""Queries of Nexmark in PyFlink, for `benchmarks.nexmark`: runs in an environment of its own and imports nothing of ours.

`python nexmark_queries.py FOLDER PARALLELISM` takes the name of a query per line of its input, runs it, and prints a line of
JSON: the seconds and the CPU seconds of this process and its JVM. The SQL is that of https://github.com/nexmark/nexmark
(`nexmark-flink/src/main/resources/queries`), over the files of `FOLDER/events`, into a sink that throws rows away, in streaming
mode. Its user-defined function of q14 is written in SQL's own functions, and its side input of q13 is a file of CSV.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

KINDS = {
    "person": "id BIGINT, name STRING, emailAddress STRING, creditCard STRING, city STRING, state STRING, "
    "dateTime TIMESTAMP_LTZ(3), extra STRING",
    "auction": "id BIGINT, itemName STRING, description STRING, initialBid BIGINT, reserve BIGINT, dateTime TIMESTAMP_LTZ(3), "
    "expires TIMESTAMP_LTZ(3), seller BIGINT, category BIGINT, extra STRING",
    "bid": "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, dateTime TIMESTAMP_LTZ(3), extra STRING",
}
EVENTS = """
CREATE TABLE events (
    {columns},
    rowtime AS COALESCE(bid.`dateTime`, auction.`dateTime`, person.`dateTime`),
    WATERMARK FOR rowtime AS rowtime
) WITH ('connector' = 'filesystem', 'path' = 'file://{folder}', 'format' = 'json', 'json.timestamp-format.standard' = 'ISO-8601')
"""
SIDE_INPUT = """
CREATE TABLE side_input (key BIGINT, `value` STRING)
WITH ('connector' = 'filesystem', 'path' = 'file://{folder}', 'format' = 'csv')
"""
_LEVELS = {
    "total": "",
    "rank1": " FILTER (WHERE price < 10000)",
    "rank2": " FILTER (WHERE price >= 10000 AND price < 1000000)",
    "rank3": " FILTER (WHERE price >= 1000000)",
}


def _by_level(aggregate: str, name: str) -> str:
    return ", ".join(f"{aggregate}{where} AS {level}_{name}" for level, where in _LEVELS.items())


_COUNTED = {"bids": "count(*)", "bidders": "count(DISTINCT bidder)", "auctions": "count(DISTINCT auction)"}
_DAILY = ", ".join(_by_level(aggregate, name) for name, aggregate in _COUNTED.items())
_DAY = "DATE_FORMAT(rowtime, 'yyyy-MM-dd')"
QUERIES = {
    "q0": "SELECT auction, bidder, price, channel, url, rowtime, extra FROM bid",
    "q1": "SELECT auction, bidder, 0.908 * price AS euros, rowtime, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0",
    "q3": """
        SELECT P.name, P.city, P.state, A.id FROM auction AS A JOIN person AS P ON A.seller = P.id
        WHERE A.category = 10 AND (P.state = 'OR' OR P.state = 'ID' OR P.state = 'CA')""",
    "q5": """
        SELECT AuctionBids.auction, AuctionBids.num FROM (
            SELECT auction, count(*) AS num, window_start AS starttime, window_end AS endtime
            FROM TABLE(HOP(TABLE bid, DESCRIPTOR(rowtime), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
            GROUP BY auction, window_start, window_end) AS AuctionBids
        JOIN (
            SELECT max(CountBids.num) AS maxn, CountBids.starttime, CountBids.endtime FROM (
                SELECT count(*) AS num, window_start AS starttime, window_end AS endtime
                FROM TABLE(HOP(TABLE bid, DESCRIPTOR(rowtime), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
                GROUP BY auction, window_start, window_end) AS CountBids
            GROUP BY CountBids.starttime, CountBids.endtime) AS MaxBids
        ON AuctionBids.starttime = MaxBids.starttime AND AuctionBids.endtime = MaxBids.endtime
            AND AuctionBids.num >= MaxBids.maxn""",
    "q7": """
        SELECT B.auction, B.price, B.bidder, B.rowtime, B.extra FROM bid B
        JOIN (
            SELECT MAX(price) AS maxprice, window_end AS upto
            FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(rowtime), INTERVAL '10' SECOND)) GROUP BY window_start, window_end) B1
        ON B.price = B1.maxprice WHERE B.rowtime BETWEEN B1.upto - INTERVAL '10' SECOND AND B1.upto""",
    "q8": """
        SELECT P.id, P.name, P.starttime FROM (
            SELECT id, name, window_start AS starttime, window_end AS endtime
            FROM TABLE(TUMBLE(TABLE person, DESCRIPTOR(rowtime), INTERVAL '10' SECOND))
            GROUP BY id, name, window_start, window_end) P
        JOIN (
            SELECT seller, window_start AS starttime, window_end AS endtime
            FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(rowtime), INTERVAL '10' SECOND))
            GROUP BY seller, window_start, window_end) A
        ON P.id = A.seller AND P.starttime = A.starttime AND P.endtime = A.endtime""",
    "q9": """
        SELECT * FROM (
            SELECT A.id, itemName, description, initialBid, reserve, A.rowtime AS began, expires, seller, category,
                A.extra AS note, auction, bidder, price, B.rowtime AS bid_time, B.extra, ROW_NUMBER() OVER (
                    PARTITION BY A.id ORDER BY B.price DESC, B.rowtime ASC) AS rownum
            FROM auction A, bid B WHERE A.id = B.auction AND B.rowtime BETWEEN A.rowtime AND A.expires)
        WHERE rownum <= 1""",
    "q10": f"""
        SELECT auction, bidder, price, rowtime, extra, {_DAY} AS dt, DATE_FORMAT(rowtime, 'HH:mm') AS hm FROM bid""",
    "q11": """
        SELECT bidder, count(*) AS bid_count, window_start AS starttime, window_end AS endtime
        FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(rowtime), INTERVAL '10' SECOND))
        GROUP BY bidder, window_start, window_end""",
    "q12": """
        SELECT bidder, count(*) AS bid_count, window_start AS starttime, window_end AS endtime
        FROM TABLE(TUMBLE(TABLE arrived, DESCRIPTOR(p_time), INTERVAL '10' SECOND))
        GROUP BY bidder, window_start, window_end""",
    "q13": """
        SELECT B.auction, B.bidder, B.price, B.rowtime, S.`value` FROM bid B
        JOIN side_input S ON MOD(B.auction, 10000) = S.key""",
    "q14": """
        SELECT auction, bidder, 0.908 * price AS euros,
            CASE WHEN HOUR(rowtime) >= 8 AND HOUR(rowtime) <= 18 THEN 'dayTime'
                WHEN HOUR(rowtime) <= 6 OR HOUR(rowtime) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS bidTimeType,
            rowtime, extra, CHAR_LENGTH(extra) - CHAR_LENGTH(REPLACE(extra, 'c', '')) AS c_counts
        FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
    "q15": f"SELECT {_DAY} AS dt, {_DAILY} FROM bid GROUP BY {_DAY}",
    "q16": f"""
        SELECT channel, {_DAY} AS dt, max(DATE_FORMAT(rowtime, 'HH:mm')) AS mm, {_DAILY} FROM bid GROUP BY channel, {_DAY}""",
    "q17": f"""
        SELECT auction, {_DAY} AS dt, {_by_level("count(*)", "bids")}, min(price) AS min_price, max(price) AS max_price,
            avg(price) AS avg_price, sum(price) AS sum_price FROM bid GROUP BY auction, {_DAY}""",
    "q18": """
        SELECT auction, bidder, price, channel, url, rowtime, extra FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY rowtime DESC) AS rank_number FROM bid)
        WHERE rank_number <= 1""",
    "q19": """
        SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC) AS rank_number FROM bid)
        WHERE rank_number <= 10""",
    "q20": """
        SELECT auction, bidder, price, channel, url, B.rowtime AS bid_time, B.extra, itemName, description, initialBid, reserve,
            A.rowtime AS began, expires, seller, category, A.extra AS note
        FROM bid AS B INNER JOIN auction AS A ON B.auction = A.id WHERE A.category = 10""",
    "q21": """
        SELECT auction, bidder, price, channel, CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1'
            WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
            ELSE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2) END AS channel_id
        FROM bid WHERE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2) IS NOT NULL
            OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')""",
    "q22": """
        SELECT auction, bidder, price, channel, SPLIT_INDEX(url, '/', 3) AS dir1, SPLIT_INDEX(url, '/', 4) AS dir2,
            SPLIT_INDEX(url, '/', 5) AS dir3 FROM bid""",
}


def environment(folder: Path, parallelism: int) -> Any:
    """Return a table environment with the events of a folder as views."""
    from pyflink.table import EnvironmentSettings, TableEnvironment

    made = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    made.get_config().set("parallelism.default", str(parallelism))
    made.get_config().set("table.local-time-zone", "UTC")
    # As the published runs have it: partial results per mini-batch.
    for name, value in (("enabled", "true"), ("allow-latency", "2 s"), ("size", "50000")):
        made.get_config().set(f"table.exec.mini-batch.{name}", value)
    columns = ", ".join(f"{name} ROW<{_quoted(fields)}>" for name, fields in KINDS.items())
    made.execute_sql(EVENTS.format(columns=columns, folder=folder / "events"))
    made.execute_sql(SIDE_INPUT.format(folder=folder / "side_input"))
    for name, fields in KINDS.items():
        names = (field.split()[0] for field in fields.split(", "))
        own = ", ".join(f"{name}.`{field}`" for field in names if field != "dateTime")
        made.execute_sql(f"CREATE TEMPORARY VIEW {name} AS SELECT {own}, rowtime FROM events WHERE {name} IS NOT NULL")
    made.execute_sql("CREATE TEMPORARY VIEW arrived AS SELECT *, PROCTIME() AS p_time FROM bid")
    return made


def _quoted(fields: str) -> str:
    """Quote the names, of which some are words of SQL."""
    pairs = (field.split(" ", 1) for field in fields.split(", "))
    return ", ".join(f"`{name}` {kind}" for name, kind in pairs)


_seen: dict[tuple[int, str], float] = {}


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its descendants: the JVM of py4j, its Python workers.

    A process that has ended counts as it was seen last, so that a worker's end takes nothing away.
    """
    ticks = os.sysconf("SC_CLK_TCK")
    known: dict[int, tuple[int, str, float]] = {}
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            known[int(entry.name)] = (int(fields[1]), fields[19], (int(fields[11]) + int(fields[12])) / ticks)
        except (OSError, ValueError, IndexError):
            continue
    own = {os.getpid()}
    while more := {pid for pid, (parent, _, _) in known.items() if parent in own} - own:
        own |= more
    _seen.update({(pid, known[pid][1]): known[pid][2] for pid in own if pid in known})
    return sum(_seen.values())


def main() -> None:
    """Run the queries that come in, until the input ends."""
    tables = environment(Path(sys.argv[1]), int(sys.argv[2]))
    print(json.dumps({"ready": True}), flush=True)
    for number, line in enumerate(sys.stdin):
        query = QUERIES[line.strip()]
        began, cpu = time.perf_counter(), cpu_seconds()
        sink = f"sink_{number}"
        tables.execute_sql(f"CREATE TABLE {sink} WITH ('connector' = 'blackhole') AS {query}").wait()
        print(json.dumps({"seconds": time.perf_counter() - began, "cpu": cpu_seconds() - cpu}), flush=True)


if __name__ == "__main__":
    main()
