"""The operations of a program: what each does to the lake, and what the model says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

from deltalake import DeltaTable

from pipelines.execution.checkpoint.copy import FINISHED, recover
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.maintenance.repartition import UnfinishedBatchError, repartition
from tests.histories.comparing import Difference, expected_refused, key_of, refused_rows
from tests.histories.model import (
    BACKFILLED,
    BAD,
    REPLAYED,
    Entry,
    Event,
    File,
    Group,
    Refusal,
    Refused,
    Row,
    changed,
    twin,
)
from tests.histories.play import Play
from tests.histories.world import FLOW, KEYS, STEPS, TABLE, WINDOWS, Killed, Outcome, Witness, running_batches

# --- files ----------------------------------------------------------------------------------------------------------


def _rows(play: Play, given: list[list[Any]], fields: str = "") -> tuple[Row, ...]:
    """Rows of a program (`[day, key's number, v]`, or a word for a line that is no good) with numbers of their own."""
    found = []
    for one in given:
        number = play.numbers = play.numbers + 1
        if fields == "others":
            found.append(play.world.refused(number, *(one[::2] if len(one) > 1 else ("d1", None))))
        elif one == ["torn"] and play.world.kind == "csv":
            # Of a file whose order is another one it says so.
            found.append(Row(number, None, None, None, f"{number},d1", "other_fields" if fields else "malformed"))
        elif one == ["torn"]:
            found.append(Row(number, None, None, None, f'{{"i": {number}, "day": "d1", "ke'))
        elif one == ["other"]:
            found.append(Row(number, None, None, None))
        else:
            day, key, v = one
            found.append(Row(number, day, KEYS[play.world.key][key % 3], v))
    return tuple(found)


def arrive(
    play: Play,
    group: int = 0,
    rows: list[list[Any]] = [],  # noqa: B006
    late: int = 0,
    fields: str = "",
    cut: bool = False,
) -> str:
    """A further file; a late one has a time before that of some that came before. Returns its name.

    Args:
        fields: another order of them, or other names; of the first file these would be refused.
    """
    found = play.source(group)
    fields = "" if found.table or (fields == "others" and not found.files) else fields
    if found.table or play.world.kind == "parquet":
        # A row of a table is never torn, and a commit without rows is none.
        rows = [one for one in rows if one != ["torn"]]
        if found.table and not rows:
            return ""
    play.files += 1
    # The middle of a millisecond of its own, as Spark takes files of one time in the order of the folder's listing: any.
    at = play.clock + 10 * play.files - (10 * late + 5 if late else 0) + (play.files + 0.5) / 1000
    file = File(f"{play.files:04d}.{play.world.kind}", at, _rows(play, rows, fields), fields, cut)
    found.files[file.name] = file
    play.world.put(found.name, file)
    return file.name


def cut_file(play: Play, group: int = 0, rows: list[list[Any]] = []) -> None:  # noqa: B006
    """A file of Parquet of which half has come: its batch fails, again and again, until the file is whole."""
    if play.world.kind != "parquet":
        arrive(play, group, rows)
        return
    found = play.source(group)
    if not found.files:
        # The first file of a source is refused, not its batch.
        arrive(play, group)
    name = arrive(play, group, rows, cut=True)
    outcome = play.world.run(play.catching_up())
    # As often as there are attempts left.
    outcome.events = [event for event, _ in groupby(outcome.events)]
    play.follow(play.streams(), outcome, "catch-up of a file that is cut")
    found.files[name] = replace(found.files[name], cut=False)
    play.world.put(found.name, found.files[name])
    catch_up(play)


def rewrite(play: Play, group: int = 0, file: int = 0, rows: list[list[Any]] = []) -> None:  # noqa: B006
    """Another content for a file that no batch has taken and no backfill has read."""
    found = play.source(group)
    read = {name for sink in found.sinks for names in sink.claims.values() for name in names}
    read |= {name for (of, _), names in play.model.refused_claims.items() if of == found.name for name in names}
    free = [name for name in found.waiting() if name not in read and not found.table]
    if free:
        old = found.files[free[file % len(free)]]
        rows = [one for one in rows if one != ["torn"] or play.world.kind != "parquet"]
        found.files[old.name] = File(old.name, old.time, _rows(play, rows, old.fields), old.fields)
        play.world.put(found.name, found.files[old.name])


def remove_file(play: Play, group: int = 0, file: int = 0, older: bool = False, poison: bool = False) -> None:
    """Retention takes a file that the stream has finished reading.

    Args:
        older: and those that it took before.
        poison: one of the poison batch that stops the stream, whose rows quarantine has.
    """
    found = play.source(group)
    if found.table:
        return
    txid = found.first + found.finished
    # A state that has the batch would take another one in its place, if it is opaque.
    stops = txid in found.poison and not any(sink.holds(found.epoch, txid) for sink in found.sinks)
    batches = found.planned[found.finished :] if poison and stops else [] if poison else found.planned[: found.finished]
    read = [name for names in batches for name in names if name in found.files and not found.files[name].cut]
    number = file % len(read) if read else 0
    for name in read[0 if older else number : number + 1]:
        if _stays_readable(found, name):
            del found.files[name]
            found.gone.add(name)
            play.world.remove(found.name, name)


def _stays_readable(group: Group, name: str) -> bool:
    """Whether the first file of a source still has the declared fields without one: else its stream is refused."""
    left = sorted(one for one in group.files if one != name)
    return not left or group.files[left[0]].fields != "others"


# --- streams --------------------------------------------------------------------------------------------------------


def catch_up(
    play: Play, kill: int | None = None, max_batches: int | None = None, partitions: int | None = None
) -> None:
    """All that is there, in batches; perhaps killed at the moment of a number."""
    given = {"max_batches": max_batches, "partitions": partitions}
    outcome = play.world.run(play.catching_up(**given), kill=kill)
    play.follow(play.streams(max_batches=max_batches), outcome, "catch-up")


def stream(
    play: Play,
    group: int = 0,
    arrivals: list[list[list[Any]]] = [],  # noqa: B006
    beside: str | None = None,
    kill: int | None = None,
) -> None:
    """A stream with a trigger, while files arrive one after the other, and a backfill or a compaction beside it.

    One that dies at the moment of a number has all files before it.
    """
    if kill is not None:
        for rows in arrivals:
            arrive(play, group, rows)
        _killed_stream(play, kill)
    else:
        _stream(play, group, arrivals, beside)


def _stream(play: Play, group: int, arrivals: list[list[list[Any]]], beside: str | None) -> None:
    if any(group.rewritten for group in play.model.groups):
        # What is lost by a VACUUM ends a stream at any moment: it reads what there is at once, and is refused or up to date.
        catch_up(play)
        if any(group.rewritten and (group.begun or group.waiting()) for group in play.model.groups):
            return
    if any(play.model.refuses(group) for group in play.model.groups):
        # The queries ahead of a refused one run by then, for as long as it takes to stop them.
        catch_up(play)
        return
    beginning = Witness()
    topology = play.world.topology(play.model.rules)
    reports: list[Any] = []
    try:
        flow = play.world.runtime(beginning).stream(topology, trigger_seconds=0.0, progress=reports.append)
    except Exception as error:
        play.follow(play.streams(), Outcome([], error), "stream")
        return
    watched = _Watched(play, flow, reports)
    try:
        watched.follow()
        for rows in arrivals:
            arrive(play, group, rows)
            watched.follow()
            if beside is not None:
                _beside(play, beside)
    finally:
        error = watched.stop()
    play.same_end("stream", Outcome([], error), watched.refusal)
    watched.settle()


def _killed_stream(play: Play, kill: int) -> None:
    """A stream that dies at the moment of a number, or is stopped once it has read all that there is."""
    queries = play.model.groups
    if len(queries) > 1 or queries[0].table:
        # Queries side by side tell of their moments in any order, and Spark may plan for a commit of a table without rows.
        catch_up(play, kill=kill)
        return
    alone, seen = twin(play.model), Witness(kill)
    said, refused = alone.groups[0], False
    try:
        for _ in alone.stream(said):
            pass
    except Refusal:
        refused = True
    # One that is refused ends by itself.
    wanted = refused + said.finished - (queries[0].finished if said.epoch == queries[0].epoch else 0)
    reports: list[Any] = []
    error: BaseException | None = None
    try:
        flow = play.world.runtime(seen).stream(
            play.world.topology(play.model.rules), trigger_seconds=0.0, progress=reports.append
        )
        try:
            running_batches(reports, wanted, lambda: flow.running)
        finally:
            flow.stop()
    except (Exception, Killed) as found:
        error = found
    play.world.lake = type(play.world.lake)(play.world.lake.root)
    play.follow(play.streams(), Outcome(seen.events, error), "stream")


class _Watched:
    """A running stream: each group is a query of its own, and one that is refused leaves the others running."""

    def __init__(self, play: Play, flow: Any, reports: list[Any]) -> None:
        self._play, self._flow, self._reports = play, flow, reports
        self._before = {group.name: (group.epoch, group.finished) for group in play.model.groups}
        self._ended: set[str] = set()
        self.refusal: Refusal | None = None

    def follow(self) -> None:
        """Let the model take in what has arrived, and wait until the stream has."""
        for group in self._play.model.groups:
            if group.name in self._ended:
                continue
            try:
                for _ in self._play.model.stream(group, idle=self._idle, whole=self._play.world.whole):
                    pass
            except Refusal as refusal:
                self.refusal = refusal
                self._ended.add(group.name)
        done = sum(self._finished(group) for group in self._play.model.groups)
        waits = self.refusal is not None
        running_batches(self._reports, done, lambda: waits or self._flow.running)
        if waits:
            # Each that is refused ends by itself: stopped before, its rows are in no quarantine yet.
            running_batches(
                (), 1, lambda: sum(not part.query.isActive for part in self._flow._parts) < len(self._ended)
            )

    def _idle(self, name: str, number: int, waiting: bool) -> bool:
        """Return whether a batch brings no file; where files are waiting, when Spark has planned it."""
        world = self._play.world
        if waiting and (world.source == TABLE or name == WINDOWS):
            # The queries start, and look for commits, side by side.
            running_batches((), 1, lambda: self._flow.running and world.planned(name, number) is None)
        return world.idle(name, number)

    def _finished(self, group: Group) -> int:
        epoch, finished = self._before[group.name]
        return group.finished - (finished if epoch == group.epoch else 0)

    def stop(self) -> Exception | None:
        """End it; the error that ended it before."""
        try:
            self._flow.stop()
        except Exception as error:
            return error
        finally:
            self._play.world.lake = type(self._play.world.lake)(self._play.world.lake.root)
        return None

    def settle(self) -> None:
        """Let the model take in what Spark has still planned, and perhaps run, for commits that bring no file."""
        world = self._play.world
        for group in self._play.model.groups:
            while group.name not in self._ended and world.idle(group.name, group.finished):
                done = (world.checkpoint(group.name) / "spark" / "commits" / str(group.finished)).exists()
                for _ in self._play.model.stream(group, max_batches=int(done), idle=self._idle):
                    pass
                if not done:
                    break


def _beside(play: Play, what: str) -> None:
    if what == "compact":
        compaction(play)
    else:
        backfill(play, [what])


def skip(play: Play) -> None:
    """Leave the poison batch of the first group that has one out."""
    poisoned = [
        (group, txid) for group in play.model.groups for txid in group.poison if txid == group.first + group.finished
    ]
    if not poisoned:
        return
    group, txid = poisoned[0]
    topology = play.world.topology(play.model.rules)
    outcome = play.world.run(lambda runtime: runtime.skip(topology, txid, stream=group.name))
    play.same_end("skip", outcome, None)
    group.poison.discard(txid)
    group.skipped.add(txid)


# --- slices, maintenance, quarantine --------------------------------------------------------------------------------


def backfill(play: Play, slices: list[str], kill: int | None = None) -> None:
    """Replace slices, perhaps killed at the moment of a number."""
    outcome = play.world.run(play.backfilling(slices), kill=kill)
    play.follow(play.backfills(slices), outcome, "backfill")


def cut_off(play: Play, slices: list[str], at: int = 0, by: str = "cancel", most: int | None = None) -> None:
    """A backfill that a signal asks to end, or that a full disk ends, at the moment of a number.

    Args:
        by: `cancel`: it ends between two slices. `failure`: at that moment.
        most: what the gate has come to let pass before it.
    """
    if most is not None:
        change(play, most=most)
    told: list[Event] = []

    def steps(cancelled: Callable[[], bool]) -> Iterator[Event]:
        for event in play.backfills(slices, cancelled):
            told.append(event)
            yield event
            if by == "failure" and len(told) > at:
                raise Refusal("DiskFullError")

    witness = Witness(cancel=at) if by == "cancel" else Witness(fail=at)
    outcome = play.world.witnessed(play.backfilling(slices), witness)
    play.follow(steps(lambda: by == "cancel" and len(told) > at), outcome, "backfill")


def compaction(play: Play, hours: float = 168.0, open_generations: int | None = None, kill: int | None = None) -> None:
    """Fold, merge and vacuum, perhaps killed around one of its steps; with 0 hours the past goes."""
    outcome = play.world.run(play.compacting(hours, open_generations), kill=kill, moments=tuple(STEPS))
    play.same_end("compaction", outcome, None)
    if hours == 0:
        play.model.cleaned = True
        for sink in (sink for found in play.model.groups for sink in found.sinks):
            sink.gone |= set(sink.as_of)


def optimize_source(play: Play, group: int = 0, vacuum: bool = False) -> None:
    """OPTIMIZE, and perhaps VACUUM, of the table that a stream reads."""
    found = play.source(group)
    if not found.table:
        return
    table = DeltaTable(str(play.world.home / found.name))
    if len(table.file_uris()) > 1:
        table.optimize.compact()
        found.rewritten = True
    if vacuum:
        table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


def optimize(play: Play, state: int = 0, vacuum: bool = False) -> None:
    """A stranger's OPTIMIZE, and perhaps VACUUM, of a state's table."""
    _, sink = play.sink(state)
    if sink.name in play.world.lake.states():
        table = DeltaTable(str(play.world.lake.state_path(sink.name)))
        table.optimize.compact()
        if vacuum:
            table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
            sink.gone |= set(sink.as_of)


def rescale(play: Play, partitions: int = 2, kill: int | None = None) -> None:
    """Another number of partitions for the state of the windows; not in the middle of a batch.

    Killed where a phase of a number begins, it is finished or undone by the next start, which comes at once.
    """
    for group in play.model.groups:
        if not group.window or group.fresh:
            continue
        try:
            done = _repartitioned(play, group, partitions, kill)
        except UnfinishedBatchError:
            if not group.begun:
                raise
            return
        if done:
            if group.begun:
                # Planned, and no attempt was made: it is left out, and its rows come with a later one.
                group.skipped.add(group.first + group.finished)
                group.planned[-1] = ()
                group.finished += 1
            # Spark has used a batch id for it.
            group.skipped.add(group.first + len(group.planned))
            group.plan(())
            group.finished += 1


def _repartitioned(play: Play, group: Group, partitions: int, kill: int | None) -> bool:
    """Whether Spark has used a batch id for another number of partitions."""
    checkpoint, copies = Checkpoint(FLOW, play.world.checkpoint(group.name)), play.world.lake.root / "copies"
    with checkpoint.running(20):
        try:
            report = repartition(play.world.spark, checkpoint, partitions, copies=copies, progress=_dying(kill))
        except Killed:
            found = recover(checkpoint)
            return found is not None and found.action == FINISHED
    if report.rolled_back:
        raise Difference("end of rescale", report.reason, "another number of partitions")
    return report.batch is not None


def _dying(kill: int | None) -> Callable[[str], None]:
    """Die when the phase of a number begins."""
    seen: list[str] = []

    def told(phase: str) -> None:
        seen.append(phase)
        if len(seen) - 1 == kill:
            raise Killed

    return told


def replay(play: Play, kill: int | None = None, beside: bool = False) -> None:
    """Replay all of quarantine: what goes lands in each state behind its place that does not count it, once.

    Args:
        kill: at the moment of this number it dies; another one follows.
        beside: whether a compaction comes between these two.
    """
    before = expected_refused(play.model.refused)
    if not before:
        return
    outcome = play.world.run(play.replaying(), kill=kill)
    committed(play, outcome.events)
    if outcome.killed:
        # The next one first finishes what this one has begun, also where a compaction came between.
        if beside:
            compaction(play)
        outcome = play.world.run(play.replaying())
        committed(play, outcome.events)
    end_of_replay(play, outcome.error)
    gone = before - refused_rows(play.world)
    waiting = expected_refused([one for one in play.model.refused if play.model.waits(one)])
    if early := gone & waiting:
        raise Difference("replay of a batch that waits", dict(early), "its rows stay")
    if left := expected_refused(_goes(play)) - gone:
        raise Difference("replay of rows that pass", f"left {dict(left)}", "they land, or leave with a batch")
    landed, kept = [], []
    for one in play.model.refused:
        (landed if gone[key_of(one)] > 0 else kept).append(one)
        gone[key_of(one)] -= 1
    entries = {id(sink): sink.entries for group in play.model.groups for sink in group.sinks}
    for one in landed:
        _land(play, one, entries)
    for sink in (sink for group in play.model.groups for sink in group.sinks):
        landed_there = len(sink.entries) > len(entries[id(sink)])
        sink.replays, sink.landed = sink.replays + landed_there, sink.landed or landed_there
    again = refused_rows(play.world) - expected_refused(kept)
    refused = [one for one in landed if _at_gate(play, one) and not _judged_by_backfill(play, one)]
    play.model.refused = kept + [_again(play, one, again) for one in refused]
    for one in refused:
        _taken(play, one)


def _goes(play: Play) -> list[Refused]:
    """What a replay must take, where that is plain: in the first life of all checkpoints, with no backfill before it."""
    model, groups = play.model, {group.name: group for group in play.model.groups}
    begun = any(group.begun and group.first + group.finished not in group.skipped for group in model.groups)
    if begun or not play.plain or any(group.window or group.fresh for group in model.groups):
        return []
    return [
        one
        for one in model.refused
        if not model.waits(one) and model.at_source(groups[one.group], one.row) is None and model.passes(one.row)
        if not (model.rules.fails and one.row.v == BAD)
    ]


def end_of_replay(play: Play, error: BaseException | str | None) -> None:
    """See that a replay went to its end, or left rows for a later one.

    Raises:
        Difference
    """
    name = error if isinstance(error, str) or error is None else type(error).__name__
    # Of a flow that has not run yet.
    if name == "UnknownStateError" and not play.model.refused and not play.world.lake.states():
        return
    if name not in (None, "ReplayError", "GateError"):
        cause = error if isinstance(error, BaseException) else None
        raise Difference("end of replay", f"{name}: {error}", "no error, or ReplayError") from cause


def committed(play: Play, events: list[Event]) -> None:
    """Take in what a replay has told of: behind the batches that a state holds it has committed."""
    told = {state for moment, state, _ in events if moment == "committed"}
    for sink in (sink for group in play.model.groups for sink in group.sinks if sink.name in told):
        sink.replayed |= set(sink.txids)


def _judged_by_backfill(play: Play, one: Refused) -> bool:
    """Whether a poison row leaves quarantine because a backfill has read it, and its gate put it there in its own name."""
    group = next(group for group in play.model.groups if group.name == one.group)
    if one.stage != "batch" or play.model.at_source(group, one.row) is not None:
        return False
    others = (other for other in play.model.refused if other.txid == BACKFILLED)
    return any((other.group, other.row) == (one.group, one.row) for other in others)


def _at_gate(play: Play, one: Refused) -> bool:
    group = next(group for group in play.model.groups if group.name == one.group)
    return play.model.at_source(group, one.row) is not None or not play.model.passes(one.row)


def _again(play: Play, one: Refused, seen: Any) -> Refused:
    """A row that went in and is refused again, now for itself: by the source or the gate."""
    group = next(group for group in play.model.groups if group.name == one.group)
    ((_, found),) = play.model.refusals(group, [("", one.row)], one.txid)
    return found


def _land(play: Play, one: Refused, entries: dict[int, list[Entry]]) -> None:
    """Put a row into the states that do not count it by what they held before.

    After `continue` the source is read again, and what another life of the checkpoint made of a row says nothing of this one.
    """
    group = next(group for group in play.model.groups if group.name == one.group)
    if play.model.at_source(group, one.row) is not None:
        return
    for sink in play.model.sinks(group):
        behind = one.stage == "batch" or sink.at != "before"
        life = sink.life(one.txid)
        counts = any(entry.row == one.row and sink.life(entry.txid) in (None, life) for entry in entries[id(sink)])
        if behind and not counts and (sink.at == "before" or play.model.passes(one.row)):
            sink.entries = [*sink.entries, Entry(one.row, REPLAYED, play.model.rules.wide)]
            _taken(play, one)


def _taken(play: Play, one: Refused) -> None:
    if one.stage == "batch":
        next(group for group in play.model.groups if group.name == one.group).replayed.add(one.txid)


# --- the flow changes -----------------------------------------------------------------------------------------------


def change(play: Play, **rules: Any) -> None:
    """Another gate, a further column, a further state, another size of batches; amid a half-made batch a gate is refused."""
    if not any(group.half for group in play.model.groups):
        play.model.rules = changed(play.model.rules, **rules)
        return
    cut = next((group for group in play.model.groups if group.cut), None)
    former, others = play.model.rules, changed(play.model.rules, **rules)
    # Of a log that was cleaned nobody knows the gates.
    if cut is None or cut.fresh or others.most == former.most or play.model.cleaned:
        return
    play.model.rules = changed(former, most=others.most)
    outcome = play.world.run(play.catching_up())
    play.follow(play.streams_before(cut, "ChangedGateError"), outcome, "another gate in the middle of a batch")
    play.model.rules = former
