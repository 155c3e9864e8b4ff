"""Hosts that fail again and again are left out for a while (Nimbus rules 2.6)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping

from pipelines.nimbus.placement.model import Supervisor


class Blacklist:
    """Counts in each round of nimbus which supervisors and slots are missing, and says which hosts to leave out.

    Args:
        tolerance_seconds: The time over which failures are counted.
        tolerance_count: So many rounds with a failure in that time are too many.
        resume_seconds: How long a supervisor then stays on the list.
        round_seconds: The time from one round to the next.
        bad_slots: Whether a missing slot is a failure of its supervisor.
    """

    def __init__(
        self,
        *,
        tolerance_seconds: int = 300,
        tolerance_count: int = 3,
        resume_seconds: int = 1800,
        round_seconds: int = 10,
        bad_slots: bool = True,
    ) -> None:
        self._tolerance, self._bad_slots = tolerance_count, bad_slots
        self._resume_rounds = max(resume_seconds // round_seconds, 1)
        self._window: deque[dict[str, list[int]]] = deque(maxlen=max(tolerance_seconds // round_seconds, 1))
        self._listed: dict[str, int] = {}
        self.known: dict[str, frozenset[int]] = {}
        """The slots that each supervisor has shown, but for those missing during the whole time."""
        self.grey: tuple[str, ...] = ()
        """Supervisors that the last round released because slots were short: bad, and to be used last."""

    def round(self, seen: Iterable[Supervisor], *, wanted: int = 0, failed: Iterable[str] = ()) -> tuple[str, ...]:
        """Count one round.

        Args:
            seen: The supervisors that are alive now, with the slots they show now.
            wanted: How many slots are to be given to flows.
            failed: Supervisors that did not take an assignment: a failure too.

        Returns:
            The hosts to leave out, by name; of those that are alive.
        """
        here = {member.id: member for member in seen}
        self._listed = {name: left - 1 for name, left in self._listed.items() if left > 1}
        self._window.append(self._missing(here, failed))
        for supervisor, count in Counter(name for past in self._window for name in past).items():
            if count >= self._tolerance:
                self._listed.setdefault(supervisor, self._resume_rounds)
        self._release(here, wanted)
        self._forget(here)
        return tuple(sorted({here[name].host for name in self._listed if name in here}))

    def _missing(self, here: Mapping[str, Supervisor], failed: Iterable[str]) -> dict[str, list[int]]:
        """Return the known supervisors and slots that are missing now; new ones become known."""
        missing: dict[str, list[int]] = {name: [] for name in failed if name in here}
        for name, ports in self.known.items():
            gone = ports.difference(here[name].ports) if name in here else ports
            if name not in here or (gone and self._bad_slots):
                missing[name] = sorted(gone)
        for supervisor in here.values():
            self.known[supervisor.id] = self.known.get(supervisor.id, frozenset()).union(supervisor.ports)
        return missing

    def _release(self, here: Mapping[str, Supervisor], wanted: int) -> None:
        """Take hosts from the list, in the order of their names, until the others have the slots that are wanted."""
        free = {supervisor.id: len(set(supervisor.ports).difference(supervisor.used)) for supervisor in here.values()}
        bad = {here[name].host for name in self._listed if name in here}
        short = wanted - sum(count for name, count in free.items() if here[name].host not in bad)
        released: list[str] = []
        for host in sorted(bad):
            if short <= 0:
                break
            short -= sum(count for name, count in free.items() if here[name].host == host)
            released += [name for name in self._listed if name in here and here[name].host == host]
        for supervisor_id in released:
            del self._listed[supervisor_id]
        self.grey = tuple(sorted(released))

    def _forget(self, here: Mapping[str, Supervisor]) -> None:
        """Forget what was missing in every round of the time: it has been taken away, and is no failure."""
        if len(self._window) < (self._window.maxlen or 0):
            return
        for name in list(self.known):
            always = frozenset(self._window[0].get(name, ())).intersection(
                *(past.get(name, ()) for past in self._window)
            )
            left = self.known[name] - always
            if always:
                self.known[name] = left
            if not left and name not in here:
                del self.known[name]
