"""Work that an interrupt does not cut in two: it ends first, then the interrupt comes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ASKED_TO_END = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def unbroken() -> Iterator[None]:
    """Hold back what asks this process to end (a cancelled run, Ctrl-C) until the block is through.

    Only the main thread hears of such signals; in another one the block runs as it is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        held.append(number)

    before = {number: signal.getsignal(number) for number in _ASKED_TO_END}
    try:
        for number in _ASKED_TO_END:
            signal.signal(number, hold)
        yield
    finally:
        for number, handler in before.items():
            # None stands for a handler that is not Python's, which Python cannot put back.
            if handler is not None:
                signal.signal(number, handler)
        if held:
            signal.raise_signal(held[0])
