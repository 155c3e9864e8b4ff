"""Policies: when a window is emitted, and when its events leave it. A policy is plain data; its kind says what it means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pipelines.bounds import THRESHOLD
from pipelines.errors import PolicyError

COUNT: Final = "count"
TIME: Final = "time"
TIME_DELTA_LT: Final = "time_delta_lt"


Meaning = Callable[[int | float], int] | None
"""A threshold as a number of something; None: it says nothing about that."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """The meaning of a threshold. Nothing has a default; a window asks for what it can use, and never for the kind.

    Attributes:
        unit: what labels show behind the threshold.
        events: reached after so many events.
        ticks: reached after so many seconds.
        within: reached when the first and the last event are at most so many ms apart.
        age: events of so many ms leave.
        keeps: an aggregate keeps so many events.
        stores: a join and a switch keep so many events.
    """

    unit: str
    events: Meaning
    ticks: Meaning
    within: Meaning
    age: Meaning
    keeps: Meaning
    stores: Meaning


def _ms(seconds: int | float) -> int:
    return round(seconds * 1000)


KINDS: Final[Mapping[str, Kind]] = {
    COUNT: Kind(unit="", events=int, ticks=None, within=None, age=None, keeps=int, stores=int),
    TIME: Kind(unit=" s", events=None, ticks=int, within=None, age=_ms, keeps=None, stores=None),
    TIME_DELTA_LT: Kind(unit=" s", events=None, ticks=None, within=_ms, age=None, keeps=None, stores=int),
}
"""By name. A policy of each is made by the method of `Policy` of that name."""


@dataclass(frozen=True)
class Policy:
    """A kind and its threshold (Flowmix rules 1): events for COUNT, seconds for TIME and TIME_DELTA_LT.

    A threshold of 0 is legal and never reached, as in the original (rules 5.1.4), but for TIME_DELTA_LT in sort and switch, where
    two events at the same time reach it, and for TIME and `close` in switch: the next tick or event reaches it (rules 5.4).
    """

    kind: str
    threshold: int | float

    @classmethod
    def count(cls, n: int | None = None, *, events: int | None = None) -> Policy:
        """Return the policy of `n` events: as a trigger after them; as an eviction: keep the last `n`.

        Args:
            n: how many.
            events: an older name of `n`.

        Raises:
            PolicyError: if it is not a whole number from 0 to 2^40.
        """
        if n is not None and events is not None:
            raise PolicyError(COUNT, n, f"takes one number; got events={events!r} too")
        number = n if events is None else events
        if not isinstance(number, int) or isinstance(number, bool) or number not in THRESHOLD:
            raise PolicyError(COUNT, number, f"takes {THRESHOLD} (events)")
        return cls(COUNT, number)

    @classmethod
    def time(cls, seconds: int) -> Policy:
        """Return the policy of so many seconds: as a trigger after them; as an eviction: events of this age and older leave.

        Raises:
            PolicyError: if it is not a whole number from 0 to 2^40: the clock ticks in seconds.
        """
        return cls(TIME, _whole_seconds(TIME, seconds))

    @classmethod
    def time_delta_lt(cls, seconds: int) -> Policy:
        """Return the policy that is reached when the last and the first event of the window are at most so many seconds apart.

        Raises:
            PolicyError: if it is not a whole number from 0 to 2^40.
        """
        return cls(TIME_DELTA_LT, _whole_seconds(TIME_DELTA_LT, seconds))

    @classmethod
    def of(cls, kind: str, threshold: int) -> Policy:
        """Return the policy of a kind by its name.

        Raises:
            PolicyError: if there is no such kind, or it has no such threshold.
        """
        if kind not in KINDS:
            raise PolicyError(kind, threshold, f"is unknown; the kinds are {', '.join(KINDS)}")
        return getattr(cls, kind)(threshold)

    @property
    def events(self) -> int | None:
        """After how many events it is reached; None: it counts no events."""
        return self._meant(KINDS[self.kind].events)

    @property
    def ticks(self) -> int | None:
        """After how many seconds it is reached; None: it counts no seconds."""
        return self._meant(KINDS[self.kind].ticks)

    @property
    def within(self) -> int | None:
        """Return how many ms the first and the last event are apart at most when it is reached; None: it compares none."""
        return self._meant(KINDS[self.kind].within)

    @property
    def age(self) -> int | None:
        """The age in ms at which events leave; None: none leaves for its age."""
        return self._meant(KINDS[self.kind].age)

    @property
    def keeps(self) -> int:
        """Return how many events an aggregate keeps; 0: all of them."""
        return self._meant(KINDS[self.kind].keeps) or 0

    @property
    def stores(self) -> int:
        """Return how many events a join and a switch keep; 0: all of them."""
        return self._meant(KINDS[self.kind].stores) or 0

    def _meant(self, meaning: Meaning) -> int | None:
        return None if meaning is None else meaning(self.threshold)

    def __str__(self) -> str:
        return f"{self.kind} {self.threshold}{KINDS[self.kind].unit}"


def _whole_seconds(kind: str, seconds: int) -> int:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or seconds not in THRESHOLD or seconds != int(seconds):
        raise PolicyError(kind, seconds, f"takes {THRESHOLD} (seconds): the clock ticks once a second")
    return int(seconds)
