"""What the leader knows of used slots in the middle of a round is what a count over all flows gives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipelines.nimbus.processes.application_plan import UsedSlots
from pipelines.nimbus.registry.records import AssignmentRecord, SupervisorBeat, WorkerRecord

HOSTS, PORTS = ("a", "b", "c"), (6900, 6901)
slots = st.sets(st.tuples(st.sampled_from(HOSTS), st.sampled_from(PORTS)), max_size=4)
placings = st.lists(st.tuples(st.integers(1, 4), slots), max_size=8)


def beats() -> list[SupervisorBeat]:
    return [SupervisorBeat(host, host, PORTS, started_at=0.0, beat_at=7.0) for host in HOSTS]


def record(held: set[tuple[str, int]]) -> AssignmentRecord:
    return AssignmentRecord(1, "NEW", 1, 0.0, tuple(WorkerRecord(host, port, (), {}) for host, port in sorted(held)))


@given(st.dictionaries(st.integers(1, 4), slots, max_size=4), placings)
def test_as_a_count_over_all_flows(before: dict[int, set[tuple[str, int]]], then: list[tuple[int, set]]) -> None:
    used = UsedSlots(beats(), {serial: record(held) for serial, held in before.items()}, now=10.0)
    holds = dict(before)
    for serial, held in [*then, (9, set())]:
        used.place(serial, held)
        holds[serial] = held
        expected = {
            host: sorted({port for slots in holds.values() for at, port in slots if at == host}) for host in HOSTS
        }
        found = used.supervisors()
        assert {one.id: list(one.used) for one in found} == expected
        assert [one.id for one in found] == list(HOSTS)
        assert {one.silent_seconds for one in found} == {3.0}
