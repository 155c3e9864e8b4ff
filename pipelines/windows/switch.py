"""The gate of `switch` (Flowmix rules 5.4)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from pipelines.windows.buffer import FAR, NOTHING, SECOND, Fired, Key, Window, WindowContext
from pipelines.windows.event import Event
from pipelines.windows.operations import SwitchWindow
from pipelines.windows.policy import Policy


class _Reached(NamedTuple):
    """The condition of a policy, asked at each event, and so kept."""

    events: int | None
    ticks: int | None
    within: int | None

    @classmethod
    def of(cls, policy: Policy) -> _Reached:
        return cls(policy.events, policy.ticks, policy.within)


class SwitchBuffer(Window):
    """The state of a switch: whether the gate passes, the clocks of what it passed, and its counters.

    Each counter counts for the stated policy alone and starts again whenever the gate closes (the original's faults, rules
    5.4.4). Ticks emit nothing, so that they are made up for when the next event comes.
    """

    __slots__ = (
        "_age",
        "_asked",
        "_at",
        "_close",
        "_evict",
        "_full_ticks",
        "_keep",
        "_lifetime",
        "_open",
        "_open_count",
        "_passed",
        "_stopped",
        "_stopped_count",
        "_written",
    )

    def __init__(self, operation: SwitchWindow, key: Key, context: WindowContext) -> None:
        super().__init__(key, context)
        self._open, self._evict, self._close = map(_Reached.of, (operation.open, operation.evict, operation.close))
        self._lifetime = operation.idle_millis
        self._age, self._keep = operation.evict.age, operation.evict.stores
        # Whether it is ever asked how near to each other events were: of an unshut gate the clocks would never leave.
        self._asked = self._open.within is not None and bool(self._evict.events or self._evict.ticks is not None)
        self._stopped = False
        self._passed: deque[int] = deque()
        self._open_count = self._stopped_count = self._full_ticks = 0
        self._at = 0
        # None: no event yet; every number is the clock of one, as there is time before 1970.
        self._written: int | None = None

    def event(self, event: Event, now: int) -> Sequence[Event]:
        if self._written is None:
            self._at, self.wake = now // SECOND, now + self._lifetime
        elif now // SECOND > self._at:
            self._tick_to(now // SECOND)
        self._written = now
        if self._stopped:
            if self._close.events is not None:
                self._count_stopped(self._close.events)
        elif self._age is not None:
            while self._passed and now - self._passed[0] >= self._age:
                self._passed.popleft()
        if not self._stopped:
            self._before(event)
        if self._stopped:
            return NOTHING
        if not self._asked:
            # Of an earlier release some may be there.
            self._passed.clear()
            return (event,)
        if self._keep and len(self._passed) >= self._keep:
            self._passed.popleft()
        self._passed.append(now)
        return (event,)

    def _before(self, event: Event) -> None:
        """Close the gate if this event does (rules 5.4.1)."""
        if self._open.events is not None:
            self._open_count += 1
            if self._open_count == self._open.events:
                self._stop()
        elif len(self._passed) == self._evict.events and self._near():
            self._stop()

    def _near(self) -> bool:
        """Check whether the last and the first event of the window are near enough to each other; it takes two."""
        passed, within = self._passed, self._open.within
        return within is not None and len(passed) > 1 and passed[-1] - passed[0] <= within

    def _stop(self) -> None:
        self._stopped = True
        self._passed.clear()
        self._open_count = self._full_ticks = self._stopped_count = 0

    def _count_stopped(self, enough: int) -> None:
        if self._stopped_count == enough:
            self._stopped, self._stopped_count = False, 0
        else:
            self._stopped_count += 1

    def advance(self, now: int) -> Sequence[Fired]:
        if self._written is not None:
            # Where the ticks have left the gate is for the next event to ask; most often none comes.
            self.wake = self._written + self._lifetime
        return ()

    def _tick_to(self, last: int) -> None:
        while self._at < last:
            quiet = min(self._quiet(), last - self._at)
            if quiet:
                self._at += quiet
                self._count(quiet)
            else:
                self._at += 1
                self._tick()

    def _quiet(self) -> int:
        """Return how many of the next ticks only count."""
        if self._stopped:
            return FAR if self._close.ticks is None else self._close.ticks - self._stopped_count
        quiet = FAR if self._open.ticks is None else self._open.ticks - self._open_count
        if self._evict.ticks is not None and self._near():
            quiet = min(quiet, self._evict.ticks - self._full_ticks)
        return quiet

    def _count(self, ticks: int) -> None:
        if self._stopped:
            self._stopped_count += ticks if self._close.ticks is not None else 0
            return
        self._open_count += ticks if self._open.ticks is not None else 0
        if self._evict.ticks is not None:
            self._full_ticks = min(self._evict.ticks, self._full_ticks + ticks)

    def _tick(self) -> None:
        """Take one tick, in the order of rules 5.4.3."""
        if self._open.ticks is not None and not self._stopped:
            if self._open_count == self._open.ticks:
                self._stop()
            else:
                self._open_count += 1
        if self._close.ticks is not None and self._stopped:
            self._count_stopped(self._close.ticks)
        if self._evict.ticks is not None and not self._stopped:
            if self._full_ticks < self._evict.ticks:
                self._full_ticks += 1
            elif self._near():
                self._stop()

    def _due(self) -> int:
        return FAR if self._written is None else self._written + self._lifetime

    def expired(self, now: int) -> bool:
        return self._written is not None and now - self._written >= self._lifetime

    def save(self) -> dict[str, Any]:
        counts = [self._open_count, self._full_ticks, self._stopped_count, self._written, self._at]
        return {"stopped": self._stopped, "counts": counts, "passed": list(self._passed)}

    def restore(self, state: dict[str, Any]) -> None:
        self._open_count, self._full_ticks, self._stopped_count, written, self._at = state["counts"]
        self._stopped, self._passed = state["stopped"], deque(state["passed"])
        self._written, self.wake = written, written + self._lifetime
