"""The queries of Nexmark over windows of event time, each as an event flow of one stream: aligned windows and sessions.

A window is written once, when the clock of the events has passed its end. What is open when the events end is not written.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from examples.nexmark.queries import EVENTS
from pipelines.flowmix import Count, Flow, FlowStream, Max, WindowAggregator, and_, gt, has
from pipelines.sources import JsonFiles

AT = "coalesce(bid.dateTime, auction.dateTime, person.dateTime)"


class Highest(WindowAggregator):
    """All events with the highest value of a field.

    Args:
        field: whose value counts.
        outputs: the fields to keep of the events, as DDL.
    """

    def __init__(self, field: str, outputs: str) -> None:
        self.field, self.outputs = field, outputs
        self.highest: list[dict[str, Any]] = []

    def added(self, event: Any) -> None:
        if self.highest and event[self.field] < self.highest[0][self.field]:
            return
        if self.highest and event[self.field] > self.highest[0][self.field]:
            self.highest = []
        self.highest.append({name: event[name] for name in self.result_fields})

    def evicted(self, event: Any) -> None:
        """Do nothing: no event leaves an aligned window before its end."""

    def aggregate(self) -> list[dict[str, Any]]:
        return self.highest


def q5(events: FlowStream) -> FlowStream:
    """Hot items: the auctions with the most bids of the last ten seconds, every two seconds.

    The counts of one hopping window have one time, its end, so they are the events of one tumbling window of two seconds.
    """
    counted = events.compute(_bid("auction bigint")).partition("auction").aligned(Count("num"), every=2, size=10)
    return counted.partition().aligned(Highest("num", "auction bigint, num bigint"), every=2)


def q7(events: FlowStream) -> FlowStream:
    """Highest bid: the bids of the highest price of each ten seconds."""
    kept = ("auction bigint", "bidder bigint", "price bigint", "dateTime timestamp", "extra string")
    return events.compute(_bid(*kept)).aligned(Highest("price", ", ".join(kept)), every=10)


def q8(events: FlowStream) -> FlowStream:
    """Monitor new users: who came and opened an auction within the same ten seconds."""
    person = {
        "person bigint": "coalesce(person.id, auction.seller)",
        "name string": "person.name",
        "auction bigint": "auction.id",
    }
    counted = (
        events.compute(person)
        .partition("person")
        .aligned(Max("name", "name"), Count("auctions", field="auction"), every=10)
    )
    return counted.filter(and_(has("name"), gt("auctions", 0))).select("person", "name", "window_start", "window_end")


def q11(events: FlowStream) -> FlowStream:
    """User sessions: the bids of each bidder while no more than ten seconds pass between two."""
    return events.compute(_bid("bidder bigint")).partition("bidder").session(Count("bid_count"), gap=10)


def _bid(*fields: str) -> dict[str, str]:
    """Fields of a bid, as expressions over an event: one that is no bid has none of them."""
    return {field: f"bid.{field.split()[0]}" for field in fields}


WINDOWED: dict[str, Callable[[FlowStream], FlowStream]] = {query.__name__: query for query in (q5, q7, q8, q11)}


def flow(query: str, source: Any, windows: str = "batch") -> Flow:
    """A query over a source of events, or over events that come from outside (the schema as text).

    Args:
        windows: whether they run in the batch of their source, or behind a channel.
    """
    events = Flow(f"nexmark_{query}", windows=windows).stream("events", source, timestamp=AT)
    return WINDOWED[query](events).persist(query).build()


def files(folder: Path, files_per_batch: int | None = None) -> JsonFiles:
    """The source of the events of a folder."""
    return JsonFiles(folder, EVENTS, max_files_per_batch=files_per_batch)
