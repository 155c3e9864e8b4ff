"""Operations between two lives of a flow: copies brought back, checkpoints lost, and a writer that stands still."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipelines.errors import PoisonBatchError
from pipelines.places.location import Place
from tests.histories.child import Child, Drivers, events_of
from tests.histories.comparing import Difference
from tests.histories.model import BAD, NON_TRANSACTIONAL, Event, Group, Refusal, Sink
from tests.histories.operations import arrive, backfill, catch_up, compaction, replay
from tests.histories.play import Copies, Play, as_said
from tests.histories.world import MOMENTS, Killed, Outcome, StuckError, Witness, copied, put_back
from tests.lakes import removed

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
    outcome = play.world.run(play.catching_up(on_fresh_checkpoint=then))
    play.follow(play.streams(on_fresh=then), outcome, f"fresh checkpoint, {then}")
    if then == "refuse" and outcome.error is not None and found.fresh:
        put_back(aside, folder)
        _restored(found, kept)
    removed(aside)


def _restored(group: Group, said: Group) -> None:
    for name in ("epoch", "first", "finished"):
        setattr(group, name, getattr(said, name))
    group.planned, group.poison, group.skipped = list(said.planned), set(said.poison), set(said.skipped)
    group.known = set(said.known)


def restore_checkpoint(play: Play, group: int = 0, back: int = 1) -> None:
    """An older copy of the checkpoint: refused if a state holds a batch that it does not know."""
    found = play.group(group)
    copies = play.copies.get(f"checkpoint {found.name}", Copies()).kept
    # It may have been lost, and the flow stopped by another query's poison before this one began again.
    if len(copies) <= back or found.fresh:
        return
    path, (said, _) = copies[-1 - back]
    must = said.epoch != found.epoch or any(
        sink.last >= said.first + len(said.planned) for sink in play.model.sinks(found)
    )
    _brought_back(play, found, path, play.world.checkpoint(found.name), must, lambda: _restored(found, said))


def restore_table(play: Play, state: int = 0, back: int = 1) -> None:
    """An older copy of a state's table, or (0) none: refused if the checkpoint has batches behind it that it lacks."""
    group, sink = play.sink(state)
    copies = play.copies.get(f"state {sink.name}", Copies()).kept
    if len(copies) <= back or group.fresh:
        return
    path, (said, _) = copies[-1 - back] if back else (None, (Sink(sink.name, sink.form), ""))
    held = {txid for epoch, txid in said.txids if epoch == group.epoch}
    done = {group.first + n for n in range(group.finished)} - group.skipped
    known = {txid for epoch, txid in sink.txids if epoch == group.epoch}
    # Without a batch it may be what the first one, begun and not finished, has to come to.
    must = bool((done & known) - held) or said.epochs not in (0, sink.epochs)

    def take() -> None:
        mine = as_said(said)
        for name in ("entries", "txids", "slices", "claims", "as_of", "epochs"):
            setattr(sink, name, getattr(mine, name))

    _brought_back(play, group, path, play.world.lake.state_path(sink.name), must, take)


def _brought_back(
    play: Play, group: Group, copy: Place | None, folder: Place, must: bool, take: Callable[[], None]
) -> None:
    """Put a group's copy in its place, and start the flow: it is refused (and the folder as it was put back), or goes on."""
    aside, world = play.world.copies / "aside", play.world
    copied(folder, aside)
    removed(folder)
    if copy is not None:
        copied(copy, folder)
    world.lake = type(world.lake)(world.lake.root)
    outcome = world.run(play.catching_up())
    if must and outcome.error is None:
        raise Difference("an older copy brought back", "no error", "refused at the start")
    if outcome.error is not None and (must or not isinstance(outcome.error, PoisonBatchError)):
        refused = play.streams_before(group, type(outcome.error).__name__)
        play.follow(refused, outcome, "an older copy brought back, refused")
        put_back(aside, folder)
        world.lake = type(world.lake)(world.lake.root)
    else:
        take()
        play.follow(play.streams(), outcome, "an older copy brought back")
    removed(aside)


def frozen(play: Play, halt: int = 1, arrivals: list[list[list[Any]]] = []) -> None:  # noqa: B006
    """A writer stands still at the moment of a number; another takes over where locks do not reach; then it wakes."""
    if any(sink.kind == NON_TRANSACTIONAL for group in play.model.groups for sink in group.sinks):
        return
    witness = Witness(halt=halt)
    frozen_run = play.catching_up()
    ended: list[BaseException | None] = []

    def life() -> None:
        try:
            frozen_run(play.world.runtime(witness))
            ended.append(None)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=life, daemon=True)
    thread.start()
    while not witness.halted.wait(0.02) and not ended:
        pass
    if ended:
        play.follow(play.streams(), Outcome(witness.events, ended[0]), "catch-up")
        return
    try:
        _taken_over(play, witness.events, arrivals)
    finally:
        witness.go.set()
    thread.join(120)
    if thread.is_alive():
        raise StuckError("the frozen writer, awake again, does not end")
    play.world.lake = type(play.world.lake)(play.world.lake.root)


def _taken_over(play: Play, told: list[Event], arrivals: list[list[list[Any]]]) -> None:
    """What happens while a writer stands still: all that it has told so far is done, the rest another one does."""
    steps = play.streams()
    for _ in told:
        next(steps)
    steps.close()  # type: ignore[attr-defined]
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
    told = [one for one in events_of(file) if one[0] in MOMENTS]
    if code not in (0, -signal.SIGKILL) and do != "replay":
        # It ends with an error that only a run in this process tells: the same one.
        _same_again(play, do, slices)
    elif do in _FOLLOWED:
        outcome = Outcome(told, Killed() if code else None)
        play.follow(play.streams() if do == "catch_up" else play.backfills(slices), outcome, _FOLLOWED[do])
    play.world.lake = type(play.world.lake)(play.world.lake.root)
    if do == "replay":
        # What it has begun the next one finishes.
        replay(play)


def _in_process(play: Play, kill: int | None, do: str, slices: list[str]) -> None:
    if do == "backfill":
        backfill(play, slices, kill=kill)
    else:
        {"catch_up": catch_up, "compact": compaction, "replay": replay}[do](play, kill=kill)


def _same_again(play: Play, do: str = "catch_up", slices: list[str] | None = None) -> None:
    steps = play.streams() if do == "catch_up" else play.backfills(slices or [])
    with suppress(Refusal):
        for _ in steps if do in _FOLLOWED else ():
            pass
    _in_process(play, None, do, slices or [])


def stopped(play: Play, halt: int = 1, arrivals: list[list[list[Any]]] = []) -> None:  # noqa: B006
    """A writer in a process of its own is stopped at the moment of a number; another takes over; then it wakes."""
    if any(sink.kind == NON_TRANSACTIONAL for group in play.model.groups for sink in group.sinks):
        return
    if play.drivers is None:
        frozen(play, halt, arrivals)
        return
    child, file = _ordered(play, play.drivers, halt, signal.SIGSTOP)
    if not child.stopped_or_ended():
        told = [one for one in events_of(file) if one[0] in MOMENTS]
        play.follow(play.streams(), Outcome(told), "catch-up") if child.ended() == 0 else _same_again(play)
        return
    try:
        _taken_over(play, events_of(file), arrivals)
    finally:
        child.wake()
    child.ended()
    play.world.lake = type(play.world.lake)(play.world.lake.root)
