"""The events over which the queries of Nexmark are compared, and how their rows are compared with DuckDB's.

As a module it runs all topologies, or a flow of windows, in a process of its own, which ends by SIGKILL at a chosen moment.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from examples.nexmark.generator import Auctions, random_cuts
from examples.nexmark.queries import QUERIES, rows_of, topology
from examples.nexmark.sql import SQL, answer, connect
from examples.nexmark.windows import files, flow
from pipelines import Lake, Runtime, spark_session
from pipelines.flowmix import Flow
from pipelines.planner.plain import plain
from pipelines.trident import TridentTopology

Rows = list[dict[str, Any]]
EVENTS, FILES = 2_000, 4
DAYS = ["2026-01-01", "2026-01-02"]
# A tenth of a second between two events, over midnight: no two bids share a time, and all share few minutes.
AUCTIONS = Auctions(seed=8, rate=10, start="2026-01-01T23:58:30")
KINDS = ("person", "auction", "bid")


def write_events(folder: Path, seed: int = 1) -> Path:
    """The events in files that are cut at random."""
    AUCTIONS.write(folder, random_cuts(seed, EVENTS, FILES))
    return folder


def write_few(folder: Path) -> Path:
    """Few events in two files: the first ones, and later ones, in which each query finds something."""
    lines = list(AUCTIONS.lines(EVENTS))
    folder.mkdir()
    for name, part in (("0.json", lines[:110]), ("1.json", [*lines[110:200], *lines[1800:]])):
        (folder / name).write_text("".join(f"{line}\n" for line in part))
    return folder


def write_end(folder: Path) -> Path:
    """A last file with a person that comes an hour later, whose time closes all windows."""
    person = json.loads(next(AUCTIONS.lines(1)))
    later = datetime.fromisoformat(AUCTIONS.start) + timedelta(hours=1)
    person["person"] |= {"id": 0, "dateTime": f"{later.isoformat()}.000Z"}
    (folder / "99999.json").write_text(f"{json.dumps(person)}\n")
    return folder


def read(folder: Path) -> list[list[dict[str, Any]]]:
    """The files' events as batches."""
    return [[_typed(json.loads(line)) for line in file.read_text().splitlines()] for file in sorted(folder.iterdir())]


def _typed(event: dict[str, Any]) -> dict[str, Any]:
    return {kind: _with_times(event.get(kind)) for kind in KINDS}


def _with_times(fields: dict[str, Any] | None) -> dict[str, Any] | None:
    """Times without a zone, as every engine shows them."""
    times = {"dateTime", "expires"}
    return fields and {
        name: datetime.fromisoformat(value).replace(tzinfo=None) if name in times else value
        for name, value in fields.items()
    }


def wanted(folder: Path) -> dict[str, Rows]:
    """DuckDB's answers to all queries."""
    connection = connect(folder)
    return {query: answer(connection, query) for query in SQL}


def everything(folder: Path) -> TridentTopology:
    """All topologies' queries as one topology, a file per batch."""
    return topology(list(QUERIES), folder, files_per_batch=1)


def windowed(query: str, folder: Path) -> Flow:
    """A query over windows in the batch of their source, a file per batch."""
    return flow(query, files(folder, files_per_batch=1))


def assert_states(lake: Lake, expected: dict[str, Rows], queries: Sequence[str] = tuple(QUERIES)) -> None:
    for query in queries:
        assert_rows(query, lake.state(query).scan().to_pylist(), expected[query])


def assert_rows(query: str, scanned: Rows, expected: Rows) -> None:
    """Compare a state with DuckDB's rows: the same rows, as often."""
    rows = _without_clock(scanned) if query == "q12" else rows_of(query, [dict(row) for row in scanned])
    assert expected, f"{query}: an answer without rows shows nothing"
    columns = sorted(expected[0])
    ours, theirs = (Counter(_comparable(row, columns) for row in side) for side in (rows, expected))
    missing, surplus = list((theirs - ours).elements()), list((ours - theirs).elements())
    shown = f"{query}: {len(missing)} missing, as {missing[:2]}; {len(surplus)} more, as {surplus[:2]}"
    assert missing == surplus == [], shown


def _without_clock(rows: Rows) -> Rows:
    """Bids per bidder over all windows; each window is of ten whole seconds."""
    counts = Counter[int]()
    for row in rows:
        assert row["starttime"].second % 10 == row["starttime"].microsecond == 0
        assert (row["endtime"] - row["starttime"]).total_seconds() == 10
        counts[row["bidder"]] += row["bid_count"]
    return [{"bidder": bidder, "bid_count": count} for bidder, count in counts.items()]


def _comparable(row: dict[str, Any], columns: list[str]) -> tuple[Any, ...]:
    values = (plain(row[column]) for column in columns)
    return tuple(value.normalize() if isinstance(value, Decimal) else value for value in values)


if __name__ == "__main__":
    from tests.crash.driver import Killer

    plan = json.loads(sys.argv[1])
    session = spark_session(
        "crash", master="local[2]", conf={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    )
    runtime = Runtime(session, Lake(plan["home"]), listeners=[Killer(plan["kill"])], max_attempts=20)
    folder = Path(plan["events"])
    runtime.catch_up(windowed(plan["query"], folder) if "query" in plan else everything(folder))
