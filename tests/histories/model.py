"""What the tables of a lake must hold, in plain Python: which rows arrived in which file, and what became of each.

Nothing of the engine is used here. A run of a group is a generator: it yields what a run tells its listeners (`committing`,
`committed`, ...) in order, and what happens between two of these happens between two `yield`s. A run that was killed at a moment
is the same generator, left at that moment.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

TRANSACTIONAL, OPAQUE, NON_TRANSACTIONAL = "transactional", "opaque", "non_transactional"
LOG, MAP, REDUCED, ROWS = "log", "map", "reduced", "rows"
CHANNEL, SUMS = "channel", "sums"
"""What leads into the windows of a flow, and the rows of their sums."""
BEFORE, BEHIND = "before", "behind"
NO_SLICE, POISONED, UNSLICED = "?", "!", "all"
BACKFILLED, REPLAYED = -1, -2
FILE_GONE = "file_gone"
"""The rule of rows that no batch brings again, and no replay takes."""
BAD = 99
"""The value that a gate which fails refuses the whole batch for."""

Event = tuple[str, str, int]
"""Moment, state, txid: what a listener is told."""
Idle = Callable[[str, int, bool], bool]
"""Of a batch group and the number of a batch in its epoch whether the batch brings no file."""


class Refusal(Exception):  # noqa: N818 - what the model says of an operation, no fault
    """The operation must be refused (or, if not `must`, may be), with one of these error classes."""

    def __init__(self, *errors: str, must: bool = True) -> None:
        super().__init__(", ".join(errors))
        self.errors, self.must = errors, must


@dataclass(frozen=True)
class Row:
    """One line of a file. `text` is the line itself where the source refuses it, by a rule."""

    number: int
    day: str | None
    key: Any
    v: int | None
    text: str | None = None
    rule: str = "malformed"


@dataclass(frozen=True)
class File:
    """A file of a source, as it lies there now.

    Attributes:
        fields: `turned`: in another order than declared; `others`: under names that no field has.
        cut: whether its second half is missing, so that nobody can read it.
    """

    name: str
    time: float
    rows: tuple[Row, ...]
    fields: str = ""
    cut: bool = False


@dataclass(frozen=True)
class Rules:
    """The flow's definition, as far as it changes in a life.

    Attributes:
        most: the gate drops rows with a greater `v`.
        fails: whether the gate refuses batches with a BAD row.
        wide: whether the states have the further column.
        further: whether the flow has the state that is added later.
        per_batch: files per batch.
    """

    most: int = 50
    fails: bool = True
    wide: bool = False
    further: bool = False
    per_batch: int = 1


@dataclass(frozen=True)
class Entry:
    """A row that a state counts. `wide`: it was written when the state had the further column."""

    row: Row
    txid: int
    wide: bool


@dataclass(frozen=True)
class Refused:
    """A row in quarantine."""

    group: str
    stage: str
    rule: str
    row: Row
    slice: str
    txid: int
    file: str = ""
    """Of a poison batch: where its source has the row."""


@dataclass
class Sink:
    """One state: its form and kind, where it stands, and what it counts."""

    name: str
    form: str
    kind: str = TRANSACTIONAL
    at: str = BEHIND
    by: str = "key"
    entries: list[Entry] = field(default_factory=list)
    txids: list[tuple[int, int]] = field(default_factory=list)
    slices: list[str] = field(default_factory=list)
    claims: dict[str, frozenset[str]] = field(default_factory=dict)
    as_of: dict[int, list[Entry]] = field(default_factory=dict)
    epochs: int = 0
    replays: int = 0
    """How many replays have put rows in."""
    landed: bool = False
    """Whether a replay has put rows in since it was emptied."""
    replayed: set[tuple[int, int]] = field(default_factory=set)
    """Batches (epoch and txid) behind which a replay has committed, be it without a row."""
    gone: set[int] = field(default_factory=set)
    """Txids whose past may not be readable any more: the files of that time were vacuumed."""

    @property
    def is_map(self) -> bool:
        return self.form in (MAP, REDUCED)

    @property
    def last(self) -> int:
        return self.txids[-1][1] if self.txids else -1

    def holds(self, epoch: int, txid: int) -> bool:
        return any(at == epoch and one >= txid for at, one in self.txids)

    def batch(self, epoch: int, txid: int, rows: list[Row], wide: bool) -> None:
        """Count the rows of a batch as the state's kind says."""
        if self.kind == OPAQUE:
            self.entries = [one for one in self.entries if one.txid != txid]
        self.entries = [*self.entries, *(Entry(row, txid, wide) for row in rows)]
        self.txids.append((epoch, txid))
        self.replayed.discard((epoch, txid))
        self.epochs = max(self.epochs, epoch)
        self.as_of[txid] = list(self.entries)

    def replace(self, slice_: str, rows: list[Row], claims: frozenset[str], wide: bool) -> None:
        """Put rows in the place of a slice; a map state takes them in beside what it holds."""
        kept = self.entries if self.is_map else [one for one in self.entries if one.row.day != slice_]
        self.entries = [*kept, *(Entry(row, BACKFILLED, wide) for row in rows)]
        self.claims[slice_] = claims
        self.slices.append(slice_)

    def life(self, txid: int) -> int | None:
        """The epoch of a batch that it holds; None: of a backfill, a replay, or a batch that it does not hold."""
        return next((epoch for epoch, held in self.txids if held == txid), None)

    def reset(self, epoch: int) -> None:
        """Empty it; what it held before is not readable by txid any more."""
        self.entries, self.txids, self.slices, self.claims, self.as_of, self.replayed = [], [], [], {}, {}, set()
        self.epochs, self.landed = max(self.epochs, epoch), False


