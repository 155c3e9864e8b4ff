"""Writers of one table in a bucket: each txid counts once, whoever comes first, and no commit is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pipelines.errors import BehindStateError
from pipelines.places.location import Location
from pipelines.state.damage import table_damages
from pipelines.state.kinds import LOG, MAP, OPAQUE, ROWS, TRANSACTIONAL
from pipelines.state.turns import LateWriterError
from tests.places.conftest import SERVERS
from tests.places.racing_writer import own_app
from tests.state.small_kinds import SmallTable, record
from tests.tiers import tier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WRITERS, BATCHES = 4, 12


@pytest.mark.parametrize(
    ("layout", "kind"),
    [
        pytest.param(LOG, TRANSACTIONAL, marks=tier(True)),
        pytest.param(MAP, TRANSACTIONAL, marks=tier(False)),
        pytest.param(ROWS, OPAQUE, marks=tier(False)),
    ],
)
def test_of_writers_who_commit_the_same_batches_each_counts_once(place: Location, layout: str, kind: str) -> None:
    """All of them know of nobody else, as drivers that have each taken the other for dead."""
    SmallTable(place / "lake", layout, kind)

    def write(_: int) -> list[int]:
        state, done = SmallTable(place / "lake", layout, kind), []
        for txid in range(BATCHES):
            try:
                known = state.writer.committed("shop/counts/1")
                if known is None or known < txid:
                    state.commit(txid, ("a", txid) if layout == MAP else ("a", 1))
                    done.append(txid)
            except (LateWriterError, BehindStateError):
                continue
        return done

    with ThreadPoolExecutor(WRITERS) as pool:
        done = Counter(txid for writer in pool.map(write, range(WRITERS)) for txid in writer)
    assert done == dict.fromkeys(range(BATCHES), 1)
    state = SmallTable(place / "lake", layout, kind)
    assert [commit.txid for commit in state.table.commits.batches()] == list(range(BATCHES))
    # Each transaction id is read from the log's last checkpoint on, a request per commit.
    log = place / "lake" / "states" / "counts" / "_delta_log"
    assert BATCHES > 10
    assert list(log.glob("*.checkpoint.parquet"))
    expected = {LOG: [("a", BATCHES)], MAP: [("a", BATCHES - 1)], ROWS: [("a", 1)] * BATCHES}
    assert state.held() == expected[layout]


@pytest.mark.slow
def test_damage_of_a_table_there_is_found(place: Location) -> None:
    state = SmallTable(place / "lake", ROWS, TRANSACTIONAL)
    for txid in range(2):
        state.commit(txid, ("a", txid))
    assert list(table_damages("counts", state.table.path)) == []
    folder = place / "lake" / "states" / "counts"
    first, second = sorted(folder.rglob("*.parquet"), key=str)
    first.write_bytes(b"x" * first.stat().st_size)
    second.unlink()
    problems = {damage.path: damage.problem for damage in table_damages("counts", state.table.path)}
    assert problems[str(first)].endswith("is no whole Parquet file")
    assert problems[str(second)].endswith("it is missing")
    commit = folder / "_delta_log" / f"{1:020d}.json"
    commit.write_bytes(commit.read_bytes()[:-20])
    assert [damage.path for damage in table_damages("counts", state.table.path)] == [str(commit)]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_no_commit_of_several_writers_is_lost(place: Location) -> None:
    """Commits that do not stand in each other's way, as of flows that share a quarantine."""
    SmallTable(place / "lake", ROWS, TRANSACTIONAL)

    def write(writer: int) -> None:
        state = SmallTable(place / "lake", ROWS, TRANSACTIONAL)
        for number in range(BATCHES):
            rows = pa.Table.from_pylist([{"word": str(writer), "n": number}], schema=state.arrow)
            state.writer.append_arrow(rows, record(number), f"{writer}/counts/1")

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(WRITERS)))
    held = SmallTable(place / "lake", ROWS, TRANSACTIONAL).held()
    assert sorted(held) == sorted((str(writer), number) for writer in range(WRITERS) for number in range(BATCHES))
    assert DeltaTable(f"{place}/lake/states/counts").version() >= WRITERS * BATCHES


OWN, SHARED, BY_SPARK = 800, 300, 100


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("place", SERVERS, indirect=True)
def test_two_thousand_commits_from_two_hosts_and_spark(
    reaching: SparkSession, place: Location, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Two processes with nothing in common but the table, and Spark, which writes files that delta-rs commits."""
    if "moto" in request.node.name:
        pytest.skip("moto takes one request at a time, and reads its whole bucket for each list")
    lake = place / "lake"
    spark_state = SmallTable(lake, ROWS, TRANSACTIONAL)
    before = spark_state.table.version()
    hosts = []
    for name in ("a", "b"):
        command = [sys.executable, "-m", "tests.places.racing_writer", str(lake), name, str(OWN), str(SHARED)]
        host = os.environ | {"TRIDELTA_HOST": name, "TRIDELTA_HOME": str(tmp_path / name)}
        hosts.append(subprocess.Popen(command, env=host, stdout=subprocess.PIPE, text=True))
    for number in range(BY_SPARK):
        frame = reaching.createDataFrame([("spark", number)], spark_state.columns)
        spark_state.writer.commit_batch(frame, record(number), own_app("spark"), known=False)
    said = [host.communicate(timeout=1500)[0] for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0]
    shared = Counter(txid for out in said for txid in json.loads(out))
    assert shared == dict.fromkeys(range(SHARED), 1)
    state = SmallTable(lake, ROWS, TRANSACTIONAL)
    own = [(name, number) for name, count in (("a", OWN), ("b", OWN), ("spark", BY_SPARK)) for number in range(count)]
    assert sorted(state.held()) == sorted([*own, *(("shared", txid) for txid in range(SHARED))])
    # A version per commit: none took the place of another.
    assert state.table.version() - before == len(own) + SHARED == 2_000
