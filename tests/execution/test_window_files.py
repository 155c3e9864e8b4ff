"""State of windows in files: whatever fails, a batch begins from the state of the one before, and no other."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from pipelines import aggregators as agg
from pipelines.errors import NotTextError
from pipelines.execution.checkpoint import window_files
from pipelines.execution.checkpoint.belonging import Named, named_by
from pipelines.execution.checkpoint.waiting_rows import Waiting, WaitingRows
from pipelines.execution.checkpoint.window_begin import (
    Begun,
    StateFolder,
    StateRef,
    WindowPlaceError,
    WindowStateError,
    end_all,
    ended_in,
)
from pipelines.execution.checkpoint.window_files import Definition, WindowFailure, WindowFiles, outputs_in
from pipelines.graph import events as ev
from pipelines.state.record import BatchRecord
from pipelines.windows import buffer
from pipelines.windows.array_kinds import OneByOne, windows_of
from pipelines.windows.arrays import Arrays, WindowContent
from pipelines.windows.buffer import WindowContext, identity_of
from pipelines.windows.event import Event
from pipelines.windows.keyed import KeyedWindows
from pipelines.windows.operations import BOUNDS, AggregateWindow, AlignedWindow
from pipelines.windows.policy import Policy
from pipelines.windows.vectorised import ArrayWindows
from tests.windows.window_runs import context

OUTPUTS = [("sum", pa.int64()), ("count", pa.int64())]
OWN = [(name, pa.int64() if name in (ev.TIME, ev.CLOCK) else pa.string()) for name in ev.COLUMNS]
TAKEN = pa.schema([("k", pa.string()), ("v", pa.int64()), (ev.CLOCK, pa.int64()), (ev.ORDER, pa.string())])
MADE = pa.schema([("k", pa.string()), *OUTPUTS, *OWN])
COUNTED = AggregateWindow((agg.Sum("v"), agg.Count()), Policy.count(2), Policy.count(3))
SIGNATURE = b"sixteen bytes of"
BOUND = pa.timestamp("us", "UTC")
START = -(10**9)
Row = tuple[str, int, int, str]


def files(
    folder: Path,
    operation: AggregateWindow = COUNTED,
    signature: bytes = SIGNATURE,
    version: str | None = None,
) -> WindowFiles:
    definition = Definition(signature, (signature,), version, ("states/t",))
    return WindowFiles(StateFolder(folder), [ArrayWindows(operation, context("k"), MADE)], definition)


def table(rows: list[Row]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [[] for _ in TAKEN]
    return pa.table([pa.array(list(c), f.type) for c, f in zip(columns, TAKEN, strict=True)], schema=TAKEN)


def shown(results: pa.Table) -> list[tuple[Any, ...]]:
    return [(row["k"], row["sum"], row["count"], row[ev.ID], row[ev.CLOCK]) for row in results.to_pylist()]


class Died(Exception):  # noqa: N818 - a process
    pass


@dataclass
class Tables:
    """Two outputs of a query, and what their records name; one behind the other, as batches commit them."""

    rows: tuple[dict[int, pa.Table], dict[int, pa.Table]] = field(default_factory=lambda: ({}, {}))
    named: dict[int, tuple[StateRef, int]] = field(default_factory=dict)

    def before(self, txid: int) -> tuple[StateRef | None, int]:
        below = [named for named in self.named if named < txid]
        return self.named[max(below)] if below else (None, START)


class Query:
    """A query whose process dies at any moment, whose replays have their rows in another order, and whose dead sometimes wake."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance, self.folder, self.tables = random.Random(seed), folder, Tables()
        chance = self.chance
        self.operation = AggregateWindow(
            (agg.Sum("v"), agg.Count()),
            chance.choice([Policy.count(chance.randint(1, 4)), Policy.time(chance.randint(1, 4))]),
            chance.choice([Policy.count(chance.randint(1, 5)), Policy.time(chance.randint(1, 6))]),
            chance.random() < 0.5,
            chance.choice([2000, 9000]),
        )
        self.delay = chance.choice([0, 1500])
        self.expected = KeyedWindows(self.operation, context("k"))
        self.wanted: list[tuple[Any, ...]] = []
        self.left_out: set[int] = set()
        self.earlier: list[tuple[WindowFiles, StateRef]] = []

    def batches(self) -> Iterator[list[Row]]:
        for number in range(8):
            size, first = self.chance.choice([0, 1, 20]), number * 2000
            yield [
                (
                    f"k{self.chance.randint(0, 9)}",
                    self.chance.randint(0, 9),
                    self.chance.randint(first, first + 4000),
                    "",
                )
                for _ in range(size)
            ]

    def run(self) -> None:
        own = files(self.folder, self.operation)
        for txid, batch in enumerate(self.batches()):
            attempt = 0
            while not self._comes_through(own, txid, attempt, batch):
                attempt += 1
                if self.chance.random() < 0.6:
                    # Not the attempt alone has failed: its process has died.
                    own = files(self.folder, self.operation)
                if self.chance.random() < 0.1:
                    self.left_out.add(txid)
                    break
            self._wakes()

    def _comes_through(self, own: WindowFiles, txid: int, attempt: int, batch: list[Row]) -> bool:
        try:
            self._attempt(own, txid, attempt, batch)
        except Died:
            return False
        if self.chance.random() < 0.2:
            # All is committed, and Spark does not know it.
            return False
        ref = self.tables.named[txid][0]
        self.earlier.append((own, ref))
        if self.chance.random() < 0.5:
            own.clear(ref)
        return True

    def _attempt(self, own: WindowFiles, txid: int, attempt: int, batch: list[Row]) -> None:
        if txid in self.tables.named:
            ref, clock = self.tables.named[txid]
            (results,) = own.results(ref)
        else:
            before, floor = self.tables.before(txid)
            # As the tasks of this attempt happened to give them.
            rows = [(k, v, at, f"{n:06d}") for n, (k, v, at, _) in enumerate(self.chance.sample(batch, len(batch)))]
            rows = [row for row in rows if row[2] >= floor]
            clock = max([floor, *(row[2] - self.delay for row in rows)])
            (results,), ref = own.run(txid, attempt, before, self._in_pieces(rows, floor, clock))
            self._dies(0.3)
            self._expect(rows, clock)
        for output in self.tables.rows:
            if txid not in output:
                output[txid] = results
                self.tables.named.setdefault(txid, (ref, clock))
                self._dies(0.3)

    def _in_pieces(self, rows: list[Row], floor: int, clock: int) -> list[tuple[pa.Table, int]]:
        """Return the rows up to each of some clocks; with the last of them those that wait."""
        cuts = sorted({self.chance.randint(floor, clock) for _ in range(self.chance.choice([0, 0, 3]))} - {clock})
        ends, start, pieces = [*cuts, clock], floor - 1, []
        for end in ends:
            own = [row for row in rows if start < row[2] and (row[2] <= end or end == clock)]
            pieces.append((table(own), end))
            start = end
        return pieces

    def _expect(self, rows: list[Row], clock: int) -> None:
        """What this attempt makes counts: its first output commits."""
        items = [(Event({"k": k, "v": v}, "e", at), at, order) for k, v, at, order in rows]
        results = self.expected.feed(sorted(items, key=lambda item: item[1:]), clock)
        self.wanted += [(e.get("k"), e.get("sum"), e.get("count"), e.id, at) for e, at, _ in results]

    def _dies(self, chance: float) -> None:
        if self.chance.random() < chance:
            raise Died

    def _wakes(self) -> None:
        if self.earlier and self.chance.random() < 0.3:
            own, ref = self.chance.choice(self.earlier)
            try:
                own.clear(ref)
            except WindowStateError:
                assert ref not in [named for named, _ in list(self.tables.named.values())[-1:]]


