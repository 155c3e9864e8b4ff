"""Slots of supervisors, and where the workers of a flow go (Nimbus rules 5.3)."""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from pipelines.nimbus.placement.model import SUPERVISOR_TIMEOUT_SECONDS, Supervisor

Slot = tuple[str, int]


@dataclass(eq=False)
class Draft:
    """A worker that is being planned: where it wants to be, where it is put, and its tasks so far."""

    host: str = ""
    wanted: Slot | None = None
    port: int | None = None
    tasks: list[int] = field(default_factory=list)
    slot: Slot | None = None
    node: str = ""


class Slots:
    """The free slots of all supervisors that are alive (Nimbus rules 5.1.1, 5.1.4)."""

    def __init__(self, supervisors: Iterable[Supervisor], timeout_seconds: float = SUPERVISOR_TIMEOUT_SECONDS) -> None:
        alive = (one for one in supervisors if one.silent_seconds <= timeout_seconds)
        self.supervisors = {one.id: one for one in alive}
        self.free = {one.id: sorted(set(one.ports) - set(one.used)) for one in self.supervisors.values()}
        self._changes: list[tuple[Slot, bool]] = []

    def take(self, slot: Slot) -> None:
        """Make a slot used, if there is such a free one."""
        if slot[1] in self.free.get(slot[0], ()):
            self.free[slot[0]].remove(slot[1])
            self._changes.append((slot, True))

    def give(self, slot: Slot) -> None:
        """Make a slot free, if its supervisor is alive and has it."""
        found = self.supervisors.get(slot[0])
        if found is not None and slot[1] in found.ports and slot[1] not in self.free[found.id]:
            insort(self.free[found.id], slot[1])
            self._changes.append((slot, False))

    def has(self, slot: Slot) -> bool:
        return slot[1] in self.free.get(slot[0], ())

    def used(self, one: Supervisor) -> int:
        return len(one.ports) - len(self.free[one.id])

    def open(self, hosts: Collection[str], closed: Collection[str]) -> list[Supervisor]:
        """The supervisors that a flow may use: on `hosts` if there are any, and not on closed ones."""
        if not hosts and not closed:
            return list(self.supervisors.values())
        return [
            one
            for one in self.supervisors.values()
            if (not hosts or one.host in hosts or one.id in hosts)
            and not (closed and (one.host in closed or one.id in closed))
        ]

    def undo(self) -> None:
        """Take back every change since the last `settle`."""
        while self._changes:
            slot, taken = self._changes.pop()
            if taken:
                insort(self.free[slot[0]], slot[1])
            else:
                self.free[slot[0]].remove(slot[1])

    def settle(self) -> None:
        """Let the changes so far stand."""
        self._changes.clear()

    def count(self, supervisors: Iterable[Supervisor]) -> int:
        return sum([len(self.free[one.id]) for one in supervisors])

    def by_free(self, supervisors: Iterable[Supervisor]) -> list[Supervisor]:
        """Those with most free slots first; ties in the order of their ids."""
        ranked = sorted([(-len(self.free[one.id]), one.id) for one in supervisors])
        return [self.supervisors[name] for _, name in ranked]

    def put(self, draft: Draft, one: Supervisor, port: int | None = None) -> None:
        """Put a worker on a supervisor with a free slot: on the port if it is free, else on the lowest free one."""
        free = self.free[one.id]
        chosen = port if port is not None and port in free else free[0]
        draft.slot, draft.node = (one.id, chosen), one.host
        self.take(draft.slot)


def place(
    slots: Slots, drafts: Sequence[Draft], supervisors: Sequence[Supervisor], apart: Collection[str] = ()
) -> None:
    """Put every draft into a free slot of these supervisors; there are enough of them (Nimbus rules 5.3.4).

    `apart` are hosts that the first blank workers need: one each, before the round over all. They are there where tasks
    must stand on different nodes.
    """
    _wanted(slots, drafts, supervisors)
    blank = [one for one in drafts if one.slot is None]
    for host in list(apart)[: len(blank)]:
        found = next((one for one in supervisors if one.host == host and slots.free[one.id]), None)
        if found is not None:
            slots.put(blank.pop(0), found)
    _round(slots, blank, supervisors, len(drafts))


def _wanted(slots: Slots, drafts: Sequence[Draft], supervisors: Sequence[Supervisor]) -> None:
    """Workers that want a host go there first: wanted ports before any other, so that no worker takes another's."""
    by_id = {one.id: one for one in supervisors} if any(one.wanted for one in drafts) else {}
    for draft in drafts:
        if draft.wanted is not None and draft.wanted[0] in by_id and slots.has(draft.wanted):
            slots.put(draft, by_id[draft.wanted[0]], draft.wanted[1])
    named = [one for one in drafts if one.slot is None and one.host]
    for exact in (True, False):
        for draft in named:
            here = (one for one in supervisors if draft.host in (one.host, one.id) and slots.free[one.id])
            found = next((one for one in here if not exact or slots.has((one.id, draft.port or -1))), None)
            if draft.slot is None and found is not None:
                slots.put(draft, found, draft.port)


def _round(slots: Slots, blank: Sequence[Draft], supervisors: Sequence[Supervisor], workers: int) -> None:
    """Round robin by free ports, descending, over those below the theoretical load; then over those that reached it.

    The original divided by the number of supervisors with a free slot, which is zero when user-defined workers have
    taken all of them (Nimbus rules 5.3.6): then there is no one left to place here.
    """
    if not blank:
        return
    pool = [one for one in slots.by_free(supervisors) if slots.free[one.id]]
    theory = (sum([slots.used(one) for one in pool]) + workers) // len(pool) + 1
    waiting = list(reversed(blank))
    full: list[Supervisor] = []
    _deal(slots, waiting, pool, theory, full)
    _deal(slots, waiting, slots.by_free(full), None, [])


def _deal(
    slots: Slots, waiting: list[Draft], pool: list[Supervisor], limit: int | None, full: list[Supervisor]
) -> None:
    at = 0
    while waiting and pool:
        at %= len(pool)
        one = pool[at]
        if limit is not None and slots.used(one) >= limit:
            full.append(pool.pop(at))
            continue
        slots.put(waiting.pop(), one)
        if slots.free[one.id]:
            at += 1
        else:
            pool.pop(at)
