"""Batches of a crowd of queries: few at a time, in order, and nobody waits for what is long, idle or gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pipelines.execution.runners.admission import _FRESH_SECONDS, _LONG_SECONDS, _STARTING_SECONDS, Admission


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def stays() -> bool:
    return False


def within(seconds: float, reached: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < until
        time.sleep(0.001)


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_query_alone_never_waits() -> None:
    asked = list[None]()
    turns = Admission(1, clock=Clock()).query(lambda: asked.append(None) or False)
    for _ in range(100):
        turns.begin()
        turns.end(another=True)
    assert len(asked) == 101, "before the first batch and behind each; each wait would ask once more"


def test_turns_come_in_the_order_in_which_they_were_asked_for() -> None:
    admission, order = Admission(1), list[int]()
    first = admission.query(stays)
    first.begin()

    def run(number: int) -> None:
        turns = admission.query(stays)
        turns.begin()
        order.append(number)
        turns.end(another=False)

    threads = []
    for number in range(5):
        threads.append(in_thread(lambda number=number: run(number)))
        within(30, lambda number=number: len(admission._waiting) == number + 1)
    assert order == []
    first.end(another=False)
    for thread in threads:
        thread.join(30)
    assert order == [0, 1, 2, 3, 4]


def test_a_batch_that_ends_waits_behind_those_that_wait_already() -> None:
    admission, order = Admission(1), list[str]()
    first, second = admission.query(stays), admission.query(stays)
    first.begin()
    waits = in_thread(lambda: (second.begin(), order.append("second"), second.end(another=False)))
    within(30, lambda: len(admission._waiting) == 1)
    first.end(another=True)
    order.append("first")
    first.begin()
    waits.join(30)
    assert order == ["second", "first"]


def test_a_long_batch_keeps_nobody_waiting() -> None:
    clock = Clock()
    admission = Admission(1, clock=clock)
    admission.query(stays).begin()
    waits = in_thread(admission.query(stays).begin)
    within(30, lambda: len(admission._waiting) == 1)
    clock.now += _LONG_SECONDS + 0.01
    waits.join(30)
    assert not waits.is_alive()


def test_a_query_that_has_nothing_to_read_keeps_nobody_waiting() -> None:
    clock = Clock()
    admission = Admission(1, clock=clock)
    idle = admission.query(stays)
    idle.begin()
    idle.end(another=True)
    clock.now += _STARTING_SECONDS + 0.01
    other = admission.query(stays)
    other.begin()
    # Its rows are chosen: it goes on at once, beside the other.
    idle.begin()
    other.end(another=False)
    idle.end(another=True)
    clock.now += _FRESH_SECONDS + 0.01
    admission.query(stays).begin()
    late = in_thread(idle.begin)
    within(30, lambda: len(admission._waiting) == 1)
    clock.now += _LONG_SECONDS
    late.join(30)
    assert not late.is_alive()


def test_a_query_that_drains_stops_waiting_and_leaves_no_trace() -> None:
    admission, drains = Admission(1), threading.Event()
    admission.query(stays).begin()
    waits = in_thread(admission.query(drains.is_set).begin)
    within(30, lambda: len(admission._waiting) == 1)
    drains.set()
    waits.join(30)
    assert not waits.is_alive()
    assert not admission._waiting


def test_a_batch_that_fails_gives_its_turn_back() -> None:
    admission = Admission(1)
    turns = admission.query(stays)
    turns.begin()
    turns.end(another=False)
    admission.query(stays).begin()
    assert len(admission._counted) == 1


def test_a_crowd_never_runs_more_than_its_number_and_each_comes_to_its_turn() -> None:
    # Its clock stands still, so no turn runs out.
    admission, running, most, done = Admission(3, clock=Clock()), set[int](), [0], dict.fromkeys(range(20), 0)

    def run(number: int) -> None:
        turns = admission.query(stays)
        for _ in range(10):
            turns.begin()
            running.add(number)
            most[0] = max(most[0], len(running))
            time.sleep(0.001)
            done[number] += 1
            running.discard(number)
            turns.end(another=True)
        turns.begin()
        turns.end(another=False)

    threads = [in_thread(lambda number=number: run(number)) for number in done]
    for thread in threads:
        thread.join(60)
    assert set(done.values()) == {10}
    assert not admission._waiting
    assert most[0] <= 3
