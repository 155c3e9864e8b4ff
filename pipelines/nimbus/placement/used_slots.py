"""The slots that flows hold while the leader places one application after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pipelines.nimbus.placement.model import Supervisor
from pipelines.nimbus.registry.records import AssignmentRecord, SupervisorBeat

Slot = tuple[str, int]


class UsedSlots:
    """Who holds what, kept up to date in one round of the leader. Asking costs nothing for hosts where nothing has changed.

    Args:
        beats: The supervisors that are known.
        records: The assignments at the round's begin, by the flow's serial.
        now: Seconds since 1970.
    """

    def __init__(self, beats: Sequence[SupervisorBeat], records: Mapping[int, AssignmentRecord], now: float) -> None:
        self._beats, self._now = {one.supervisor: one for one in beats}, now
        self._of_flow = {
            serial: frozenset((worker.supervisor, worker.port) for worker in record.workers)
            for serial, record in records.items()
        }
        self._flows_in = Counter(slot for slots in self._of_flow.values() for slot in slots)
        self._ports: dict[str, set[int]] = {}
        for supervisor, port in self._flows_in:
            self._ports.setdefault(supervisor, set()).add(port)
        self._made: dict[str, Supervisor] = {}

    def supervisors(self) -> list[Supervisor]:
        """The supervisors as the planner wants them, with what all flows hold."""
        for name in self._beats.keys() - self._made.keys():
            self._made[name] = self._supervisor(self._beats[name])
        return [self._made[name] for name in self._beats]

    def place(self, serial: int, slots: Iterable[Slot]) -> None:
        """A flow holds these slots from now on, and no others."""
        before, after = self._of_flow.get(serial, frozenset()), frozenset(slots)
        self._of_flow[serial] = after
        self._flows_in.update(after - before)
        self._flows_in.subtract(before - after)
        for supervisor, port in before ^ after:
            ports = self._ports.setdefault(supervisor, set())
            (ports.add if self._flows_in[supervisor, port] > 0 else ports.discard)(port)
            self._made.pop(supervisor, None)

    def _supervisor(self, beat: SupervisorBeat) -> Supervisor:
        return Supervisor(
            beat.supervisor,
            beat.ports,
            used=sorted(self._ports.get(beat.supervisor, ())),
            host=beat.host,
            silent_seconds=max(0.0, self._now - beat.beat_at),
        )
