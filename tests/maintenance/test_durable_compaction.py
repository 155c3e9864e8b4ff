"""A compaction of a durable lake: what is to stand for old files is on the disk before these go."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable

from pipelines.execution.batch.commits import Announced
from pipelines.execution.checkpoint.durable import DurableBatches, asked_up_to, sync_rest
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.execution.runners.bounded import BoundedRunner
from pipelines.maintenance import compact, retention
from pipelines.state import writer
from pipelines.state.delta_log import adds
from pipelines.state.lake import Lake
from pipelines.state.maintenance_commits import PLAIN_NAMES
from pipelines.state.record import BATCH
from tests.maintenance.small_state import FLOW, SmallState


class Asked:
    """The paths that the disk was asked for, and those that went, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.order: list[tuple[str, str]] = []
        fsync, unlink = os.fsync, Path.unlink

        def asked(handle: int) -> None:
            self.order.append(("asked", Path(f"/proc/self/fd/{handle}").readlink().name))
            fsync(handle)

        def gone(path: Path, missing_ok: bool = False) -> None:
            self.order.append(("gone", path.name))
            unlink(path, missing_ok)

        monkeypatch.setattr(os, "fsync", asked)
        monkeypatch.setattr(Path, "unlink", gone)

    def before_the_log_goes(self) -> set[str]:
        first = next(at for at, (what, name) in enumerate(self.order) if what == "gone" and name.endswith(".json"))
        return {name for what, name in self.order[:first] if what == "asked"}


@pytest.fixture
def state(tmp_path: Path) -> SmallState:
    state = SmallState(tmp_path)
    state.lake = Lake(tmp_path, durable=True)
    for n in range(3):
        state.batch([("d", "a", 0, n)])
    return state


def _checkpoint(version: int) -> str:
    return f"{version:020d}.checkpoint.parquet"


@pytest.mark.parametrize("killed", [False, True], ids=["its own", "of one that was killed"])
def test_a_log_goes_once_the_checkpoint_that_replaces_it_is_on_the_disk(
    state: SmallState, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """Nothing is to be folded or deleted: the checkpoint is of a version that was there before."""
    compact(None, state.lake, FLOW, retention_hours=0)
    state.batch([("d", "b", 0, 1)])
    version = state.table.version()
    if killed:
        retention.checkpoint(state.table)
        # Rows that stay readable: the log goes up to the checkpoint alone.
        state.batch([("d", "c", 0, 1)])
    asked = Asked(monkeypatch)
    compact(None, state.lake, FLOW, retention_hours=0, open_generations=1)
    assert {_checkpoint(version), "_last_checkpoint"} <= asked.before_the_log_goes()
    assert state.scanned() == state.expected()


@pytest.mark.parametrize("behind", ["nothing", "a slice", "two slices"])
def test_what_a_compaction_that_was_killed_has_committed_is_asked_for_by_the_next_one(
    state: SmallState, monkeypatch: pytest.MonkeyPatch, behind: str
) -> None:
    """Also where a slice came behind it, which asks for its own commit alone."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(retention, "checkpoint", killed)
        with pytest.raises(KeyboardInterrupt):
            compact(None, state.lake, FLOW, retention_hours=0)
    last = [commit.version for commit in state.table.history() if commit.kind == BATCH][-1]
    versions = range(last + 1, state.table.version() + 1)
    commits = {f"{version:020d}.json" for version in versions}
    files = {Path(add["path"]).name for version in versions for add in adds(state.table.path, version)}
    assert commits
    assert files
    for n in range({"nothing": 0, "a slice": 1, "two slices": 2}[behind]):
        state.replace("e", [("e", "b", 0, n)])
    asked = Asked(monkeypatch)
    compact(None, state.lake, FLOW, retention_hours=0, open_generations=1)
    assert commits | files <= {name for what, name in asked.order if what == "asked"}


def test_batches_slices_and_replays_of_long_ago_are_asked_for_by_themselves_alone(
    state: SmallState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log of a week has a hundred thousand of them."""
    asked = Asked(monkeypatch)
    sync_rest(state.table, state.lake.folder)
    own = [commit.version for commit in state.table.history() if commit.kind == BATCH]
    names = {name for _, name in asked.order if name.endswith(".json")}
    assert [version for version in own if f"{version:020d}.json" in names] == own[-1:]


@pytest.mark.parametrize("next_one", ["stream", "slice", "slice of a map that is in already", "compaction"])
def test_a_batch_that_was_killed_before_it_asked_is_asked_for_by_whatever_comes_next(
    state: SmallState, monkeypatch: pytest.MonkeyPatch, next_one: str
) -> None:
    """Slices came behind it. The stream knows the batch from the table, and Spark marks it as done."""
    version = state.table.version()
    wanted = {f"{version:020d}.json", *(Path(add["path"]).name for add in adds(state.table.path, version))}
    for n in range(2):
        state.replace("e", [("e", "b", 0, n)])
    asked = Asked(monkeypatch)
    if next_one == "stream":
        DurableBatches(Checkpoint(FLOW, state.lake.folder / "c"), [state.table], state.lake.folder).committed()
    elif next_one == "slice":

        def write() -> int:
            state.replace("e", [("e", "b", 0, 2)])
            return int(state.table.version())

        Announced((), state.lake).commit("sales", 2, state.writer, write)
    elif next_one == "compaction":
        sync_rest(state.table, state.lake.folder)
    else:
        runner: Any = BoundedRunner.__new__(BoundedRunner)
        runner._taken_in, runner._announced = {"e": {"sales": frozenset()}}, Announced((), state.lake)
        sink: Any = SimpleNamespace(name="sales", table=state.table)
        assert runner._commit_slice(None, sink, SimpleNamespace(slice="e"), frozenset()).replayed
    assert wanted <= {name for what, name in asked.order if what == "asked"}


def test_a_backfill_asks_for_no_slice_twice(state: SmallState, monkeypatch: pytest.MonkeyPatch) -> None:
    before, announced = state.table.version(), Announced((), state.lake)
    assert asked_up_to(state.table) == before - 1

    def write() -> int:
        state.replace("e", [("e", "b", 0, 1)])
        return int(state.table.version())

    for behind in range(1, 4):
        asked = Asked(monkeypatch)
        announced.commit("sales", 2, state.writer, write)
        names = {name for what, name in asked.order if name.endswith(".json")}
        assert names == {f"{before + n:020d}.json" for n in ((0, 1) if behind == 1 else (behind,))}


def test_the_property_that_a_table_of_an_earlier_release_gets_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(writer, "PLAIN_NAMES", {})
        state = SmallState(tmp_path)
        state.lake = Lake(tmp_path, durable=True)
        state.batch([("d", "a", 0, 1)])
        state.batch([("d", "b", 0, 1)])
    named = state.table.version() + 1
    asked = Asked(monkeypatch)
    compact(None, state.lake, FLOW, retention_hours=0, open_generations=1)
    assert PLAIN_NAMES.items() <= DeltaTable(str(state.table.path), version=named).metadata().configuration.items()
    assert ("asked", f"{named:020d}.json") in asked.order