@pytest.mark.parametrize("seed", range(60))
def test_any_crash(seed: int, tmp_path: Path) -> None:
    query = Query(seed, tmp_path / "windows")
    query.run()
    first, second = query.tables.rows
    assert sorted(shown(pa.concat_tables(first.values()))) == sorted(query.wanted) if first else not query.wanted
    for txid in set(first) - query.left_out:
        assert second[txid].equals(first[txid])


def rows_of(first: int, end: int) -> list[Row]:
    return [(f"k{n % 7}", n, n, f"{n:06d}") for n in range(first, end)]


def test_only_what_changed_is_written_and_laid_over_the_whole(tmp_path: Path) -> None:
    many = [(f"k{n}", 1, n, f"{n:06d}") for n in range(3000)]
    own, before = files(tmp_path), None
    (results,), before = own.run(0, 0, None, [(table(many), 2999)])
    whole = (tmp_path / before.file).stat().st_size
    for txid in range(1, 6):
        now = 3000 + txid
        (results,), before = own.run(txid, 0, before, [(table([("k5", 1, now, "0"), (f"n{txid}", 1, now, "1")]), now)])
        assert (tmp_path / before.file).stat().st_size < whole / 5
        # A process that knows nothing goes on with the same state.
        again = files(tmp_path)
        assert again._state(before)[0].windows.sort_by("k").equals(own._state(before)[0].windows.sort_by("k"))
        own.clear(before)
    assert len(list(tmp_path.iterdir())) == 6
    assert shown(results)[-1][:3] == ("k5", 3, 3)