@dataclass
class Group:
    """One batch group: its source, its states, and how far its stream has come."""

    name: str
    sinks: list[Sink]
    sliced: bool = True
    files: dict[str, File] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    """The files that retention has taken: whoever reads a batch again passes over them."""
    epoch: int = 0
    life: int = 0
    """Of the checkpoint: another one each time it begins afresh, also where no table knows the epoch before."""
    lives: int = 0
    first: int = 0
    planned: list[tuple[str, ...]] = field(default_factory=list)
    plans: list[int] = field(default_factory=list)
    """A number of each plan: a batch that is planned once more has another plan, be it of the same files."""
    all_plans: int = 0
    finished: int = 0
    poison: set[int] = field(default_factory=set)
    skipped: set[int] = field(default_factory=set)
    replayed: set[int] = field(default_factory=set)
    """Poison batches of which a replay has put rows into a state, or behind a gate that refused them for themselves."""
    lost: set[int] = field(default_factory=set)
    """Poison or skipped batches whose plans are lost: quarantine has their rows until one of them comes, or one before."""
    known: set[str] = field(default_factory=set)
    """The states with which the stream has begun: who said `continue` once is not asked again."""
    window: int = 0
    """Of the group of the windows: how many tuples one holds."""
    table: bool = False
    """Whether its source is a table, each file of which is a commit: a batch takes all that there are."""
    rewritten: bool = False
    """Whether the files of the table were rewritten: from then on runs may be refused, but not count amiss."""

    @property
    def fresh(self) -> bool:
        return self.epoch == 0

    @property
    def begun(self) -> bool:
        return len(self.planned) > self.finished

    @property
    def half(self) -> bool:
        """Whether some state has committed the batch that is begun, or it is poison."""
        txid = self.first + self.finished
        return self.begun and (txid in self.poison or any(sink.holds(self.epoch, txid) for sink in self.sinks))

    @property
    def cut(self) -> bool:
        """Whether some states hold the batch that is begun and others do not; the one that comes later may not be there yet."""
        txid = self.first + self.finished
        held = {sink.holds(self.epoch, txid) for sink in self.sinks if sink.name != "further"}
        return txid not in self.skipped and len(held) > 1

    def waiting(self) -> list[str]:
        """The files that no batch has taken, in the order of their times."""
        taken = {name for names in self.planned for name in names}
        return sorted((name for name in self.files if name not in taken), key=lambda name: self.files[name].time)

    def streamed(self, sink: Sink) -> frozenset[str]:
        """The files whose batches of this epoch a state has."""
        last = max((txid for epoch, txid in sink.txids if epoch == self.epoch), default=self.first - 1)
        if sink.kind == OPAQUE:
            last = min(last, self.first + self.finished - 1)
        return frozenset(name for names in self.planned[: last - self.first + 1] for name in names)

    def at_once(self, waiting: int, per_batch: int) -> int:
        """How many files a batch takes: of a table all, of a channel those of one commit."""
        return 1 if self.window else waiting if self.table else per_batch

    def rows(self, names: tuple[str, ...]) -> list[tuple[str, Row]]:
        return [(name, row) for name in names if name not in self.gone for row in self.files[name].rows]

    def reads_gone(self, said: Group) -> bool:
        """Whether what a copy of the checkpoint has yet to finish is of files that retention has taken since."""
        return any(name in self.gone for names in said.planned[said.finished :] for name in names)

    def batch(self, number: int) -> list[tuple[str, Row]]:
        """The rows of a batch; of the windows the sums that it completes, of all tuples in the order of their commits."""
        if not self.window:
            return self.rows(self.planned[number])
        before = sum(len(self.files[name].rows) for names in self.planned[:number] for name in names)
        tuples = [
            row.v or 0 for _, row in self.rows(tuple(one for names in self.planned[: number + 1] for one in names))
        ]
        ends = [end for end in range(before + 1, len(tuples) + 1) if end % self.window == 0]
        return [("", Row(-end, None, None, sum(tuples[end - self.window : end]))) for end in ends]

    def plan(self, files: tuple[str, ...]) -> None:
        """Plan one more batch."""
        self.planned.append(files)
        self.all_plans += 1
        self.plans.append(self.all_plans)

    def snapshot(self) -> Group:
        """A copy of all but the states and files: what a copy of the checkpoint keeps."""
        twin = copy.copy(self)
        twin.planned, twin.poison, twin.skipped = list(self.planned), set(self.poison), set(self.skipped)
        twin.plans = list(self.plans)
        twin.known, twin.lost = set(self.known), set(self.lost)
        return twin


