"""Operations between two lives of a flow: copies brought back, checkpoints lost, and a writer that stands still."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipelines.errors import PoisonBatchError, TrideltaError
from pipelines.places.location import Place
from pipelines.state.record import BATCH, REPLAY
from tests.histories.child import Child, Drivers, events_of
from tests.histories.comparing import Difference
from tests.histories.model import BAD, NO_SLICE, NON_TRANSACTIONAL, TRANSACTIONAL, Event, Group, Refusal, Sink
from tests.histories.operations import arrive, backfill, catch_up, committed, compaction, end_of_replay, replay
from tests.histories.play import Copies, Play, as_said
from tests.histories.world import MOMENTS, STEPS, Killed, Outcome, StuckError, Witness, copied, put_back, told_of_steps
from tests.lakes import removed

_TOO_LATE = ("LateWriterError", "LeaseLostError", "LockedError", "SliceOfMapError")
"""How a run may end that another one has overtaken; a map takes no slice once a stream has written it."""
_BEHIND = ("CheckpointBehindError", "OtherCheckpointError")
"""How a start is refused whose checkpoint is older than what it wrote."""
_FOLLOWED = {"catch_up": "catch-up", "backfill": "backfill"}
"""Runs whose moments the model follows, with the name of each."""


def fresh(play: Play, group: int = 0, then: str = "refuse") -> None:
    """The checkpoint is lost, and the flow started with a policy."""
    found = play.group(group)
    aside = play.world.copies / "aside"
    folder = play.world.checkpoint(found.name)
    if not folder.is_dir() or found.fresh:
        return
    kept = found.snapshot()
    copied(folder, aside)
    removed(folder)
    found.epoch, found.first, found.planned, found.finished, found.poison, found.skipped = 0, 0, [], 0, set(), set()
    found.plans = []
    found.lost = set()
    outcome = play.world.run(play.catching_up(on_fresh_checkpoint=then))
    play.follow(play.streams(on_fresh=then), outcome, f"fresh checkpoint, {then}")
    if then == "refuse" and outcome.error is not None and found.fresh:
        put_back(aside, folder)
        _restored(found, kept)
    removed(aside)


def _restored(group: Group, said: Group) -> None:
    for name in ("epoch", "life", "first", "finished"):
        setattr(group, name, getattr(said, name))
    group.planned, group.poison, group.skipped = list(said.planned), set(said.poison), set(said.skipped)
    group.plans = list(said.plans)
    group.known, group.lost = set(said.known), set(said.lost)


def _of_another_life(play: Play, found: Group, said: Group) -> bool:
    """Whether a copy of the checkpoint is of another life than what a state holds, or of another past of the same one.

    It is known by the plan of the state's last batch.
    """
    held = {sink.last for sink in play.model.sinks(found) if any(epoch == found.epoch for epoch, _ in sink.txids)}
    if said.life != found.life:
        return bool(held)
    # Behind an older copy that was brought back, the same life has planned a batch once more, and otherwise.
    both = min(len(said.plans), len(found.plans))
    known = {txid - found.first for txid in held if 0 <= txid - found.first < both}
    return any(said.plans[number] != found.plans[number] for number in known)


def restore_checkpoint(play: Play, group: int = 0, back: int = 1) -> None:
    """An older copy of the checkpoint: refused if a state holds a batch that it does not know."""
    found = play.group(group)
    copies = play.copies.get(f"checkpoint {found.name}", Copies()).kept
    # It may have been lost, and the flow stopped by another query's poison before this one began again.
    if len(copies) <= back or found.fresh:
        return
    path, (said, _) = copies[-1 - back]
    must = said.epoch != found.epoch or _of_another_life(play, found, said)
    must = must or any(sink.last >= said.first + len(said.planned) for sink in play.model.sinks(found))
    demanding = any(sink.kind == TRANSACTIONAL for sink in play.model.sinks(found))
    if not must and demanding and found.reads_gone(said):
        # Only what its stream has finished may leave a source: this copy would begin it once more, and the batch fail.
        return
    _brought_back(play, found, path, play.world.checkpoint(found.name), _End(must), lambda: _restored(found, said))


def older_spark(play: Play, group: int = 0, back: int = 1) -> None:
    """Spark's part of the checkpoint is an older copy, or a loss of power took its last plans; the engine's files are newer.

    Refused if a batch whose plan is gone was closed, is in a state, or has got there by a replay, and if the copy is of another
    life than what a state holds. Else the batches of lost plans come again with what the source has then, whether they failed or
    were left out.
    """
    found = play.group(group)
    copies = play.copies.get(f"checkpoint {found.name}", Copies()).kept
    if len(copies) <= back or found.fresh or found.window:
        return
    path, (said, _) = copies[-1 - back]
    if said.life != found.life and not _of_another_life(play, found, said):
        # Which batches come then is the other life's to say.
        return
    planned = said.first + len(said.planned)
    closed = {found.first + number for number in range(found.finished)} - found.skipped
    held = {sink.last for sink in play.model.sinks(found)}
    must = _of_another_life(play, found, said) or any(txid >= planned for txid in closed | held | found.replayed)
    if not must and found.reads_gone(said):
        return

    def take() -> None:
        found.lost |= {txid for txid in found.poison | found.skipped if txid >= planned}
        found.planned, found.plans, found.finished = list(said.planned), list(said.plans), said.finished
        found.poison = {txid for txid in found.poison if txid < planned}
        found.skipped = {txid for txid in found.skipped if txid < planned}

    # Who is not refused goes on: no other error than those of the source, and of other groups, is rightful.
    end = _End(must, _BEHIND)
    _brought_back(play, found, path / "spark", play.world.checkpoint(found.name) / "spark", end, take)


def restore_table(play: Play, state: int = 0, back: int = 1) -> None:
    """An older copy of a state's table, or (0) none: refused if it lacks batches behind the checkpoint, or a replay's rows."""
    group, sink = play.sink(state)
    copies = play.copies.get(f"state {sink.name}", Copies()).kept
    if len(copies) <= back or group.fresh:
        return
    path, (said, _) = copies[-1 - back] if back else (None, (Sink(sink.name, sink.form), ""))
    held = {txid for epoch, txid in said.txids if epoch == group.epoch}
    done = {group.first + n for n in range(group.finished)} - group.skipped
    known = {txid for epoch, txid in sink.txids if epoch == group.epoch}
    # Without a batch it may be what the first one, begun and not finished, has to come to.
    must = bool((done & known) - held) or said.epochs not in (0, sink.epochs) or said.replays < sink.replays

    def take() -> None:
        mine = as_said(said)
        for name in ("entries", "txids", "slices", "claims", "as_of", "epochs", "replays", "landed", "replayed"):
            setattr(sink, name, getattr(mine, name))

    _brought_back(play, group, path, play.world.lake.state_path(sink.name), _End(must), take)


@dataclass(frozen=True)
class _End:
    """How a start ends behind what was brought back.

    Attributes:
        must: it is refused.
        errors: by one of these; where it must not be, it goes on. None: by any of the engine's own, and else it may be.
    """

    must: bool
    errors: tuple[str, ...] | None = None


def _brought_back(
    play: Play, group: Group, copy: Place | None, folder: Place, end: _End, take: Callable[[], None]
) -> None:
    """Put a group's copy in its place, and start the flow: it is refused (and the folder as it was put back), or goes on."""
    aside, world = play.world.copies / "aside", play.world
    copied(folder, aside)
    removed(folder)
    if copy is not None:
        copied(copy, folder)
    world.lake = type(world.lake)(world.lake.root)
    outcome = world.run(play.catching_up())
    if end.must and outcome.error is None:
        raise Difference("an older copy brought back", "no error", "refused at the start")
    is_own = isinstance(outcome.error, TrideltaError)
    may = end.errors is None and is_own and not isinstance(outcome.error, PoisonBatchError)
    if outcome.error is not None and (end.must or may or play.may_refuse(outcome)):
        own = type(outcome.error).__name__ if is_own else TrideltaError.__name__
        refused = play.streams_before(group, *(end.errors or (own,)))
        play.follow(refused, outcome, "an older copy brought back, refused")
        put_back(aside, folder)
        world.lake = type(world.lake)(world.lake.root)
    else:
        take()
        play.follow(play.streams(), outcome, "an older copy brought back")
    removed(aside)