def test_files_of_states_do_not_grow_in_number(tmp_path: Path) -> None:
    own, before = files(tmp_path), None
    for txid in range(80):
        _, before = own.run(txid, 0, before, [(table([(f"k{txid}", 1, txid, "0")]), txid)])
        own.clear(before)
        assert len(list(tmp_path.iterdir())) <= 33
    assert files(tmp_path)._state(before)[0].keys == 80


def test_how_many_windows_a_state_holds_is_in_its_files_head(tmp_path: Path) -> None:
    own = files(tmp_path)
    _, first = own.run(0, 0, None, [(table([(f"k{n}", 1, n, str(n)) for n in range(5)]), 9)])
    _, second = own.run(1, 0, first, [(table([("k1", 1, 10, "5"), ("new", 1, 11, "6")]), 11)])
    for known in (own, files(tmp_path)):
        assert [known.rows(ref) for ref in (None, first, second)] == [0, 5, 6]


def test_a_named_file_that_is_gone_or_damaged_is_refused(tmp_path: Path) -> None:
    _, ref = files(tmp_path).run(0, 0, None, [(table(rows_of(0, 20)), 19)])
    file, rows = tmp_path / ref.file, table(rows_of(20, 30))
    good = file.read_bytes()
    for data in (good[:-1], b"", good[:40] + b"?" + good[41:]):
        file.write_bytes(data)
        with pytest.raises(WindowStateError, match="damaged"):
            files(tmp_path).run(1, 0, ref, [(rows, 29)])
    file.unlink()
    with pytest.raises(WindowStateError, match="is gone"):
        files(tmp_path).run(1, 0, ref, [(rows, 29)])
    (tmp_path / ref.file).write_bytes(good)
    with pytest.raises(WindowStateError, match="another operation"):
        files(tmp_path, signature=b"another sixteen.").run(1, 0, ref, [(rows, 29)])
    (results,), _ = files(tmp_path).run(1, 0, ref, [(rows, 29)])
    assert results.num_rows


