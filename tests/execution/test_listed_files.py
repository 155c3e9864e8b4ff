"""On S3 a start compares what batches took with Spark's log of it, which a late process may have written over. No Spark here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from pipelines import Lake
from pipelines.execution.checkpoint import listed_files
from pipelines.execution.checkpoint.belonging import Belonging, OtherCheckpointError
from pipelines.execution.checkpoint.engine_files import Checkpoint, Epoch
from pipelines.execution.checkpoint.listed_files import listed, may_be_written_over
from pipelines.places.location import Location
from pipelines.sources.base import file_key
from pipelines.state.record import BATCH, BatchRecord, CommitRecord
from pipelines.state.table import StateTable


@dataclass
class Table:
    """A table of which only the ledger is asked."""

    records: list[BatchRecord]
    name: str = "counts"

    @property
    def commits(self) -> Table:
        return self

    def batches(self) -> list[CommitRecord]:
        return [CommitRecord(n, datetime.now(UTC), "WRITE", one) for n, one in enumerate(self.records)]

    def exists(self) -> bool:
        return True


class Query:
    """A query on a store that has two file sources and one that has no log."""

    def __init__(self, folder: Path) -> None:
        self.checkpoint = Checkpoint("shop", Location.of(folder / "s"))
        self.spark = folder / "s" / "spark"
        for name in ("offsets", "sources/0", "sources/2"):
            (self.spark / name).mkdir(parents=True)
        (self.spark / "metadata").write_text("{}")
        self.checkpoint.begin(Epoch(1, 0))
        self.taken: dict[int, list[str]] = {}
        self.records: list[BatchRecord] = []

    def list_files(self, listing: int, *files: str, source: int = 0) -> None:
        self.taken[listing] = [f"s3a://b/in/{source}/{file}" for file in files]
        self.write(str(listing), {listing: self.taken[listing]}, source)

    def write(self, name: str, entries: dict[int, list[str]], source: int = 0) -> None:
        lines = [json.dumps({"path": path, "batchId": number}) for number, of in entries.items() for path in of]
        (self.spark / "sources" / str(source) / name).write_text("\n".join(["v1", *lines]))

    def commit(self, batch: int, *of: tuple[int, int] | None, **changed: Any) -> None:
        """Plan and commit a batch that took listings of each source."""
        lines = ["v1", "{}", *("-" if one is None else json.dumps({"logOffset": one[1]}) for one in of)]
        (self.spark / "offsets" / str(batch)).write_text("\n".join(lines))
        taken = [
            frozenset(file_key(file) for n in range(one[0], one[1] + 1) for file in self.taken[n])
            if one
            else frozenset[str]()
            for one in of
        ]
        said = listed(self.checkpoint, batch, taken)
        fields: dict[str, Any] = {
            "kind": BATCH,
            "flow": "shop",
            "epoch": 1,
            "txid": batch,
            "offsets": {"batch": batch, "listed": said},
        }
        self.records.append(BatchRecord(**(fields | changed)))

    def check(self) -> None:
        tables = [cast(StateTable, table) for table in (Table([]), Table(self.records))]
        Belonging(self.checkpoint, Lake(self.checkpoint.folder.parent)).check_listed(tables)


@pytest.fixture
def query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Query:
    monkeypatch.setattr(listed_files, "may_be_written_over", lambda spark: True)
    return Query(tmp_path)


def test_only_on_s3_it_may_be_written_over() -> None:
    places = ("s3://bucket/lake", "hdfs://name:8020/lake", "/lake")
    assert [may_be_written_over(Location.of(place)) for place in places] == [True, False, False]
    assert not may_be_written_over(Path("/lake"))


def test_a_listing_that_was_written_over_is_refused(query: Query) -> None:
    query.list_files(0, "a")
    query.list_files(1, "b", "c d")
    query.commit(0, (0, 0))
    query.commit(1, (1, 1))
    query.check()
    query.list_files(1, "b")
    with pytest.raises(
        OtherCheckpointError, match=r"txid 1 .*\(listing 1 in .*/sources/0\).*\n.*put back what"
    ) as refused:
        query.check()
    assert (refused.value.state, refused.value.table_txid) == ("counts", 1)


def test_so_is_one_of_another_source_and_one_of_a_batch_of_several(query: Query) -> None:
    query.list_files(0, "a")
    query.commit(0, (0, 0), None, None)
    query.list_files(0, "b", source=2)
    query.list_files(1, "c", source=2)
    query.commit(1, None, None, (0, 1))
    # A listing without a plan comes with the next batch.
    query.list_files(2, "d", source=2)
    query.check()
    query.list_files(0, "b", "x", source=2)
    with pytest.raises(OtherCheckpointError, match=r"txid 1 .*\(listing 1 in .*/sources/2\)"):
        query.check()


def test_compact_files_say_it_as_well(query: Query) -> None:
    for number in range(12):
        query.list_files(number, f"{number}")
        query.commit(number, (number, number))
    every = dict(query.taken)
    query.write("9.compact", {number: every[number] for number in range(10)})
    for name in ("0", "9"):
        (query.spark / "sources" / "0" / name).unlink()
    # Spark reads none of those before a compact file, and forgets old plans.
    query.write("5", {5: ["s3a://b/in/0/late"]})
    (query.spark / "offsets" / "3").unlink()
    query.check()
    query.write("9.compact", {number: every[number] for number in range(10) if number != 4})
    with pytest.raises(OtherCheckpointError, match="txid 4 "):
        query.check()


@pytest.mark.parametrize(
    "changed",
    [
        {"flow": "other"},
        {"epoch": 2},
        {"offsets": {"batch": 0}},
        {"offsets": None},
        {"offsets": {"listed": [1]}},
        {"txid": 0},
    ],
)
def test_records_of_others_and_of_earlier_releases_say_nothing(query: Query, changed: dict[str, Any]) -> None:
    query.list_files(0, "a", "b")
    query.commit(0, (0, 0), **changed)
    query.list_files(0, "a")
    if "txid" not in changed:
        query.check()
        return
    with pytest.raises(OtherCheckpointError):
        query.check()
    query.checkpoint.folder = query.checkpoint.folder.with_name("t")
    query.check()


def test_a_log_that_ends_before_a_batch_is_damaged_otherwise(query: Query) -> None:
    query.list_files(0, "a")
    query.commit(0, (0, 0))
    (query.spark / "sources" / "0" / "0").unlink()
    query.check()