def frozen(
    play: Play,
    halt: int = 1,
    arrivals: list[list[list[Any]]] = [],  # noqa: B006
    do: str = "catch_up",
    slices: list[str] = [],  # noqa: B006
) -> None:
    """A run stands still at the moment of a number; another takes over where locks do not reach; then it wakes."""
    if _alone(play, do, slices):
        return
    witness = Witness(halt=halt, moments=MOMENTS if do == "catch_up" else (*MOMENTS, *STEPS))
    run = play.run_of(do, slices)
    ended: list[BaseException | None] = []

    def life() -> None:
        try:
            with told_of_steps(witness):
                run(play.world.runtime(witness))
            ended.append(None)
        except BaseException as error:
            ended.append(error)

    def wake() -> tuple[list[Event], str | None]:
        witness.go.set()
        thread.join(120)
        if thread.is_alive():
            raise StuckError("the frozen writer, awake again, does not end")
        return witness.events, type(ended[0]).__name__ if ended[0] else None

    thread = threading.Thread(target=life, daemon=True)
    thread.start()
    while not witness.halted.wait(0.02) and not ended:
        pass
    if ended:
        _undisturbed(play, do, slices, Outcome(_moments(witness.events), ended[0]))
        return
    try:
        _overtaken(play, _Late(do, slices, _moments(witness.events)), arrivals, wake)
    finally:
        witness.go.set()