@dataclass
class Model:
    """All that a flow's tables must hold."""

    groups: list[Group]
    rules: Rules = field(default_factory=Rules)
    refused: list[Refused] = field(default_factory=list)
    refused_claims: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    quarantined: dict[tuple[str, int], int] = field(default_factory=dict)
    """By group and epoch the last txid whose batch has put rows into quarantine."""
    cleaned: bool = False
    """Whether a compaction that keeps no past has cleaned the logs of the tables."""

    # --- judging ----------------------------------------------------------------------------------------------------

    def at_source(self, group: Group, row: Row) -> str | None:
        """The rule by which the source refuses a row."""
        if row.text is not None:
            return row.rule
        return "no_slice" if group.sliced and not row.day else None

    def passes(self, row: Row) -> bool:
        return row.v is None or row.v <= self.rules.most

    def fails(self, rows: list[Row], group: Group) -> bool:
        """Whether a gate refuses a batch with these rows. Of a flow with windows it is the one behind them."""
        watches = bool(group.window) or not any(one.window for one in self.groups)
        return self.rules.fails and watches and any(row.v == BAD for row in rows)

    def judged(self, sink: Sink, rows: list[Row]) -> list[Row]:
        """The good rows that a state counts."""
        return [row for row in rows if sink.at == BEFORE or self.passes(row)]

    def refusals(self, group: Group, rows: list[tuple[str, Row]], txid: int) -> list[tuple[str, Refused]]:
        """What goes to quarantine of a batch or a slice, with its file."""
        found = []
        for name, row in rows:
            rule = self.at_source(group, row)
            if rule is not None:
                found.append((name, Refused(group.name, "source", rule, row, NO_SLICE, txid)))
            elif not self.passes(row):
                slice_ = str(row.day) if group.sliced else UNSLICED
                found.append((name, Refused(group.name, f"sane_{group.name}", "high", row, slice_, txid)))
        return found

    # --- a stream ---------------------------------------------------------------------------------------------------

    def sinks(self, group: Group) -> list[Sink]:
        """The states of a group that the flow has as it is now."""
        return [sink for sink in group.sinks if sink.name != "further" or self.rules.further]

    def start(self, group: Group, on_fresh: str) -> None:
        """What a start of the stream decides.

        Raises:
            Refusal
        """
        sinks = self.sinks(group)
        if not group.fresh:
            others = any(sink.txids for sink in sinks)
            new = [sink for sink in sinks if not sink.txids and sink.name not in group.known]
            if on_fresh != "continue" and group.finished and others and new:
                raise Refusal("StateBehindError")
            group.known = {sink.name for sink in sinks}
            return
        refused = {epoch: txid for (name, epoch), txid in self.quarantined.items() if name == group.name}
        number = max((*(sink.epochs for sink in sinks), *refused), default=0) + 1
        held = max((*(sink.last for sink in sinks), *refused.values()), default=-1)
        mine = (one for one in self.refused if one.group == group.name)
        put_back = {one.txid for one in mine if one.stage != "batch" and one.txid != BACKFILLED}
        begun = held >= 0 or bool(put_back) or any(sink.landed for sink in sinks)
        if begun and on_fresh == "refuse":
            raise Refusal("FreshCheckpointError")
        if begun and on_fresh == "reset":
            self._reset(group, number)
            held = -1
        elif not begun:
            # The source is read again, and so is all that was poison, but for what it no longer has.
            for txid in self._kept(group):
                self._forget(group, txid, also_gone=on_fresh == "reset")
        else:
            held = max(held, *self._kept(group), *put_back, -1)
        group.epoch, group.first, group.planned, group.finished = number, held + 1, [], 0
        group.plans = []
        group.poison, group.skipped, group.known = set(), set(), {sink.name for sink in sinks}
        group.replayed = set()
        group.lives += 1
        group.life = group.lives

    def refuses(self, group: Group) -> bool:
        """Whether a start of the stream, as it is now, is refused."""
        twin = copy.deepcopy(self)
        try:
            twin.start(next(one for one in twin.groups if one.name == group.name), "refuse")
        except Refusal:
            return True
        return False

    def _kept(self, group: Group) -> set[int]:
        """The poison batches of which quarantine has rows that some batch may bring again."""
        mine = (one for one in self.refused if (one.group, one.stage) == (group.name, "batch"))
        return {one.txid for one in mine if one.rule != FILE_GONE}

    def _reset(self, group: Group, number: int) -> None:
        for sink in self.sinks(group):
            sink.reset(number)
        self.refused = [one for one in self.refused if one.group != group.name]
        self.refused_claims = {of: files for of, files in self.refused_claims.items() if of[0] != group.name}
        self.quarantined = {of: txid for of, txid in self.quarantined.items() if of[0] != group.name}

    def stream(
        self,
        group: Group,
        *,
        max_batches: int | None = None,
        on_fresh: str = "refuse",
        idle: Idle = lambda group, number, waiting: False,
        whole: Callable[[str], int | None] = lambda group: None,
    ) -> Iterator[Event]:
        """A run of the group's stream until its source is read.

        Args:
            whole: the last txid that the first batch of windows took, if that was all there was: one file, as after a
                compaction. A stream may have planned it before the batch that the model has just taken in.
            idle: whether the batch of a number brings no file, which Spark plans for commits without rows. Asked with whether
                files are waiting.

        Raises:
            Refusal
        """
        self.start(group, on_fresh)
        waiting, done = group.waiting(), 0
        while True:
            if not group.begun:
                if idle(group.name, len(group.planned), bool(waiting)):
                    size = 0
                elif not waiting:
                    return
                else:
                    size = group.at_once(len(waiting), self.rules.per_batch)
                    last = whole(group.name) if group.window and not group.planned else None
                    if last is not None:
                        size = sum(int(name) <= last for name in waiting)
                group.plan(tuple(waiting[:size]))
                waiting = waiting[size:]
            if done == max_batches:
                return
            txid = group.first + group.finished
            self._forget_lost(group, txid)
            if txid not in group.skipped:
                yield from self._batch(group, txid)
            group.finished += 1
            done += 1

    def _batch(self, group: Group, txid: int) -> Iterator[Event]:
        group.poison.discard(txid)
        yield ("opened", "", txid)
        files = group.planned[group.finished]
        if not group.window and any(group.files[name].cut for name in files if name not in group.gone):
            group.poison.add(txid)
            raise Refusal("PoisonBatchError")
        rows = group.batch(group.finished)
        good = [(name, row) for name, row in rows if self.at_source(group, row) is None]
        held = [sink for sink in self.sinks(group) if sink.holds(group.epoch, txid)]
        # An opaque state would take back what a replay has put in: behind one the batch was whole, and it is left alone.
        whole = any((group.epoch, txid) in sink.replayed for sink in held)
        # So it was where quarantine has it; then all stays as it is where a state does not take the batch once more.
        keeps = any(sink.kind == TRANSACTIONAL for sink in held)
        settled = whole or (keeps and self.quarantined.get((group.name, group.epoch), -1) >= txid)
        # What an opaque state would give up for a file that is gone nobody brings again.
        settled = settled or (any(sink.kind == OPAQUE for sink in held) and any(name in group.gone for name in files))
        kinds = (TRANSACTIONAL, OPAQUE) if settled else (TRANSACTIONAL,)
        todo = [sink for sink in self.sinks(group) if sink.kind not in kinds or sink not in held]
        for claims, sinks in _by_claims(todo, frozenset(files)):
            own = [row for name, row in good if name not in claims.get(str(row.day), ())]
            if self.fails(own, group) and any(sink.at == BEHIND for sink in sinks):
                self._poisoned(group, txid, rows)
                raise Refusal("PoisonBatchError")
            for sink in sinks:
                yield ("committing", sink.name, txid)
                sink.batch(group.epoch, txid, self.judged(sink, own), self.rules.wide)
                self._enter(sink, txid, own)
                yield ("committed", sink.name, txid)
        yield from self._quarantined(group, txid, rows, settled)
        self._forget(group, txid)
        yield ("closed", "", txid)

    def _enter(self, sink: Sink, txid: int, rows: list[Row]) -> None:
        """What is committed into a channel comes to the windows behind it, a commit per batch."""
        if sink.form == CHANNEL:
            behind = next(group for group in self.groups if group.window)
            behind.files[str(txid)] = File(str(txid), txid, tuple(rows))

    def _quarantined(self, group: Group, txid: int, rows: list[tuple[str, Row]], settled: bool) -> Iterator[Event]:
        again = self.quarantined.get((group.name, group.epoch), -1) >= txid
        if again and settled:
            return
        claims = {slice_: files for (name, slice_), files in self.refused_claims.items() if name == group.name}
        new = [one for name, one in self.refusals(group, rows, txid) if name not in claims.get(one.slice, ())]
        if new or again:
            yield ("committing", "quarantine", txid)
            former = [
                one for one in self.refused if (one.group, one.txid) == (group.name, txid) and one.stage != "batch"
            ]
            self.refused = [one for one in self.refused if one not in former] + new
            last = self.quarantined.get((group.name, group.epoch), txid)
            self.quarantined[group.name, group.epoch] = max(last, txid)
            yield ("committed", "quarantine", txid)

    def _poisoned(self, group: Group, txid: int, rows: list[tuple[str, Row]]) -> None:
        self._forget(group, txid)
        self.refused += [Refused(group.name, "batch", "poison", row, POISONED, txid, name) for name, row in rows]
        group.poison.add(txid)

    def waits(self, one: Refused) -> bool:
        """Whether a refused row is of a poison batch that is tried again, unless it is left out; or for its file."""
        group = next(group for group in self.groups if group.name == one.group)
        return one.stage == "batch" and (one.rule == FILE_GONE or one.txid in group.poison | group.lost)

    def _forget_lost(self, group: Group, txid: int) -> None:
        """Forget what came of a batch by a plan that is lost, and of those behind it: their rows come again, with any of them."""
        for one in [lost for lost in group.lost if lost >= txid]:
            self._forget(group, one)
            group.lost.discard(one)

    def _forget(self, group: Group, txid: int, *, also_gone: bool = False) -> None:
        """Release the rows of a poison batch; those whose file retention has taken stay, as they come with no batch."""
        kept: list[Refused] = []
        for one in self.refused:
            if (one.group, one.stage, one.txid) != (group.name, "batch", txid) or one.rule == FILE_GONE:
                kept.append(one)
            elif one.file in group.gone and not also_gone:
                kept.append(replace(one, rule=FILE_GONE))
        self.refused = kept

    # --- a backfill -------------------------------------------------------------------------------------------------

    def backfill(
        self, group: Group, slices: list[str], *, cancelled: Callable[[], bool] = lambda: False
    ) -> Iterator[Event]:
        """Replace slices of a group's states.

        Args:
            cancelled: whether it was asked to end: it does between two slices.

        Raises:
            Refusal
        """
        wanted = list(dict.fromkeys(slices))
        for sink in self.sinks(group):
            others = [other for other in self.sinks(group) if other is not sink]
            whole = [slice_ for slice_ in wanted if all(other.claims.get(slice_) for other in others)]
            if sink.is_map and (sink.txids or any(sink.claims.get(slice_) for slice_ in whole)):
                raise Refusal("SliceOfMapError")
        alone, before = (
            any(sink.is_map for sink in self.sinks(group)),
            {s.name: len(s.slices) for s in self.sinks(group)},
        )
        for part in [[one] for one in wanted] if alone else [wanted]:
            yield from self._slices(group, part, cancelled)
        # One that is cut off before has filled nothing to the end.
        group.known |= {sink.name for sink in self.sinks(group) if len(sink.slices) > before[sink.name]}

    def _slices(self, group: Group, slices: list[str], cancelled: Callable[[], bool]) -> Iterator[Event]:
        read = self._read(group, slices)
        for slice_ in slices:
            # What has no slice is judged by itself, with the first one of a pass.
            for part in (NO_SLICE, slice_) if slice_ == slices[0] else (slice_,):
                yield from self._slice(group, part, read)
            if cancelled():
                raise Refusal("Cancelled")

    def _read(self, group: Group, slices: list[str]) -> _Read:
        """What a pass of a backfill goes by.

        Raises:
            Refusal
        """
        streamed = {sink.name: group.streamed(sink) for sink in self.sinks(group)}
        if any(files & group.gone for files in streamed.values()):
            # What the stream has counted of them would leave the states with the slice.
            raise Refusal("SourceGoneError")
        last = self.quarantined.get((group.name, group.epoch), group.first - 1)
        if all(sink.kind != TRANSACTIONAL for sink in self.sinks(group)):
            last = min(last, group.first + group.finished - 1)
        judged = frozenset(name for names in group.planned[: last - group.first + 1] for name in names)
        read = _Read(group.rows(tuple(group.files)), streamed, judged)
        for sink in (sink for sink in self.sinks(group) if sink.is_map):
            for slice_ in (slice_ for slice_ in slices if sink.claims.get(slice_)):
                # What a map has got in a backfill that was cut off it does not get again.
                read.taken.add((sink.name, slice_))
                if sink.claims[slice_] != {name for name, _ in self._own(group, read, slice_)}:
                    raise Refusal("SliceOfMapError")
        return read

    def _own(self, group: Group, read: _Read, slice_: str) -> list[tuple[str, Row]]:
        return [(name, row) for name, row in read.rows if row.day == slice_ and self.at_source(group, row) is None]

    def _slice(self, group: Group, slice_: str, read: _Read) -> Iterator[Event]:
        """Replace a slice in quarantine and in the states that a gate does not keep it from."""
        own = self._own(group, read, slice_)
        fails = self.fails([row for _, row in own], group)
        if fails and all(sink.at == BEHIND for sink in self.sinks(group)):
            return
        yield from self._refused_again(group, slice_, read)
        for sink in self.sinks(group) if slice_ != NO_SLICE else ():
            if (sink.at == BEHIND and fails) or (sink.name, slice_) in read.taken:
                continue
            claims = frozenset(name for name, _ in own) - read.streamed[sink.name]
            yield ("committing", sink.name, BACKFILLED)
            sink.replace(slice_, self.judged(sink, [row for _, row in own]), claims, self.rules.wide)
            yield ("committed", sink.name, BACKFILLED)

    def _refused_again(self, group: Group, slice_: str, read: _Read) -> Iterator[Event]:
        """Put what a slice has refused in the place of what quarantine holds of it."""
        mine = [(name, one) for name, one in self.refusals(group, read.rows, BACKFILLED) if one.slice == slice_]
        held = [one for one in self.refused if (one.group, one.slice) == (group.name, slice_)]
        if mine or held:
            yield ("committing", "quarantine", BACKFILLED)
            self.refused = [one for one in self.refused if one not in held] + [one for _, one in mine]
            # All files of the slice, also of rows that the states have got: a later gate's word on them comes too late.
            files = {name for name, _ in self._own(group, read, slice_)} | {name for name, _ in mine}
            self.refused_claims[group.name, slice_] = frozenset(files) - read.judged
            yield ("committed", "quarantine", BACKFILLED)


