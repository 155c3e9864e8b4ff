"""A Delta table that has moved: its stream goes on by the table's id, and claims say where its files were."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.execution.runners import claims
from pipelines.execution.runners.claims import RewrittenSourceError, SameSources
from pipelines.sources import DeltaTableSource, JsonFiles, ParquetFiles, Source
from pipelines.state.kinds import MAP, ROWS
from pipelines.trident import Count, DeltaState, TridentTopology


def sources(claimed: dict[str, frozenset[str]], *given: Source, layout: str = ROWS) -> SameSources:
    """Those of a group of which one table has claims."""
    table = SimpleNamespace(commits=SimpleNamespace(claims=lambda *_: claimed), exists=lambda: False)
    spouts = [SimpleNamespace(stream=f"s{n}", source=SimpleNamespace(inner=source)) for n, source in enumerate(given)]
    sink = SimpleNamespace(table=table, name="totals", writer=SimpleNamespace(declared=SimpleNamespace(layout=layout)))
    group: Any = SimpleNamespace(
        sinks=[sink],
        sources=SimpleNamespace(sliced=True),
        quarantine=SimpleNamespace(table=table),
        spouts=spouts,
        name="g",
    )
    checkpoint: Any = SimpleNamespace(spark=Path("/nowhere"), finished_batches=lambda: 0)
    return SameSources(group, checkpoint)


CLAIMS = {"d1": frozenset({"file:/old/a%20t/day=d1/F.parquet"}), "d2": frozenset({"file:/new/t/day=d2/G.parquet"})}


@pytest.mark.parametrize("file", ["day=d2/G.parquet", "day=d1/other.parquet", "day=d2/F.parquet"])
def test_files_that_no_claim_names_elsewhere(file: str) -> None:
    sources(CLAIMS, DeltaTableSource("/new/t", "n bigint")).check_moved([frozenset({f"/new/t/{file}"})])


def test_a_file_that_was_claimed_at_a_former_place() -> None:
    moved = frozenset({"/new/t/day=d1/F.parquet"})
    table, files = DeltaTableSource("/new/t", "n bigint"), JsonFiles("/in", "n bigint")
    with pytest.raises(RewrittenSourceError, match="or the table has moved") as caught:
        sources(CLAIMS, files, table).check_moved([frozenset(), moved])
    assert (caught.value.source, caught.value.slices) == ("s1", ("d1",))
    assert caught.value.file == "/old/a t/day=d1/F.parquet"
    # Another table of the group lies there.
    both = sources(CLAIMS, table, DeltaTableSource("/old/a t", "n bigint"))
    both.check_moved([moved, frozenset({"/old/a t/day=d1/F.parquet"})])
    sources({}, table).check_moved([moved])
    on_a_store = sources({"d1": frozenset({"s3a://bucket/old/F"})}, DeltaTableSource("s3://bucket/new", "n bigint"))
    on_a_store.check_moved([frozenset({"s3a://bucket/new/G"})])
    with pytest.raises(RewrittenSourceError):
        on_a_store.check_moved([frozenset({"s3a://bucket/new/F"})])


def test_files_of_other_sources_with_the_same_names() -> None:
    """They are not where a table was; nor is what a backfill has counted beside the table's own file."""
    taken = [frozenset[str](), frozenset({"/t/day=1/part-0.parquet"})]
    both = {"d1": frozenset({"file:/landing/day=1/part-0.parquet", "file:/t/day=1/part-0.parquet"})}
    files, table = ParquetFiles("/landing", "n bigint"), DeltaTableSource("/t", "n bigint")
    sources(both, files, table).check_moved(taken)
    sources({"d1": both["d1"] - {"file:/t/day=1/part-0.parquet"}}, files, table).check_moved(taken)
    # The flow has that source no more.
    sources(both, table).check_moved(taken[1:])
    # The table lay in the landing folder before, where that source does not read it.
    before = {"d1": frozenset({"file:/landing/old/day=1/part-0.parquet"})}
    with pytest.raises(RewrittenSourceError):
        sources(before, files, table).check_moved(taken)
    other_slice = {"d1": frozenset({"file:/old/F"}), "d2": frozenset({"file:/t/F"})}
    with pytest.raises(RewrittenSourceError):
        sources(other_slice, table).check_moved([frozenset({"/t/F"})])