def _alone(play: Play, do: str, slices: list[str]) -> bool:
    """Run what must not be overtaken here and now: such runs say too little, or count at least once."""
    if any(sink.kind == NON_TRANSACTIONAL for group in play.model.groups for sink in group.sinks):
        return True
    if do == "catch_up" or (len(play.model.groups) == 1 and not play.model.groups[0].rewritten):
        return False
    _in_process(play, None, do, slices)
    return True


def _moments(events: list[Event]) -> list[Event]:
    return [one for one in events if one[0] in MOMENTS]


def _undisturbed(play: Play, do: str, slices: list[str], outcome: Outcome) -> None:
    """A run that has ended before the moment at which it was to stand still."""
    play.world.lake = type(play.world.lake)(play.world.lake.root)
    if do in _FOLLOWED:
        play.follow(play.streams() if do == "catch_up" else play.backfills(slices), outcome, _FOLLOWED[do])
    elif do == "replay":
        if not outcome.killed:
            end_of_replay(play, outcome.error)
        committed(play, outcome.events)
        replay(play)
    else:
        play.same_end("compaction", outcome, None)


@dataclass
class _Late:
    """A run that stands still: what it does, of which slices, and what it has told."""

    do: str
    slices: list[str]
    told: list[Event]


def _overtaken(
    play: Play, late: _Late, arrivals: list[list[list[Any]]], wake: Callable[[], tuple[list[Event], str | None]]
) -> None:
    """What comes to pass while a run stands still, and when it wakes: it is refused, or what it does is exact."""
    if late.do == "catch_up":
        _taken_over(play, late.told, arrivals)
        wake()
    elif late.do == "backfill":
        _late_backfill(play, late, arrivals, wake)
    elif late.do == "replay":
        _late_replay(play, late, arrivals, wake)
    else:
        _of_another_host(play, arrivals)
        _, error = wake()
        if error not in (None, *_TOO_LATE):
            raise Difference("end of a late compaction", error, _TOO_LATE)
    play.world.lake = type(play.world.lake)(play.world.lake.root)