def test_a_state_is_of_the_last_version_that_somebody_knew(tmp_path: Path) -> None:
    """Of another definition nothing is kept but what has been in no window."""
    other, before = b"another sixteen.", None
    for txid, version in enumerate([None, "one", None, "two", None]):
        _, before = files(tmp_path, version=version).run(txid, 0, before, [(table(rows_of(txid, txid + 1)), txid)])
        known = [None, "one", "one", "two", "two"][txid]
        assert files(tmp_path, signature=other).left_by(before) == (False, known)
        assert files(tmp_path, signature=other).kept_of(before).empty == (0,)
        assert files(tmp_path).left_by(before) == (True, known)
        own = files(tmp_path).kept_of(before)
        assert (own.empty, own.states[0].keys) == ((), txid + 1)
    _, ahead = files(tmp_path).run(5, 0, before, [(table(rows_of(5, 9)), 6)])
    (state,) = files(tmp_path, signature=other).kept_of(ahead).states
    assert (state.keys, state.clock, state.pending and state.pending.num_rows) == (0, 6, 2)
    assert outputs_in(StateFolder(tmp_path)) == ("states/t",)


def test_what_a_writer_left_in_the_middle_goes_and_what_is_later_stays(tmp_path: Path) -> None:
    own = files(tmp_path)
    _, zero = own.run(0, 0, None, [(table(rows_of(0, 5)), 4)])
    _, first = own.run(1, 0, zero, [(table(rows_of(5, 9)), 8)])
    for name in (".000000000000-1-aaaaaaaa", "000000000001-3-bbbbbbbb", "000000000002-0-cccccccc", "a stranger"):
        (tmp_path / name).write_bytes(b"")
    own.clear(first)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [first.file, "000000000002-0-cccccccc", "a stranger"]
    )
    own.clear(first)
    with pytest.raises(WindowStateError):
        files(tmp_path).clear(zero)


def test_a_disk_that_is_full_leaves_the_state_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = files(tmp_path)
    _, ref = own.run(0, 0, None, [(table(rows_of(0, 20)), 19)])

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            own.run(1, 0, ref, [(table(rows_of(20, 30)), 29)])
    (results,), _ = own.run(1, 1, ref, [(table(rows_of(20, 30)), 29)])
    assert shown(results) == shown(files(tmp_path).run(1, 2, ref, [(table(rows_of(20, 30)), 29)])[0][0])


