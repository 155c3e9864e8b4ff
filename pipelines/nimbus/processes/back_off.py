"""The time that something that failed waits before it is tried again."""

from __future__ import annotations

# Two to this power are more seconds than any longest pause; a power of a count that grows for a day is no float any more.
_DOUBLINGS = 30


def pause_after(failures: int, longest: float) -> float:
    """Return the pause after some failures in a row: 1 s after the first one, then twice the one before.

    Args:
        failures: How many, from 1.
    """
    return min(longest, 2.0 ** min(failures - 1, _DOUBLINGS))
