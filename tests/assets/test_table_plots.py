"""The plots of a table say what its log and its checkpoint say."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from assets.events import table_plots
from assets.events.table_plots import LAST, MOST_READ, Commit, Grown, TablePlots
from assets.view import FlowView
from pipelines import Lake
from pipelines.state.record import BATCH, COMPACTION, SLICE, BatchRecord


def commit(
    table: Path,
    kind: str,
    txid: int,
    rows: int,
    slice_: str | None = None,
    mode: Literal["append", "overwrite"] = "append",
) -> None:
    record = BatchRecord(kind=kind, flow="trips", txid=txid, rows=rows, slice=slice_)
    write_deltalake(
        table,
        pa.table({"line": ["a"] * rows}),
        mode=mode,
        commit_properties=CommitProperties(custom_metadata={"userMetadata": record.dump()}),
    )


def sizes(table: Path, version: int) -> tuple[int, int]:
    added = pa.table(DeltaTable(table, version=version).get_add_actions(flatten=True))
    return added.num_rows, sum(added["size_bytes"].to_pylist())


@pytest.fixture
def lake(view: FlowView) -> Lake:
    return Lake(view.settings.lake)


@pytest.fixture
def table(lake: Lake) -> Path:
    path = lake.state_path("lines")
    for txid, rows in enumerate((5, 7, 9)):
        commit(path, BATCH, txid, rows)
    commit(path, COMPACTION, 2, 21, mode="overwrite")
    commit(path, SLICE, 2, 3, slice_="2024-01-05")
    return path


def checkpoint(lake: Lake, seconds: list[float]) -> None:
    """A checkpoint whose batches took so long."""
    folder = lake.checkpoint_path("trips", "trips")
    spark = folder / "spark"
    for part in ("offsets", "commits"):
        (spark / part).mkdir(parents=True)
    (spark / "metadata").write_text("{}")
    (folder / "epoch.json").write_text('{"number": 1, "first_txid": 0}')
    for batch, took in enumerate(seconds):
        for part, at in (("offsets", 1000.0 * batch), ("commits", 1000.0 * batch + took)):
            (spark / part / str(batch)).write_text("v1")
            os.utime(spark / part / str(batch), (at, at))


def test_rows_seconds_sizes_and_files(view: FlowView, lake: Lake, table: Path) -> None:
    checkpoint(lake, [1.5, 2.5, 3.5])
    found = TablePlots(view, lake, "lines")._plots(4, {4: 9.5})
    rows, seconds, files = found["rows per batch"], found["batch seconds"], found["files"]
    assert (rows.values, rows.first, rows.last, rows.others) == ([5, 7, 9, 3], "txid 0", "2024-01-05", frozenset({3}))
    assert seconds.values == [1.5, 2.5, 3.5, 9.5]
    # The compaction stands out, and so does what it did to the files.
    assert (files.values, files.others) == ([1, 2, 3, 1, 2], frozenset({3}))
    assert [sizes(table, version)[0] for version in range(5)] == files.values
    assert found["table size"].values == [sizes(table, version)[1] / 1024 for version in range(5)]
    assert found["table size"].unit == "KiB"


def test_it_goes_on_from_commit_to_commit(
    view: FlowView, lake: Lake, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plots = TablePlots(view, lake, "lines")
    assert list(plots.metadata(4)) == ["rows per batch", "table size", "files"]  # nobody has told of seconds
    commit(table, BATCH, 3, 11)
    commit(table, BATCH, 4, 13)
    read: list[int] = []
    original = table_plots.read_commit

    def counted(folder: Path, version: int) -> Commit:
        read.append(version)
        return original(folder, version)

    monkeypatch.setattr(table_plots, "read_commit", counted)
    found = plots._plots(6, {})
    assert read == [6, 5]
    assert found["files"].values == [1, 2, 3, 1, 2, 3, 4]
    assert plots._sizes == (6, Grown(*sizes(table, 6)))
    # Behind a version that was drawn already, as where somebody looks at two commits in another order.
    assert plots._plots(5, {})["files"].values == [1, 2, 3, 1, 2, 3]


def _more_commits(table: Path, many: int, kind: str = BATCH) -> None:
    """Add commits to a log, each with one file more, as batches do."""
    log = table / "_delta_log"
    last = max(int(file.stem) for file in log.glob("*.json"))
    commit(table, kind, 1000, 1)
    text = (log / f"{last + 1:020d}.json").read_text("utf-8")
    for version in range(last + 2, last + many + 1):
        written = text.replace("part-", f"part-{version}-").replace(
            '\\"txid\\":1000', f'\\"txid\\":{999 - last + version}'
        )
        (log / f"{version:020d}.json").write_text(written, "utf-8")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Gather the names of the commits that are opened."""
    names: list[str] = []
    original = Path.open

    def counted(path: Path, *args: Any, **named: Any) -> Any:
        if path.parent.name == "_delta_log":
            names.append(path.name)
        return original(path, *args, **named)

    monkeypatch.setattr(Path, "open", counted)
    return names


@pytest.mark.parametrize("many", [2 * LAST, 10 * LAST])
def test_no_more_commits_are_read_of_an_old_table(
    view: FlowView, lake: Lake, table: Path, opened: list[str], many: int
) -> None:
    _more_commits(table, many)
    opened.clear()
    plots = TablePlots(view, lake, "lines")
    found = plots._plots(4 + many, {})
    assert len(opened) == len(set(opened)) == LAST
    assert (len(found["rows per batch"].values), found["rows per batch"].last) == (LAST, str(999 + many))
    assert found["files"].values == list(range(3 + many - LAST, 3 + many))
    opened.clear()
    _more_commits(table, 3)
    opened.clear()
    assert plots._plots(7 + many, {})["files"].values == list(range(6 + many - LAST, 6 + many))
    assert len(opened) == 3
    assert len(plots._read) == LAST


def test_commits_that_no_plot_shows_are_not_read_without_end(
    view: FlowView, lake: Lake, table: Path, opened: list[str]
) -> None:
    _more_commits(table, 2 * MOST_READ, kind="forgotten")
    opened.clear()
    assert TablePlots(view, lake, "lines")._plots(4 + 2 * MOST_READ, {}) == {}
    assert len(opened) == MOST_READ


def test_a_log_that_was_cleaned_costs_only_the_bars_before(view: FlowView, lake: Lake, table: Path) -> None:
    DeltaTable(table).create_checkpoint()
    for version in (0, 1, 2):
        (table / "_delta_log" / f"{version:020d}.json").unlink()
    found = TablePlots(view, lake, "lines")._plots(4, {})
    assert (found["rows per batch"].values, found["files"].values) == ([3], [1, 2])


def test_a_table_without_commits_has_no_plots(view: FlowView, lake: Lake) -> None:
    assert TablePlots(view, lake, "rides").metadata(0) == {}