def _late_replay(
    play: Play, late: _Late, arrivals: list[list[list[Any]]], wake: Callable[[], tuple[list[Event], str | None]]
) -> None:
    """A replay goes on behind batches, or behind another host's replay; what is left then the next one finishes."""
    waiting = [one.row for one in play.model.refused]
    committed(play, late.told)
    had = [state for moment, state, _ in late.told if moment == "committed"]
    sinks = [sink for sink in play.model.groups[0].sinks if sink.name in had]
    batches = {sink.name: set(sink.as_of) for sink in sinks}
    _of_another_host(play, arrivals)
    if not arrivals:
        outcome = play.world.run(play.replaying())
        end_of_replay(play, outcome.error)
        committed(play, outcome.events)
    events, error = wake()
    if error not in (None, *_TOO_LATE, "ReplayError", "GateError"):
        raise Difference("end of a late replay", error, _TOO_LATE)
    committed(play, _moments(events)[len(late.told) :])
    play.world.lake = type(play.world.lake)(play.world.lake.root)
    before = {sink.name: len(sink.entries) for sink in sinks}
    replay(play)
    for sink in sinks:
        # Those that it had landed before it stood still the batches meanwhile came behind.
        landed = [entry for entry in sink.entries[before[sink.name] :] if entry.row in waiting]
        commits = play.world.lake.state(sink.name).history()
        last = max((one.version for one in commits if one.kind == REPLAY and one.rows), default=-1)
        for txid in set(sink.as_of) - batches[sink.name]:
            if landed and any(one.txid == txid and one.kind == BATCH and one.version < last for one in commits):
                # Some of several lots have landed behind the batch, and nobody can tell here which.
                del sink.as_of[txid]
            else:
                sink.as_of[txid] = [*sink.as_of[txid], *landed]


def _late_backfill(
    play: Play, late: _Late, arrivals: list[list[list[Any]]], wake: Callable[[], tuple[list[Event], str | None]]
) -> None:
    """A backfill goes on with what it has read: into no table that another host has written since."""
    steps = play.backfills(late.slices)
    # Before its first moment it has read what there is: so does the model.
    coming = [_step(steps) for _ in range(max(1, len(late.told)))][len(late.told) :]
    before = _held(play, late.slices)
    _of_another_host(play, arrivals)
    changed = {name for name, held in _held(play, late.slices).items() if held != before[name]}
    events, error = wake()
    rest = _moments(events)[len(late.told) :]
    for moment, state, _ in rest:
        wanted = coming.pop() if coming else _step(steps)
        late_commit = moment == "committed" and state in changed
        if late_commit or not isinstance(wanted, tuple) or wanted[:2] != (moment, state):
            raise Difference("moments of a late backfill", rest, f"{wanted}, and no commit into {sorted(changed)}")
    if error in _TOO_LATE:
        return
    end = coming.pop() if coming else _step(steps)
    if error not in (end.errors if isinstance(end, Refusal) else (None,)) or isinstance(end, tuple):
        raise Difference("end of a late backfill", error, end)


def _step(steps: Iterator[Event]) -> Event | Refusal | None:
    try:
        return next(steps, None)
    except Refusal as refusal:
        return refusal


def _held(play: Play, slices: list[str]) -> dict[str, Any]:
    """What the tables of a flow's only stream hold, as far as a backfill of slices rests on it."""
    (group,) = play.model.groups
    refused = [one for one in play.model.refused if one.slice in (NO_SLICE, *slices)]
    return {"quarantine": refused, **{sink.name: len(sink.txids) for sink in group.sinks}}


def _taken_over(play: Play, told: list[Event], arrivals: list[list[list[Any]]]) -> None:
    """What happens while a writer stands still: all that it has told so far is done, the rest another one does."""
    steps = play.streams()
    for _ in told:
        next(steps)
    steps.close()  # type: ignore[attr-defined]
    _of_another_host(play, arrivals)


def _of_another_host(play: Play, arrivals: list[list[list[Any]]]) -> None:
    for rows in arrivals:
        # Poison of the first stream would keep the other host from the second one, whose frozen writer then goes on.
        alone = len(play.model.groups) == 1
        arrive(play, 0, rows if alone else [row for row in rows if row[-1] != BAD])
    play.world.as_on_another_host()
    outcome = play.world.run(play.catching_up())
    play.follow(play.streams(), outcome, "catch-up of another host")


