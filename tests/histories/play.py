"""A program under way: the lake, the model, and what a run did against what it had to do."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipelines import Runtime
from pipelines.errors import LostRowsError, PoisonBatchError, TrideltaError
from pipelines.maintenance import compact
from pipelines.places.location import Place
from tests.histories.comparing import Difference, compare
from tests.histories.model import BACKFILLED, CHANNEL, Event, Group, Model, Refusal, Sink
from tests.histories.world import Outcome, World, copied

if TYPE_CHECKING:
    from tests.histories.child import Drivers

Arguments = dict[str, Any]
_PLAIN = {"arrive", "remove_file", "catch_up", "skip", "change", "replay"}
_NOT_PLAIN = {"kill", "fields", "wide", "further"}
"""Operations, and arguments, behind which it is plain what a replay takes, and is not."""


@dataclass
class Copies:
    """Copies of one folder, each with what the model said of it then; the newest last."""

    kept: list[tuple[Place, Any]] = field(default_factory=list)


class Play:
    """A program under way: the lake, the model, and the copies that may be brought back.

    Args:
        world: the lake.
        model: what it must hold.
        shape: of the flow, for processes that run it.
        drivers: such processes, if there are any.
    """

    def __init__(
        self, world: World, model: Model, shape: dict[str, Any] | None = None, drivers: Drivers | None = None
    ) -> None:
        self.world, self.model, self.shape, self.drivers = world, model, shape or {}, drivers
        self.copies: dict[str, Copies] = {}
        self.numbers = self.files = 0
        self.clock = 1_700_000_000
        self.plain = True

    def group(self, number: int) -> Group:
        return self.model.groups[number % len(self.model.groups)]

    def source(self, number: int) -> Group:
        """A group that reads files."""
        found = [group for group in self.model.groups if not group.window]
        return found[number % len(found)]

    def sink(self, number: int) -> tuple[Group, Sink]:
        """A state that the flow has, by number."""
        groups = self.model.groups
        found = [(group, sink) for group in groups for sink in self.model.sinks(group) if sink.form != CHANNEL]
        return found[number % len(found)]

    def do(self, operation: Callable[..., None], given: Arguments) -> None:
        """One operation, and the comparison after it.

        Raises:
            Difference: the lake is not as the model says.
        """
        self.plain = self.plain and operation.__name__ in _PLAIN and not _NOT_PLAIN & given.keys()
        operation(self, **given)
        compare(self.world, self.model)
        self._keep_copies()

    def _keep_copies(self) -> None:
        for group in self.model.groups:
            folder = self.world.checkpoint(group.name)
            if not group.fresh and (folder / "spark" / "metadata").exists():
                self._keep(f"checkpoint {group.name}", folder, group.snapshot(), (group.planned, group.finished))
            for sink in self.model.sinks(group):
                if sink.name in self.world.lake.states():
                    path = self.world.lake.state_path(sink.name)
                    self._keep(f"state {sink.name}", path, sink, self.world.lake.state(sink.name).version())

    def _keep(self, name: str, folder: Place, said: Any, mark: Any) -> None:
        copies = self.copies.setdefault(name, Copies())
        if copies.kept and copies.kept[-1][1][1] == repr(mark):
            return
        target = self.world.copies / name.replace(" ", "_") / str(len(copies.kept))
        copied(folder, target)
        copies.kept.append((target, (as_said(said), repr(mark))))

    # --- runs -------------------------------------------------------------------------------------------------------

    def follow(self, steps: Iterator[Event], outcome: Outcome, what: str) -> None:
        """Let the model take the steps that a run took, and see that it told of them, and ended, as it had to.

        Raises:
            Difference
        """
        if self.may_refuse(outcome):
            for _ in zip(outcome.events, steps, strict=False):
                pass
            return
        if outcome.killed and not outcome.events:
            # Before its first moment.
            return
        wanted: list[Event] = []
        refusal: Refusal | None = None
        try:
            for event in steps:
                wanted.append(event)
                if outcome.killed and len(wanted) == len(outcome.events):
                    steps.close()  # type: ignore[attr-defined]
                    break
        except Refusal as found:
            refusal = found
        self.same_end(what, outcome, refusal)
        self._same_events(what, outcome.events, wanted)

    def may_refuse(self, outcome: Outcome) -> bool:
        """Whether a run was refused, before it wrote a row, for its source's files were rewritten; or met one that is gone."""
        if isinstance(outcome.error, LostRowsError):
            return any(group.rewritten for group in self.model.groups)
        wrote = any(moment in ("committing", "committed") for moment, _, _ in outcome.events)
        known = isinstance(outcome.error, TrideltaError) and not isinstance(outcome.error, PoisonBatchError)
        return known and not wrote and any(group.rewritten for group in self.model.groups)

    @staticmethod
    def _same_events(what: str, found: list[Event], wanted: list[Event]) -> None:
        # What a backfill names for a txid is the last batch that it covers: told to people, and not compared.
        told = [(moment, state, BACKFILLED if what == "backfill" else txid) for moment, state, txid in found]
        if told != wanted:
            raise Difference(f"moments of {what}", told, wanted)

    @staticmethod
    def same_end(what: str, outcome: Outcome, refusal: Refusal | None) -> None:
        error = type(outcome.error).__name__ if outcome.error is not None else None
        if outcome.killed:
            return
        if refusal is None and outcome.error is not None:
            raise Difference(f"end of {what}", f"{error}: {outcome.error}", "no error") from outcome.error
        if refusal is not None and error not in refusal.errors and (error is not None or refusal.must):
            raise Difference(f"end of {what}", f"{error}: {outcome.error}", refusal.errors) from outcome.error

    def streams(self, on_fresh: str = "refuse", max_batches: int | None = None) -> Iterator[Event]:
        """The steps of a catch-up of all groups."""
        for group in self.model.groups:
            yield from self._stream(group, on_fresh=on_fresh, max_batches=max_batches)

    def streams_before(self, refused: Group, *errors: str) -> Iterator[Event]:
        """The steps of a catch-up that refuses a group: those of the groups ahead of it."""
        for group in self.model.groups:
            if group is refused:
                raise Refusal(*errors)
            yield from self._stream(group)

    def _stream(self, group: Group, **given: Any) -> Iterator[Event]:
        idle = lambda name, number, _: self.world.idle(name, number)  # noqa: E731 - as long as its name
        return self.model.stream(group, idle=idle, whole=self.world.whole, **given)

    def catching_up(self, **given: Any) -> Callable[[Runtime], Any]:
        return lambda runtime: runtime.catch_up(self.world.topology(self.model.rules), **given)

    def run_of(self, do: str, slices: list[str]) -> Callable[[Runtime], Any]:
        """What a name stands for: a run with no further arguments."""
        if do == "backfill":
            return self.backfilling(slices)
        return {"catch_up": self.catching_up, "replay": self.replaying, "compact": self.compacting}[do]()

    def backfills(self, slices: list[str], cancelled: Callable[[], bool] = lambda: False) -> Iterator[Event]:
        """The steps of a backfill of all groups."""
        if not self.world.sliced or self.world.window:
            raise Refusal("TrideltaError")
        for group in self.model.groups:
            yield from self.model.backfill(group, slices, cancelled=cancelled)

    def backfilling(self, slices: list[str]) -> Callable[[Runtime], Any]:
        return lambda runtime: runtime.backfill(self.world.topology(self.model.rules), slices)

    def replaying(self) -> Callable[[Runtime], Any]:
        return lambda runtime: runtime.replay_quarantine(self.world.topology(self.model.rules))

    def compacting(self, hours: float = 168.0, open_generations: int | None = None) -> Callable[[Runtime], Any]:
        return lambda runtime: compact(
            runtime.spark,
            runtime.lake,
            self.world.topology(self.model.rules),
            retention_hours=hours,
            open_generations=open_generations,
            lock_wait_seconds=20,
        )

    def unchanged(self, do: Callable[[Runtime], Any], errors: tuple[str, ...], what: str) -> bool:
        """Whether a run was refused, before it changed a row.

        Raises:
            Difference: it was refused with another error, or after it had changed something.
        """
        outcome = self.world.run(do)
        if outcome.error is None:
            return False
        if errors and type(outcome.error).__name__ not in errors:
            raise Difference(f"end of {what}", f"{type(outcome.error).__name__}: {outcome.error}", errors)
        if outcome.events and any(moment in ("committing", "committed") for moment, _, _ in outcome.events):
            raise Difference(f"{what}, refused", outcome.events, "no commit before it is refused")
        return True


def as_said(said: Any) -> Any:
    """What the model says now, for later."""
    return copy.deepcopy(said)