def test_a_note_that_is_taken_back_is_off_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a loss of power it would come back, and the next batch of the same state would leave rows out."""
    folder = tmp_path / "windows"
    waiting = WaitingRows(StateFolder(folder))
    waiting.release(3, Waiting("2-x", 19, 0, None))
    synced: list[tuple[Path, list[Path]]] = []
    fsync = os.fsync

    def seen(handle: int) -> None:
        synced.append((Path(f"/proc/self/fd/{handle}").readlink(), list(folder.iterdir())))
        fsync(handle)

    monkeypatch.setattr("os.fsync", seen)
    waiting.release(3, None)
    assert (folder.resolve(), []) in synced
    assert WaitingRows(StateFolder(folder)).released_since(0) == []
    synced.clear()
    waiting.release(3, None)
    assert not synced, "nothing is there to be taken back"


@pytest.mark.parametrize("how", ["released", "taken back"])
def test_a_note_that_a_process_took_back_that_died_behind_that_is_off_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    folder, checkpoint = tmp_path / "windows", SimpleNamespace(still_held=lambda: None)
    died = WaitingRows(StateFolder(folder))
    died.release(3, Waiting("2-x", 19, 0, None))
    with monkeypatch.context() as patched:
        patched.setattr(StateFolder, "settle", _dies)
        with pytest.raises(KeyboardInterrupt):
            died.release(3, None)
    assert list(folder.iterdir()) == []
    settled: list[list[Path]] = []
    monkeypatch.setattr(StateFolder, "settle", lambda _: settled.append(list(folder.iterdir())))
    waiting = WaitingRows(StateFolder(folder))
    for _ in range(2):
        if how == "released":
            waiting.release(3, None)
        else:
            waiting.take_back(3, checkpoint)  # type: ignore[arg-type]
    assert settled == [[]], "once a start"


def _dies(_: object) -> None:
    raise KeyboardInterrupt


def test_windows_that_end_again_are_ended_with_what_they_hold_now(tmp_path: Path) -> None:
    """The first time it was cut off before the last step, and the windows came back."""
    folder = StateFolder(tmp_path)
    Begun(0).write(folder)
    folder.write("ended", Begun(3, StateRef("2-x", "h2")).to_bytes())
    end_all(folder, now := Begun(900, StateRef("899-x", "h899")))
    assert (ended_in(folder), Begun.of(folder)) == (now, None)


def test_windows_that_end_empty_leave_where_they_began(tmp_path: Path) -> None:
    """Records below name states of an earlier checkpoint."""
    folder = StateFolder(tmp_path)
    Begun(5).write(folder)
    end_all(folder, Begun(5))
    assert ended_in(folder) == Begun(5)
    # As an earlier release has it.
    (tmp_path / "ended").write_bytes(b"")
    assert ended_in(folder) == Begun(0)


def test_windows_that_cannot_go_over_are_not_told_to_begin_empty() -> None:
    """That is refused for the same reason."""
    begins, stays = (WindowPlaceError("f", "q", in_batch=True, reason=reason) for reason in (None, "there are others"))
    assert "--changed-windows begin" in str(begins)
    assert "changed-windows" not in str(stays)
    assert 'windows="channels"' in str(stays)


def test_a_channel_that_has_the_batch_first_says_the_windows_clocks_and_not_its_own() -> None:
    """Behind windows that came over from a channel its own know of the query that was there before, too."""
    named = Named(7, StateRef("x", "y"), {"readings": 100})
    record = BatchRecord(kind="batch", flow="f", txid=7, clocks={"s": 100, "readings": 48}, windows=named.shown("q"))

    def by(record: BatchRecord) -> list[Named]:
        tables: Any = [SimpleNamespace(commits=SimpleNamespace(batches=lambda: [SimpleNamespace(record=record)]))]
        return list(named_by("q", tables))

    assert by(record) == [named]
    former = {name: text for name, text in named.shown("q").items() if name != "clocks"}
    assert by(record.model_copy(update={"windows": former})) == [replace(named, clocks={"s": 100, "readings": 48})]


def hopping(depth: int, size: int, lag: int = 0) -> Arrays:
    """Return sums by key of windows of `size` seconds, every minute, with so many windows before them.

    Args:
        lag: by how many ms what comes of aligned windows is behind the clock; 0: none comes.
    """
    made = pa.schema([("k", pa.string()), *((name, BOUND) for name in BOUNDS), ("sum", pa.int64()), *OWN])
    where = WindowContext("flow", "stream", depth + 1, ("k",), depth, lags=frozenset({lag} if lag else ()))
    return windows_of(
        AlignedWindow((agg.Sum("v"),), 60, size), where, TAKEN.append(pa.field(ev.TIME, pa.int64())), made
    )


def at(second: int, *keys: str) -> pa.Table:
    made = table([(key, 1, second * 1000, f"{number}") for number, key in enumerate(keys)])
    return made.append_column(ev.TIME, made[ev.CLOCK])


@pytest.mark.parametrize(("before", "after"), [(1, 0), (0, 1)])
@pytest.mark.parametrize("size", [60, 120])
def test_aligned_windows_that_get_other_windows_before_them_give_each_span_once(
    before: int, after: int, size: int, tmp_path: Path
) -> None:
    """The clock stands at the end of a span, which ends a little later where windows are before it."""
    first = ArrayWindows(COUNTED, context("k"), MADE)

    def one(depth: int) -> WindowFiles:
        chain = [first, hopping(depth, size)][1 - depth :]
        each = (b"first", b"second")[1 - depth :]
        return WindowFiles(StateFolder(tmp_path), chain, Definition(b"%d" % depth, each, None, ()))

    def run(
        windows: WindowFiles, txid: int, ref: StateRef | None, rows: pa.Table, clock: int
    ) -> tuple[pa.Table, StateRef]:
        results, ref = windows.run(txid, 0, ref, [(rows, clock * 1000)], lambda _, made: rows)
        return results[-1], ref

    keys = [f"k{number}" for number in range(50)]
    former = one(before)
    found, ref = run(former, 0, None, at(59, *keys), 59)
    more, ref = run(former, 1, ref, at(60, "k0"), 60)
    windows = one(after)
    states = windows.kept_of(ref)
    assert states.empty == ((0,) if after else ())
    last, ref = run(windows, 3, windows.begin(2, states.states), at(300, "k0"), 300)
    spans = [(row["k"], row["window_start"], row["sum"]) for part in (found, more, last) for row in part.to_pylist()]
    assert sorted(key for key, start, _ in spans if start.minute == 0 and start.hour == 0) == sorted(keys)
    assert len(spans) == len({span[:2] for span in spans})
    assert sum(total for *_, total in spans) == 51 * size // 60


@pytest.mark.parametrize("known", [False, True])
def test_windows_behind_one_that_loses_windows_before_it_take_what_it_makes(known: bool, tmp_path: Path) -> None:
    """The clock stands between the end of its span with two windows before it, and that with none."""
    first = ArrayWindows(COUNTED, context("k"), MADE)
    each = (b"one", b"two", b"spans", b"behind")
    behind = [hopping(3, 60, 3)] if known else []
    former = WindowFiles(
        StateFolder(tmp_path), [first, first, hopping(2, 60), *behind], Definition(b"former", each[: 3 + known])
    )
    rows = [at(0), at(59, "a", "b"), at(0)]
    results, ref = former.run(0, 0, None, [(at(0), 60_001)], lambda number, _: rows[number])
    assert not any(made.num_rows for made in results)

    def summed(_: int, made: pa.Table) -> pa.Table:
        return made.select(["k", ev.TIME, ev.CLOCK, ev.ORDER]).append_column("v", made["sum"])

    after = WindowFiles(StateFolder(tmp_path), [hopping(0, 60), hopping(1, 60, 1)], Definition(b"after", each[2:]))
    states = after.kept_of(ref)
    assert states.empty == (() if known else (1,))
    results, _ = after.run(2, 0, after.begin(1, states.states), [(at(70, "a"), 300_000)], summed)
    for made in results:
        assert [(row["k"], row["window_start"].minute, row["sum"]) for row in made.to_pylist()] == [
            ("a", 0, 1),
            ("b", 0, 1),
            ("a", 1, 1),
        ]


class Passing:
    """A window that gives on what waits."""

    depth = 0

    def laid_over(self, *_: Any) -> None:
        """Hold nothing."""

    def check(self, *_: Any) -> None:
        """Accept."""

    def feed(self, state: WindowContent, rows: pa.Table, clock: int, **_: Any) -> tuple[pa.Table, WindowContent]:
        came = rows if state.pending is None else pa.concat_tables([state.pending, rows])
        return came, replace(state, pending=None, clock=clock)


@pytest.mark.parametrize(
    ("error", "is_of_rows"),
    [
        (PySparkException("a division by zero"), True),
        (NotTextError("t", "k"), True),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (ValueError("a fault of the engine's"), False),
    ],
)
def test_what_fails_between_two_windows_is_asked_about_where_it_is_of_the_rows(
    tmp_path: Path, error: Exception, is_of_rows: bool
) -> None:
    definition = Definition(SIGNATURE, (SIGNATURE, SIGNATURE))
    passing: Any = Passing()
    windows = WindowFiles(StateFolder(tmp_path), [passing, passing], definition)
    before = windows.begin(0, (WindowContent(pending=table([("a", 1, 0, "0")])), WindowContent()))

    def between(_: int, results: pa.Table) -> pa.Table:
        if results.num_rows:
            raise error
        return results

    with pytest.raises(WindowFailure if is_of_rows else type(error)) as failed:
        windows.run(1, 0, before, [(table([]), 10)], between)
    if not is_of_rows:
        with pytest.raises(type(error)):
            windows.waiting_fail(1, before, (table([]), 10), between)
        return
    failure: Any = failed.value
    assert (failure.error, failure.number, failure.is_between) == (error, 1, True)
    assert windows.waiting_fail(1, before, (table([]), 10), between)


def one_by_one(folder: Path, operation: Any) -> WindowFiles:
    made = pa.schema([("k", pa.string()), ("sum", pa.int64()), ("distinct", pa.int64()), *OWN])
    windows = windows_of(operation, context("k"), TAKEN, made)
    assert isinstance(windows, OneByOne)
    return WindowFiles(StateFolder(folder), [windows], Definition(SIGNATURE, (SIGNATURE,), None, ()))


NEW = "é"
"""Stands for a character that is new in Unicode: only a Python that knows it writes it as it is."""


def runs_python(patch: pytest.MonkeyPatch, form: str | None, escape: Any) -> None:
    """Let a process be one of a Python with other tables of Unicode; None: of a release that does not say which."""
    patch.setattr(buffer, "_text", escape)
    patch.setattr(window_files, "TEXT_FORM", form, raising=False)


@pytest.mark.parametrize("form", [None, "1, Unicode 14"])
def test_windows_go_on_where_another_python_escapes_other_characters(
    form: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation = AggregateWindow((agg.Sum("v"), agg.DistinctCount("v", "distinct")), Policy.count(1), Policy.count(9))
    before: StateRef | None = None
    found = []
    for txid, upgraded in enumerate([False, False, True, True, False, True]):
        with monkeypatch.context() as patch:
            runs_python(patch, *(("1, Unicode 15", repr) if upgraded else (form, ascii)))
            own = one_by_one(tmp_path, operation)
            keys = [NEW, f"other {txid}", *(f"k{n}" for n in range(40) if not txid)]
            (made,), before = own.run(
                txid, 0, before, [(table([(k, 1, txid, f"{n}") for n, k in enumerate(keys)]), txid)]
            )
            found += [row["sum"] for row in made.to_pylist() if row["k"] == NEW]
            assert own.rows(before) == 41 + txid + 1
    assert found == [1, 2, 3, 4, 5, 6]


def test_a_window_that_has_ended_stays_so_for_another_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = (agg.Sum("v"), agg.DistinctCount("v", "distinct"))
    operation = AggregateWindow(chain, Policy.time(1), Policy.time(3), False, 2000)
    before: StateRef | None = None
    for txid, (form, escape, rows) in enumerate(
        [
            (None, ascii, [(NEW, 1, 0, "0"), *((f"k{n}", 1, 9000, f"{n + 1}") for n in range(40))]),
            (None, ascii, [("k0", 1, 10_500, "0")]),
            ("1, Unicode 15", repr, []),
        ]
    ):
        with monkeypatch.context() as patch:
            runs_python(patch, form, escape)
            own = one_by_one(tmp_path, operation)
            clock = (1000, 10_500, 10_600)[txid]
            (made,), before = own.run(txid, 0, before, [(table(rows), clock)])
            assert all(row["k"] != NEW or row[ev.CLOCK] <= 2000 for row in made.to_pylist())


def test_windows_that_an_earlier_release_has_split_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = (agg.Sum("v"), agg.DistinctCount("v", "distinct"))
    operation = AggregateWindow(chain, Policy.time(5), Policy.count(9), False, 60_000)
    with monkeypatch.context() as patch:
        runs_python(patch, None, ascii)
        _, before = one_by_one(tmp_path, operation).run(0, 0, None, [(table([(NEW, 1, 1000, "0")]), 1000)])
        # To a release that does not look, that of another Python looks like its own.
        runs_python(patch, None, repr)
        _, before = one_by_one(tmp_path, operation).run(1, 0, before, [(table([(NEW, 2, 2000, "0")]), 2000)])
    runs_python(monkeypatch, "1, Unicode 15", repr)
    found = []
    for txid, (rows, clock) in enumerate([([(NEW, 4, 3000, "0")], 9000), ([], 12_500)], 2):
        (made,), before = one_by_one(tmp_path, operation).run(txid, 0, before, [(table(rows), clock)])
        found += [(row["sum"], row[ev.CLOCK], row[ev.ID].split("-")[-3]) for row in made.to_pylist()]
    first, second = (identity_of(context("k"), escape(NEW)).split("-")[-1] for escape in (ascii, repr))
    assert found == [(1, 6000, first), (6, 7000, second), (1, 11_000, first), (6, 12_000, second)]


def test_windows_by_far_times_go_on_that_were_kept_by_floats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two such keys shared a window where no float tells them apart: it is that of the key that began it."""
    keys = [datetime(2300, 1, 1, 0, 0, 0, micros, UTC) for micros in (1, 2)]
    kind = pa.timestamp("us", "UTC")
    operation = AggregateWindow((agg.Sum("v"),), Policy.count(1), Policy.count(0), False, 60_000)

    def run(txid: int, before: StateRef | None, each: list[datetime]) -> tuple[list[int], StateRef]:
        made = pa.schema([("k", kind), ("sum", pa.int64()), *OWN])
        windows = [windows_of(operation, context("k"), TAKEN.set(0, pa.field("k", kind)), made)]
        own = WindowFiles(StateFolder(tmp_path), windows, Definition(SIGNATURE, (SIGNATURE,), None, ()))
        rows = table([("", 1, txid, f"{n}") for n, _ in enumerate(each)])
        (results,), ref = own.run(txid, 0, before, [(rows.set_column(0, "k", pa.array(each, kind)), txid)])
        return results["sum"].to_pylist(), ref

    with monkeypatch.context() as patch:
        runs_python(patch, None, lambda value: f"datetime with zone:{value.timestamp()!r}")
        found, before = run(0, None, keys)
        assert found == [1, 2]
    found, before = run(1, before, keys[::-1])
    assert found == [1, 3]
    assert run(2, before, keys)[0] == [4, 2]