def _ordered(
    play: Play, drivers: Drivers, at: int, number: int, do: str = "catch_up", slices: list[str] | None = None
) -> tuple[Child, Path]:
    """A driver that runs something and gets a signal at the moment of a number, and the file of what it tells."""
    child, file = drivers.take(), play.world.home / f"events-{time.monotonic_ns()}"
    child.order(
        home=str(play.world.home),
        shape=play.shape,
        rules=asdict(play.model.rules),
        events=str(file),
        at=at,
        signal=number,
        do=do,
        slices=slices or [],
    )
    return child, file


def killed(play: Play, kill: int = 1, do: str = "catch_up", slices: list[str] = []) -> None:  # noqa: B006
    """A run in a process that SIGKILL ends at the moment of a number, its JVM with it."""
    if play.drivers is None:
        _in_process(play, kill, do, slices)
        return
    child, file = _ordered(play, play.drivers, kill, signal.SIGKILL, do, slices)
    code = child.ended()
    error, told = _error_of(file), _moments(events_of(file))
    if code not in (0, -signal.SIGKILL):
        _failed(play, do, slices, error, told)
    elif do in _FOLLOWED or do == "replay":
        # What a replay has begun the next one finishes.
        _undisturbed(play, do, slices, Outcome(told, Killed() if code else None))
    play.world.lake = type(play.world.lake)(play.world.lake.root)


def _error_of(file: Path) -> str | None:
    """The name of the error with which a run in a process of its own ended."""
    return next((state for moment, state, _ in events_of(file) if moment == "error"), None)


def _failed(play: Play, do: str, slices: list[str], error: str | None, told: list[Event]) -> None:
    """A run in a process of its own that ended with an error: the one that the model expects, and a run in this one tells."""
    if do == "replay":
        end_of_replay(play, error or "no word")
        committed(play, told)
        replay(play)
    elif do == "compact":
        raise Difference("end of compaction", error, "no error")
    else:
        _same_again(play, do, slices, error)


def _in_process(play: Play, kill: int | None, do: str, slices: list[str]) -> None:
    if do == "backfill":
        backfill(play, slices, kill=kill)
    elif do == "catch_up":
        catch_up(play, kill=kill)
    elif do == "compact":
        compaction(play, kill=kill)
    else:
        replay(play, kill=kill)


def _same_again(play: Play, do: str, slices: list[str], error: str | None) -> None:
    wanted: tuple[str, ...] = ()
    try:
        for _ in play.streams() if do == "catch_up" else play.backfills(slices):
            pass
    except Refusal as refusal:
        wanted = refusal.errors
    # For rewritten files of a source a run may be refused.
    if error not in wanted and not any(group.rewritten for group in play.model.groups):
        raise Difference(f"end of {_FOLLOWED[do]} in a process of its own", error, wanted or "no error")
    _in_process(play, None, do, slices)


def stopped(
    play: Play,
    halt: int = 1,
    arrivals: list[list[list[Any]]] = [],  # noqa: B006
    do: str = "catch_up",
    slices: list[str] = [],  # noqa: B006
) -> None:
    """A run in a process of its own is stopped at the moment of a number; another takes over; then it wakes."""
    if play.drivers is None:
        frozen(play, halt, arrivals, do, slices)
        return
    if _alone(play, do, slices):
        return
    child, file = _ordered(play, play.drivers, halt, signal.SIGSTOP, do, slices)

    def wake() -> tuple[list[Event], str | None]:
        child.wake()
        child.ended()
        told = events_of(file)
        return told, _error_of(file)

    if not child.stopped_or_ended():
        told = _moments(events_of(file))
        if child.ended() == 0:
            _undisturbed(play, do, slices, Outcome(told))
        else:
            _failed(play, do, slices, _error_of(file), told)
        return
    try:
        _overtaken(play, _Late(do, slices, _moments(events_of(file))), arrivals, wake)
    finally:
        child.close()
