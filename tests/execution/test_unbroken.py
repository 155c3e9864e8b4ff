"""What an interrupt finds: whole work, and its own handler."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from pipelines.execution.batch.deferred_signals import unbroken


class AskedError(Exception):
    """What a handler of these tests raises."""


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    def ask(number: int, frame: object) -> None:
        raise AskedError(signal.Signals(number).name)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_interrupt_comes_when_the_work_is_through(number: signal.Signals) -> None:
    done = []
    with pytest.raises(AskedError, match=number.name):  # noqa: PT012
        with unbroken():
            signal.raise_signal(number)
            done.append("whole")
        done.append("too far")
    assert done == ["whole"]
    with pytest.raises(AskedError):
        signal.raise_signal(number)


def test_an_error_of_the_work_is_told_beside_it() -> None:
    with pytest.raises(AskedError) as caught, unbroken():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        raise ValueError("of the work")
    assert isinstance(caught.value.__context__, ValueError)


def test_nothing_is_held_in_another_thread() -> None:
    seen = []

    def look() -> None:
        before = signal.getsignal(signal.SIGINT)
        with unbroken():
            seen.append(signal.getsignal(signal.SIGINT) is before)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [True]
