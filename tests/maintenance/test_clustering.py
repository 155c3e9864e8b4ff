"""Another order of a state's rows: the same rows, read with fewer files, kept by later compactions. No Spark."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from pipelines.errors import FieldError, UnknownStateError
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.maintenance import compact
from pipelines.maintenance.clustering import clustering_of, recluster
from pipelines.state.kinds import LOG, MAP, ROWS, TRANSACTIONAL
from pipelines.state.lake import Lake
from pipelines.state.maintenance_commits import clustered_by
from pipelines.state.record import COMPACTION, GENERATION
from tests.maintenance.small_state import FLOW, STATE, Row, SmallState
from tests.state.small_kinds import SmallTable

SLICES = ("2024-01-01", "2024-01-02")


def some_rows(chance: random.Random, count: int = 30) -> list[Row]:
    return [
        (chance.choice(SLICES), f"k{chance.randrange(20)}", chance.randrange(20), chance.randrange(9))
        for _ in range(count)
    ]


def filled(root: Path, batches: int = 70) -> SmallState:
    """More than a generation, so that there is a closed one whether a stream runs or not."""
    chance, state = random.Random(5), SmallState(root)
    for _ in range(batches):
        state.batch(some_rows(chance))
    return state


def stored(table: Any, column: str) -> list[list[Any]]:
    """A column as it lies, file by file."""
    opened = DeltaTable(str(table.path))
    return [pq.ParquetFile(file).read(columns=[column])[column].to_pylist() for file in opened.file_uris()]


def in_order(files: list[list[Any]]) -> bool:
    return all(values == sorted(values) for values in files)


@pytest.mark.slow
def test_a_log_states_folded_rows_lie_by_the_keys_asked_for(tmp_path: Path) -> None:
    state = filled(tmp_path)
    compact(None, state.lake, FLOW)
    assert in_order(stored(state.table, "key"))
    assert not in_order(stored(state.table, "part"))
    assert clustering_of(state.table) == ("key", "part")
    report = recluster(None, state.lake, STATE, ["part"])
    assert (report.by_before, report.by_after, report.layout) == ((), ("part",), LOG)
    assert report.table.before.rows == report.table.after.rows
    assert report.table.after.get_ms is not None
    assert in_order(stored(state.table, "part"))
    assert not in_order(stored(state.table, "key"))
    assert clustering_of(state.table) == ("part", "key")
    assert state.scanned() == state.got() == state.expected()
    for txid in (0, 30, 69):
        assert state.scanned(txid=txid) == state.by_txid[txid]


@pytest.mark.slow
def test_later_compactions_keep_to_it_and_it_can_be_taken_back(tmp_path: Path) -> None:
    state, chance = filled(tmp_path), random.Random(6)
    recluster(None, state.lake, STATE, ["part"])
    state.batch(some_rows(chance))
    state.replace(SLICES[0], some_rows(chance))
    compact(None, state.lake, FLOW)
    assert in_order(stored(state.table, "part"))
    assert state.scanned() == state.got() == state.expected()
    report = recluster(None, state.lake, STATE, [])
    assert (report.by_before, report.by_after) == (("part",), ())
    assert in_order(stored(state.table, "key"))
    assert state.scanned() == state.expected()


@pytest.mark.slow
def test_the_open_generation_stays_as_it_is(tmp_path: Path) -> None:
    state = filled(tmp_path)
    recluster(None, state.lake, STATE, ["part"], open_generations=1)
    opened = DeltaTable(str(state.table.path))
    open_files = [file for file in opened.file_uris() if f"_gen={70 // GENERATION}" in file]
    assert len(open_files) == 2 * (70 - GENERATION)
    assert state.scanned() == state.expected()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_beside_a_stream_nothing_is_lost(tmp_path: Path) -> None:
    state, chance = filled(tmp_path), random.Random(7)
    batches = [some_rows(chance) for _ in range(25)]

    checkpoint = Checkpoint(FLOW, state.lake.checkpoint_path(FLOW, "orders"))
    checkpoint.folder.mkdir(parents=True)

    def stream() -> None:
        # The locks of a stream: while it commits no table's properties may change.
        with checkpoint.running(5):
            for rows in batches:
                with checkpoint.committing(60):
                    state.batch(rows)

    writer = threading.Thread(target=stream)
    writer.start()
    orders: tuple[list[str], ...] = (["part"], ["key"], ["part", "key"], [])
    for number in range(8):
        # As many generations are left alone as the stream may fill meanwhile.
        recluster(None, Lake(tmp_path), STATE, orders[number % 4], open_generations=2)
    writer.join()
    assert state.scanned() == state.got() == state.expected()
    recluster(None, Lake(tmp_path), STATE, ["part"])
    assert in_order(stored(state.table, "part"))
    assert state.scanned() == state.expected()


@pytest.mark.parametrize("layout", [MAP, ROWS])
def test_map_states_and_rows(tmp_path: Path, layout: str) -> None:
    state, chance = SmallTable(tmp_path, layout, TRANSACTIONAL), random.Random(8)
    for txid in range(5):
        state.commit(txid, *((f"k{number}", txid) for number in chance.sample(range(100), 20)))
    whole = state.held()
    (key, *_) = state.table.declared.keys or state.table.declared.names
    assert clustering_of(state.table) == ()
    report = recluster(None, Lake(tmp_path), state.table.name, [key])
    assert (report.by_after, report.table.after.rows) == ((key,), report.table.before.rows)
    assert in_order(stored(state.table, key))
    assert state.held() == whole == state.held(txid=4)
    assert any(one.kind == COMPACTION for one in state.table.history())
    state.commit(5, ("a0", 1), ("z0", 1))
    compact(None, Lake(tmp_path), state.table.declared.flow)
    assert in_order(stored(state.table, key))
    assert clustered_by(DeltaTable(str(state.table.path))) == (key,)


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    state = filled(tmp_path, 3)
    version = state.table.version()
    with pytest.raises(FieldError, match="did you mean"):
        recluster(None, state.lake, STATE, ["prat"])
    with pytest.raises(FieldError, match="recluster"):
        recluster(None, state.lake, STATE, ["sum"])
    with pytest.raises(UnknownStateError):
        recluster(None, state.lake, "nothing", ["part"])
    assert state.table.version() == version
