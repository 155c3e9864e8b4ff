"""The queries of Nexmark as DuckDB's SQL over the same files, with which the tests compare.

Orders that the published queries leave to chance (bids of one time, bids of one price) are total here and in `queries.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

_PERSON = (
    "id BIGINT, name VARCHAR, emailAddress VARCHAR, creditCard VARCHAR, city VARCHAR, state VARCHAR, "
    "dateTime TIMESTAMP, extra VARCHAR"
)
_AUCTION = (
    "id BIGINT, itemName VARCHAR, description VARCHAR, initialBid BIGINT, reserve BIGINT, dateTime TIMESTAMP, "
    "expires TIMESTAMP, seller BIGINT, category BIGINT, extra VARCHAR"
)
_BID = "auction BIGINT, bidder BIGINT, price BIGINT, channel VARCHAR, url VARCHAR, dateTime TIMESTAMP, extra VARCHAR"

_RANKS = {"rank1": "price < 10000", "rank2": "price >= 10000 and price < 1000000", "rank3": "price >= 1000000"}


def _by_rank(aggregate: str, name: str) -> str:
    """An aggregate of all bids, and of the bids of each level of price."""
    by_rank = (f"{aggregate} filter (where {condition}) as {rank}_{name}" for rank, condition in _RANKS.items())
    return ", ".join([f"{aggregate} as total_{name}", *by_rank])


_BIDS = _by_rank("count(*)", "bids")
_DISTINCT = f"{_by_rank('count(distinct bidder)', 'bidders')}, {_by_rank('count(distinct auction)', 'auctions')}"
_DAY, _MINUTE = "strftime(dateTime, '%Y-%m-%d')", "strftime(dateTime, '%H:%M')"
_CHANNEL_ID = "regexp_extract(url, '(&|^)channel_id=([^&]*)', 2)"
_JOINED = """
    b.auction, bidder, price, channel, url, b.dateTime as bid_dateTime, b.extra as bid_extra, itemName, description,
    initialBid, reserve, a.dateTime as auction_dateTime, expires, seller, category, a.extra as auction_extra
    from bid b join auction a on b.auction = a.id"""


def _tumbling(seconds: int) -> str:
    """The bounds of the window of an event, as fields."""
    start = f"time_bucket(interval {seconds} seconds, dateTime)"
    return f"{start} as window_start, {start} + interval {seconds} seconds as window_end"


SQL = {
    "q0": "select * from bid",
    "q1": "select auction, bidder, 0.908 * price as euros, dateTime, extra from bid",
    "q2": "select auction, price from bid where auction % 123 = 0",
    "q3": """
        select p.name, p.city, p.state, a.id as auction from auction a join person p on a.seller = p.id
        where a.category = 10 and p.state in ('OR', 'ID', 'CA')""",
    "q5": """
        with ends as (
            select auction, unnest(generate_series(2, 10, 2)) as seconds,
                time_bucket(interval 2 seconds, dateTime) + to_seconds(seconds) as window_end
            from bid
        ), counted as (select auction, window_end, count(*) as num from ends group by all)
        select auction, num, window_end from counted qualify num = max(num) over (partition by window_end)""",
    "q7": f"""
        select auction, bidder, price, dateTime, extra, {_tumbling(10)} from bid
        qualify price = max(price) over (partition by window_start)""",
    "q8": f"""
        select distinct person, name, window_start, window_end
        from (select id as person, name, {_tumbling(10)} from person)
        join (select seller as person, {_tumbling(10)} from auction) using (person, window_start, window_end)""",
    "q9": f"""
        select * from (select {_JOINED} where b.dateTime between a.dateTime and expires)
        qualify row_number() over (partition by auction order by price desc, bid_dateTime) = 1""",
    "q10": f"select auction, bidder, price, dateTime, extra, {_DAY} as dt, {_MINUTE} as hm from bid",
    "q11": """
        with gaps as (
            select bidder, dateTime,
                dateTime > lag(dateTime) over (partition by bidder order by dateTime) + interval 10 seconds as begins
            from bid
        ), sessions as (
            select bidder, dateTime, count(*) filter (where begins) over (partition by bidder order by dateTime) as session
            from gaps
        )
        select bidder, count(*) as bid_count, min(dateTime) as window_start, max(dateTime) + interval 10 seconds as window_end
        from sessions group by bidder, session""",
    # The clock is not in the events: windows of the wall's clock have, together, all bids of each bidder.
    "q12": "select bidder, count(*) as bid_count from bid group by all",
    "q13": "select auction, bidder, price, dateTime, value from bid join side_input on auction % 10000 = key",
    "q14": """
        select auction, bidder, 0.908 * price as euros,
            case when hour(dateTime) between 8 and 18 then 'dayTime'
                when hour(dateTime) <= 6 or hour(dateTime) >= 20 then 'nightTime' else 'otherTime' end as bidTimeType,
            dateTime, extra, length(extra) - length(replace(extra, 'c', '')) as c_counts
        from bid where 0.908 * price > 1000000 and 0.908 * price < 50000000""",
    "q15": f"select {_DAY} as day, {_BIDS}, {_DISTINCT} from bid group by all",
    "q16": f"select channel, {_DAY} as day, max({_MINUTE}) as minute, {_BIDS}, {_DISTINCT} from bid group by channel, day",
    "q17": f"""
        select auction, {_DAY} as day, {_BIDS}, min(price) as min_price, max(price) as max_price, avg(price) as avg_price,
            sum(price) as sum_price
        from bid group by auction, day""",
    "q18": """
        select bidder, auction, price, channel, url, dateTime, extra from bid
        qualify row_number() over (partition by bidder, auction order by dateTime desc, price desc) = 1""",
    "q19": """
        select *, row_number() over (partition by auction order by price desc, dateTime desc) as rank_number from bid
        qualify rank_number <= 10""",
    "q20": f"select {_JOINED} where category = 10",
    "q21": f"""
        select auction, bidder, price, channel, case lower(channel) when 'apple' then '0' when 'google' then '1'
            when 'facebook' then '2' when 'baidu' then '3' else {_CHANNEL_ID} end as channel_id
        from bid where channel_id <> ''""",
    "q22": """
        select auction, bidder, price, channel, split_part(url, '/', 4) as dir1, split_part(url, '/', 5) as dir2,
            split_part(url, '/', 6) as dir3
        from bid""",
}


def connect(folder: Path) -> Any:
    """A connection of DuckDB with the events of a folder in memory: `person`, `auction`, `bid` and `side_input`."""
    import duckdb

    connection = duckdb.connect()
    kinds = {"person": _PERSON, "auction": _AUCTION, "bid": _BID}
    columns = ", ".join(["event_type: 'INTEGER'", *(f"{name}: 'STRUCT({fields})'" for name, fields in kinds.items())])
    read = f"read_json('{folder}/*.json', format='newline_delimited', columns={{{columns}}})"
    connection.execute(f"create table event as from {read}")
    for number, name in enumerate(kinds):
        connection.execute(f"create table {name} as select unnest({name}) from event where event_type = {number}")
    connection.execute("drop table event")
    connection.execute("create table side_input as select range as key, 'value-' || range as value from range(10000)")
    return connection


def answer(connection: Any, query: str) -> list[dict[str, Any]]:
    """The rows of a query."""
    result = connection.execute(SQL[query])
    columns = [column[0] for column in result.description]
    return [dict(zip(columns, row, strict=True)) for row in result.fetchall()]