def test_a_state_that_was_backfilled_before_the_table_moved() -> None:
    """Another state has got the slice again behind the move: a backfill was killed between the two."""
    before, after = {"d1": frozenset({"file:/old/F"})}, {"d1": frozenset({"file:/new/F"})}
    same = sources(before, DeltaTableSource("/new", "n bigint"))
    (other,) = sources(after, DeltaTableSource("/new", "n bigint"))._group.sinks
    same._group.sinks = (*same._group.sinks, other)
    with pytest.raises(RewrittenSourceError):
        same.check_moved([frozenset({"/new/F"})])


def test_claims_are_searched_where_they_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    below = claims._below

    def counted(file: str) -> Any:
        looked.append(file)
        return below(file)

    monkeypatch.setattr(claims, "_below", counted)
    given = {"d1": frozenset(f"file:/old/day=d1/{n}.parquet" for n in range(1000))}
    same = sources(given, DeltaTableSource("/new", "n bigint"))
    for _ in range(2):
        same.check_moved([frozenset({"/new/day=d2/7.parquet", "/new/day=d2/x.parquet"})])
    # Of the one name that the batch takes, too.
    assert looked == ["/old/day=d1/7.parquet"] * 2


@pytest.mark.parametrize(
    ("layout", "hint"), [(ROWS, r"\Abackfill these slices again"), (MAP, r'\Astate "totals" is a map')]
)
def test_what_to_do_where_a_slice_is_not_taken_again(layout: str, hint: str) -> None:
    same = sources(CLAIMS, DeltaTableSource("/new/t", "n bigint"), layout=layout)
    with pytest.raises(RewrittenSourceError) as caught:
        same.check_moved([frozenset({"/new/t/day=d1/F.parquet"})])
    assert re.search(hint, str(caught.value.hint))
    assert ("backfill" in str(caught.value.hint)) == (layout != MAP)


def flow(table: Path) -> TridentTopology:
    topology = TridentTopology("totals")
    rows = topology.new_stream("rows", DeltaTableSource(table, "day string, n bigint"), slice_by="day")
    rows.group_by("day").persistent_aggregate(DeltaState("by_day"), Count(), "rows")
    return topology


def add(table: Path, *days: str) -> None:
    write_deltalake(table, pa.table({"day": list(days), "n": pa.array(range(len(days)), pa.int64())}), mode="append")


@pytest.mark.slow
def test_a_table_that_moves_between_a_backfill_and_the_stream(spark: SparkSession, tmp_path: Path) -> None:
    """What a backfill has claimed counts once, and a slice that is backfilled again is claimed where it is."""
    lake = Lake(tmp_path / "lake")
    runtime, old, new = Runtime(spark, lake), tmp_path / "old", tmp_path / "new"
    add(old, "d1", "d2")
    runtime.catch_up(flow(old))
    add(old, "d1", "d1", "d2")
    runtime.backfill(flow(old), ["d1"])
    shutil.move(old, new)

    def counted() -> dict[str, int]:
        return {row["day"]: row["rows"] for row in lake.state("by_day").scan().to_pylist()}

    with pytest.raises(RewrittenSourceError) as caught:
        runtime.catch_up(flow(new))
    assert caught.value.slices == ("d1",)
    assert counted() == {"d1": 3, "d2": 1}
    runtime.backfill(flow(new), ["d1"])
    runtime.catch_up(flow(new))
    assert counted() == {"d1": 3, "d2": 2}