HALF = 2**62
CHAINS: list[tuple[Any, ...]] = [(agg.Sum("v"),), (agg.Sum("v"), agg.DistinctCount("v", "distinct"))]


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_a_batch_is_refused_for_what_its_windows_hold_behind_it_in_however_many_pieces_it_comes(
    chain: tuple[Any, ...], cut: int, tmp_path: Path
) -> None:
    operation = AggregateWindow(chain, Policy.count(9), Policy.count(0), True)
    made = pa.schema([("k", pa.string()), ("sum", pa.int64()), ("distinct", pa.int64()), *OWN])
    made = pa.schema([field for field in made if field.name in {"k", *operation.outputs, *ev.COLUMNS}])

    def run(folder: str, values: list[int]) -> None:
        rows: list[Row] = [("a", value, n, f"{n}") for n, value in enumerate(values)]
        rows.append(("b", 1, len(values), "9"))
        windows = [windows_of(operation, context("k"), TAKEN, made)]
        own = WindowFiles(StateFolder(tmp_path / folder), windows, Definition(SIGNATURE, (SIGNATURE,), None, ()))
        pieces = [(table(rows[:cut]), cut - 1), (table(rows[cut:]), 9)] if cut else [(table(rows), 9)]
        own.run(0, 0, None, pieces)

    run("fits", [HALF, HALF, -HALF])
    # Its last event may be in another piece than the last.
    with pytest.raises(WindowFailure, match=r'the sum of "v" does not fit bigint in the window of k \'a\''):
        run("does not", [HALF, HALF, HALF])
