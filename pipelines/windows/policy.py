"""Policies: when a window is emitted, and when its events leave it. A policy is plain data; its kind says what it means."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pipelines.errors import PolicyError

COUNT: Final = "count"
TIME: Final = "time"
TIME_DELTA_LT: Final = "time_delta_lt"


class Kind(ABC):
    """What a threshold means, for a trigger and for an eviction. Nothing has a default.

    A window asks a policy for what it can use, and never for its kind; None (0 where events are kept): nothing of that sort.
    """

    unit: str
    """Behind the threshold in labels."""

    @abstractmethod
    def events(self, threshold: int | float) -> int | None:
        """After how many events it is reached."""

    @abstractmethod
    def ticks(self, threshold: int | float) -> int | None:
        """After how many seconds it is reached."""

    @abstractmethod
    def within(self, threshold: int | float) -> int | None:
        """It is reached when the first and the last event are at most so many ms apart."""

    @abstractmethod
    def age(self, threshold: int | float) -> int | None:
        """Return the age in ms at which events leave."""

    @abstractmethod
    def keeps(self, threshold: int | float) -> int:
        """Return how many events an aggregate keeps; 0: all of them."""

    @abstractmethod
    def stores(self, threshold: int | float) -> int:
        """Return how many events a join and a switch keep; 0: all of them."""


class _Count(Kind):
    unit = ""

    def events(self, threshold: int | float) -> int | None:
        return int(threshold)

    def ticks(self, threshold: int | float) -> int | None:
        return None

    def within(self, threshold: int | float) -> int | None:
        return None

    def age(self, threshold: int | float) -> int | None:
        return None

    def keeps(self, threshold: int | float) -> int:
        return int(threshold)

    def stores(self, threshold: int | float) -> int:
        return int(threshold)


class _Time(Kind):
    unit = " s"

    def events(self, threshold: int | float) -> int | None:
        return None

    def ticks(self, threshold: int | float) -> int | None:
        return int(threshold)

    def within(self, threshold: int | float) -> int | None:
        return None

    def age(self, threshold: int | float) -> int | None:
        return round(threshold * 1000)

    def keeps(self, threshold: int | float) -> int:
        return 0

    def stores(self, threshold: int | float) -> int:
        return 0


class _TimeDelta(Kind):
    unit = " s"

    def events(self, threshold: int | float) -> int | None:
        return None

    def ticks(self, threshold: int | float) -> int | None:
        return None

    def within(self, threshold: int | float) -> int | None:
        return round(threshold * 1000)

    def age(self, threshold: int | float) -> int | None:
        return None

    def keeps(self, threshold: int | float) -> int:
        return 0

    def stores(self, threshold: int | float) -> int:
        return int(threshold)


KINDS: Final[Mapping[str, Kind]] = {COUNT: _Count(), TIME: _Time(), TIME_DELTA_LT: _TimeDelta()}
"""By name. A policy of each is made by the method of `Policy` of that name."""


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
        """Return when the last and the first event of the window are at most so many seconds apart.

        Raises:
            PolicyError: if it is not a whole number from 0.
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
        return KINDS[self.kind].events(self.threshold)

    @property
    def ticks(self) -> int | None:
        """After how many seconds it is reached; None: it counts no seconds."""
        return KINDS[self.kind].ticks(self.threshold)

    @property
    def within(self) -> int | None:
        """Return how many ms the first and the last event are apart at most when it is reached; None: it compares none."""
        return KINDS[self.kind].within(self.threshold)

    @property
    def age(self) -> int | None:
        """The age in ms at which events leave; None: none leaves for its age."""
        return KINDS[self.kind].age(self.threshold)

    @property
    def keeps(self) -> int:
        """Return how many events an aggregate keeps; 0: all of them."""
        return KINDS[self.kind].keeps(self.threshold)

    @property
    def stores(self) -> int:
        """Return how many events a join and a switch keep; 0: all of them."""
        return KINDS[self.kind].stores(self.threshold)

    def __str__(self) -> str:
        return f"{self.kind} {self.threshold}{KINDS[self.kind].unit}"


def _whole_seconds(kind: str, seconds: int) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds < 0 or seconds != int(seconds):
        raise PolicyError(kind, seconds, "takes a whole number of seconds, 0 or more: the clock ticks once a second")
    return int(seconds)
