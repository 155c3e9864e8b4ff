"""The check whether a state counts a quarantined row already, by the logs of the tables. No Spark here.

| rejected by | it is in the state if | it cannot be said if |
|---|---|---|
| a batch | never: what backfills judge again leaves quarantine | the state was emptied since, or a backfill cut off there |
| a backfill | never | the state's slice was not replaced by the same one (of earlier releases: with it, or later) |
| as a poison batch | the state has the batch; or a backfill read the row's file, before or since | the log does not say it |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from pipelines.execution.protocol.coordinator import BatchState
from pipelines.sources.base import file_key
from pipelines.state.record import BATCH, POISON, RESET, SLICE, CommitRecord
from pipelines.state.schema import NO_SLICE

if TYPE_CHECKING:
    from pipelines.execution.checkpoint.engine_files import Checkpoint
    from pipelines.state.table import StateTable


HALF_MADE = "a backfill that was cut off may count it: backfill its slice"


@dataclass(frozen=True)
class Row:
    """A quarantined row, as far as it matters here.

    Attributes:
        number: in its replay.
        txid: the batch that rejected it, -1: a backfill.
        stored: the slice under which quarantine holds it.
        slice: the slice that it will be counted in.
        poison: whether it was rejected as part of a poison batch.
    """

    number: int
    txid: int
    stored: str
    slice: str
    file: str | None
    poison: bool


@dataclass(frozen=True)
class Verdict:
    """The rows of a lot that each state counts already, and those that have to be left, with the reason."""

    counted: Mapping[str, frozenset[int]]
    left: Mapping[int, str]


class Ledger:
    """A table's log, as far as it reaches back.

    Args:
        group: of quarantine the batch group that is meant.
    """

    def __init__(self, table: StateTable, group: str | None = None) -> None:
        kept = table.history()
        commits = [commit for commit in table.commits.counting() if group is None or commit.group in (None, group)]
        self.claims = table.commits.claims(group)
        # By what each slice was last replaced.
        self.replaced = {commit.slice: commit for commit in commits if commit.kind == SLICE}
        self.reset = max((commit.time for commit in commits if commit.kind == RESET), default=None)
        self.reset_by = max((commit.version for commit in commits if commit.kind == RESET), default=None)
        self.first = kept[0].version if kept else 0
        self.batches: dict[tuple[int | None, int | None], datetime] = {}
        self.poison: dict[tuple[int | None, int | None], Mapping[str, int] | None] = {}
        for commit in commits:
            if commit.kind == BATCH:
                self.batches[commit.epoch, commit.txid] = commit.time
            elif commit.kind == POISON and commit.record is not None:
                self.poison[commit.epoch, commit.txid] = commit.record.states

    def rejected_at(self, txid: int) -> datetime | None:
        """Return when a batch rejected rows, the first time that is known to a quarantine."""
        return min((at for (_, by), at in self.batches.items() if by == txid), default=None)

    def may_hold(self, slice_: str, txid: int) -> bool:
        """Return whether a backfill has replaced a slice behind a batch, with what the batch had rejected of it."""
        by = self.replaced.get(slice_)
        if by is None:
            return False
        # A state that has never got the batch was added since.
        is_added = self.first == 0 and all(own != txid for _, own in self.batches)
        return is_added or (by.txid is not None and by.txid >= txid)

    def replaced_behind(self, slice_: str, version: int | None) -> bool | None:
        """Return whether a slice was replaced behind a version; None: that is not known, or the log does not reach back."""
        by = self.replaced.get(slice_)
        if version is None:
            # Where it never was, there is nothing to compare.
            return False if by is None and self.first == 0 else None
        if by is not None and by.version > version:
            return True
        emptied = self.reset_by is not None and self.reset_by > version
        return None if emptied or self.first > version + 1 else False


class Counted:
    """Judges the rows of one lot.

    Args:
        states: the tables behind the rows' place, by name.
        drops: whether a gate may refuse what the rows become.
    """

    def __init__(
        self, quarantine: StateTable, states: Mapping[str, StateTable], checkpoint: Checkpoint, *, drops: bool
    ) -> None:
        self._quarantine = Ledger(quarantine, checkpoint.folder.name)
        self._states = {name: Ledger(table) for name, table in states.items()}
        self._checkpoint, self._drops = checkpoint, drops

    def judged_since(self, stored: str, time: datetime) -> bool:
        """Return whether a backfill has judged the rows again that quarantine holds under a slice, since a time."""
        by = self._quarantine.replaced.get(stored)
        return by is not None and by.time > time

    def judge(self, rows: Iterable[Row]) -> Verdict:
        """Return the rows that states count already, and those of which nothing can be said."""
        counted: dict[str, set[int]] = {name: set() for name in self._states}
        left: dict[int, str] = {}
        for row in rows:
            waits = self._waits(row)
            # What is rejected at the source again is in no slice, and goes nowhere.
            if row.slice == NO_SLICE and waits is None:
                continue
            why, inside = (waits, set()) if waits else self._of(row)
            if why is None and inside and len(inside) < len(self._states) and self._drops:
                why = "some states count it already and others do not, and a gate could refuse it in between"
            if why is not None:
                left[row.number] = why
                continue
            for name in inside:
                counted[name].add(row.number)
        return Verdict({name: frozenset(numbers) for name, numbers in counted.items()}, left)

    def _of(self, row: Row) -> tuple[str | None, set[str]]:
        """Return why it is to be left, and the states that count it."""
        if row.poison:
            return self._poison(row)
        if row.txid < 0:
            return self._of_backfill(row), set()
        at = self._quarantine.rejected_at(row.txid)
        for name, ledger in self._states.items():
            if ledger.reset is not None and (at is None or at <= ledger.reset):
                return f'state "{name}" was emptied since, and its source read again', set()
            # Waves commit one by one, and quarantine with the last: a whole backfill had taken the row out.
            if ledger.may_hold(row.slice, row.txid):
                return HALF_MADE, set()
        return None, set()

    def _of_backfill(self, row: Row) -> str | None:
        judged = self._quarantine.replaced.get(row.stored)
        if judged is None:
            return "the log no longer says which backfill rejected it"
        for name, ledger in self._states.items():
            replaced = ledger.replaced.get(row.slice)
            if replaced is None or not _replaced_with(judged, replaced):
                return f'the backfill that rejected it did not replace slice "{row.slice}" of state "{name}"'
            # With a name the state was replaced behind its reset, which the slice's commit would else have met.
            if _name(judged) is None and ledger.reset is not None and ledger.reset >= judged.time:
                return f'state "{name}" was emptied since'
        return None

    def _poison(self, row: Row) -> tuple[str | None, set[str]]:
        epoch = self._checkpoint.epoch
        if epoch is None or (epoch.number, row.txid) not in self._quarantine.poison:
            return "it is of another life of the checkpoint, or the log no longer says", set()
        states = self._quarantine.poison[epoch.number, row.txid]
        inside = set()
        for name, ledger in self._states.items():
            claimed = {file_key(file) for file in ledger.claims.get(row.slice, ())}
            # A state that was added since has all its versions behind it.
            since = ledger.replaced_behind(row.slice, None if states is None else states.get(name, -1))
            if (
                (epoch.number, row.txid) in ledger.batches
                or (row.file is not None and file_key(row.file) in claimed)
                or since
            ):
                inside.add(name)
            elif since is None:
                return f'the log of state "{name}" does not say whether a backfill counts it', set()
        return None, inside

    def _waits(self, row: Row) -> str | None:
        """Return why the batch of a poison row is not done with; None: it is, or it is of another life of the checkpoint."""
        epoch = self._checkpoint.epoch
        if not row.poison or epoch is None or (epoch.number, row.txid) not in self._quarantine.poison:
            return None
        waits = f"its batch {row.txid} waits to be tried again, or to be left out (tridelta skip)"
        return None if self._passed(row.txid) else waits

    def comes_again(self, txids: Iterable[int]) -> bool:
        """Return whether the stream tries one of the poison batches again, or a state has got it from there."""
        epoch = self._checkpoint.epoch
        if epoch is None:
            return False
        got = {batch for ledger in self._states.values() for batch in ledger.batches}
        return any((epoch.number, txid) in got or not self._passed(txid) for txid in txids)

    def _passed(self, txid: int) -> bool:
        """Return whether the stream has left a poison batch behind, or will: nobody tries it again."""
        epoch = self._checkpoint.epoch
        if epoch is None or txid < epoch.first_txid:
            return False
        if self._checkpoint.finished_batches() > txid - epoch.first_txid:
            return True
        known = self._checkpoint.unmarked().get(txid)
        # One whose plan is gone comes again.
        return (
            known is not None
            and known.state is BatchState.SKIPPED
            and self._checkpoint.has_plan_of(txid - epoch.first_txid, known)
        )


def _replaced_with(judged: CommitRecord, replaced: CommitRecord) -> bool:
    """Return whether the pass that put rejected rows into quarantine has replaced a state's slice, too.

    Earlier releases do not name it: then by the times of the two commits, which a clock that was set tells wrong.
    """
    return replaced.time >= judged.time if _name(judged) is None else _name(replaced) == _name(judged)


def _name(commit: CommitRecord) -> str | None:
    return commit.record.backfill if commit.record else None


@dataclass(frozen=True)
class Replaced:
    """The parts of a table that were replaced since a version.

    Attributes:
        slices: those that backfills have replaced.
        whole: all of it, for it was emptied.
    """

    slices: frozenset[str] = frozenset()
    whole: bool = False

    def __contains__(self, slice_: object) -> bool:
        return self.whole or slice_ in self.slices


def replaced_since(table: StateTable, version: int, group: str | None = None) -> Replaced | None:
    """Return what a table has got again since a version; None: its log does not reach back, or a RESTORE has undone some.

    Args:
        group: of quarantine the batch group that is meant.
    """
    later = [commit for commit in table.history() if commit.version > version]
    if any(commit.restored is not None for commit in later):
        return None
    own = [commit for commit in later if group is None or commit.group in (None, group)]
    if any(commit.kind == RESET for commit in own):
        return Replaced(whole=True)
    if later and later[0].version > version + 1:
        return None
    return Replaced(frozenset(str(commit.slice) for commit in own if commit.kind == SLICE))