@dataclass
class _Read:
    """What a pass of a backfill has read, and found in the tables, before it commits.

    Attributes:
        rows: all that the source has.
        streamed: by state the files that its stream has counted.
        judged: those whose batches are in quarantine.
        taken: maps, with slices that they have got before.
    """

    rows: list[tuple[str, Row]]
    streamed: dict[str, frozenset[str]]
    judged: frozenset[str]
    taken: set[tuple[str, str]] = field(default_factory=set)


def _by_claims(sinks: list[Sink], files: frozenset[str]) -> list[tuple[dict[str, frozenset[str]], list[Sink]]]:
    """The states, together where the same rows of a batch are left out."""
    parts: dict[frozenset[tuple[str, frozenset[str]]], list[Sink]] = {}
    for sink in sinks:
        claims = {slice_: names & files for slice_, names in sink.claims.items() if names & files}
        parts.setdefault(frozenset(claims.items()), []).append(sink)
    return [(dict(claims), members) for claims, members in parts.items()]


# --- what a reader must find ----------------------------------------------------------------------------------------


def contents(sink: Sink, entries: list[Entry]) -> Counter[tuple[Any, ...]]:
    """The rows that a state must show; of a keyed state the keys that it counts rows of."""
    if sink.form in (SUMS, CHANNEL):
        return Counter((one.row.v,) for one in entries)
    if sink.form == ROWS:
        return Counter(
            (
                one.row.number,
                one.row.day,
                shown(one.row.key),
                one.row.v,
                2 * one.row.v if one.wide and one.row.v is not None else None,
            )
            for one in entries
        )
    found: dict[Any, list[Entry]] = {}
    for one in entries:
        found.setdefault(shown(one.row.key if sink.by == "key" else one.row.day), []).append(one)
    return Counter((key, *_folded(sink, own)) for key, own in found.items())


def _folded(sink: Sink, own: list[Entry]) -> tuple[Any, ...]:
    values = [one.row.v for one in own if one.row.v is not None]
    most = max((one.row.v for one in own if one.wide and one.row.v is not None), default=None)
    if sink.is_map:
        return (sum(values), most) if sink.form == MAP else (sum(values),)
    return (len(own), sum(values), most)


def shown(key: Any) -> Any:
    """A key as something that equals itself."""
    return "NaN" if key != key else key


def twin(model: Model) -> Model:
    """A copy that shares nothing that changes."""
    return copy.deepcopy(model)


def changed(rules: Rules, **fields: Any) -> Rules:
    """The rules with some of them changed."""
    return replace(rules, **fields)
