"""Policies: when a window is emitted, and when its events leave it. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pipelines.errors import PolicyError

COUNT: Final = "count"
TIME: Final = "time"
TIME_DELTA_LT: Final = "time_delta_lt"


@dataclass(frozen=True)
class Policy:
    """A kind and its threshold (Flowmix rules 1): events for COUNT, seconds for TIME and TIME_DELTA_LT.

    A threshold of 0 is legal and never reached, as in the original (rules 5.1.4).
    """

    kind: str
    threshold: int | float

    @classmethod
    def count(cls, events: int) -> Policy:
        """After so many events; as an eviction: keep the last so many.

        Raises:
            PolicyError: if it is not a whole number from 0.
        """
        if not isinstance(events, int) or isinstance(events, bool) or events < 0:
            raise PolicyError(COUNT, events, "takes a whole number of events, 0 or more")
        return cls(COUNT, events)

    @classmethod
    def time(cls, seconds: int) -> Policy:
        """After so many seconds; as an eviction: events of this age and older leave.

        Raises:
            PolicyError: if it is not a whole number from 0: the clock ticks in seconds.
        """
        return cls(TIME, _whole_seconds(TIME, seconds))

    @classmethod
    def time_delta_lt(cls, seconds: int) -> Policy:
        """When the last and the first event of the window are at most so many seconds apart.

        Raises:
            PolicyError: if it is not a whole number from 0.
        """
        return cls(TIME_DELTA_LT, _whole_seconds(TIME_DELTA_LT, seconds))

    @property
    def milliseconds(self) -> int:
        """The threshold of a TIME or TIME_DELTA_LT policy in ms."""
        return round(self.threshold * 1000)

    def __str__(self) -> str:
        return f"{self.kind} {self.threshold}{'' if self.kind == COUNT else ' s'}"


def _whole_seconds(kind: str, seconds: int) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds < 0 or seconds != int(seconds):
        raise PolicyError(kind, seconds, "takes a whole number of seconds, 0 or more: the clock ticks once a second")
    return int(seconds)
