"""The life of a deployed flow: ACTIVE, INACTIVE, REBALANCING, KILLED and what leads from one to the other.

A pure state machine (Nimbus rules 1.3): `step` takes a standing, an event and the time, and returns the next standing and
what is to be done. A delay is a due time in the standing, never a sleep; whoever keeps the standings calls `fire`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from pipelines.bounds import TASKS, WORKERS, OutOfBoundsError, Range
from pipelines.nimbus.errors import NoTransitionError, RebalanceError

DEFAULT_WAIT_SECONDS = 30.0
"""The message time-out of a flow that sets none, and the delay for a negative `wait_seconds`."""

REMOVED_SETTINGS = frozenset(
    {
        "topology.submitter.principal",
        "topology.submitter.user",
        "storm.zookeeper.superACL",
        "storm.zookeeper.topology.auth.scheme",
        "storm.zookeeper.topology.auth.payload",
        "storm.local.hostname",
    }
)
"""The original's settings that are left out of a rebalance without a word (Nimbus rules 1.3); no flow has them here."""
PROTECTED_SETTINGS = REMOVED_SETTINGS | {"owner", "lake", "checkpoint", "host"}
"""Settings that a rebalance never overrides, this house's own too: whose the flow is, where its tables and checkpoints lie."""


class Status(StrEnum):
    """The status of a deployed flow."""

    ACTIVE = "ACTIVE"  # batches are opened
    INACTIVE = "INACTIVE"  # no batch is opened; open ones go on to their commit
    REBALANCING = "REBALANCING"  # it drains, to be assigned again
    KILLED = "KILLED"  # it drains, to be removed


class FlowEvent(StrEnum):
    """The events of a deployed flow."""

    ACTIVATE = "ACTIVATE"
    INACTIVATE = "INACTIVATE"
    REBALANCE = "REBALANCE"
    KILL = "KILL"
    DO_REBALANCE = "DO_REBALANCE"  # the delay of a rebalance is over
    REMOVE = "REMOVE"  # the delay of a kill is over
    GAIN_LEADERSHIP = "GAIN_LEADERSHIP"  # another nimbus leads now


SYSTEM_EVENTS = frozenset({FlowEvent.DO_REBALANCE, FlowEvent.REMOVE, FlowEvent.GAIN_LEADERSHIP})
"""Events that nobody asks for: where the status has no transition for one, nothing happens."""


class Action(StrEnum):
    """The work of a standing's keeper after a step."""

    REASSIGN = "REASSIGN"  # apply the request, forget the old assignment and assign the flow from scratch
    REMOVE = "REMOVE"  # remove assignment, beats and the flow itself


@dataclass(frozen=True)
class Request:
    """The request of a rebalance.

    Attributes:
        workers: The number of workers, None to keep it.
        parallelism: Component to its number of executors; those not named keep theirs.
    """

    workers: int | None = None
    parallelism: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for a store that keeps JSON."""
        return {"workers": self.workers, "parallelism": dict(self.parallelism), "settings": dict(self.settings)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Request:
        """Read what `to_json` wrote."""
        return cls(**values)


@dataclass(frozen=True)
class Due:
    """An event that comes by itself, and when (seconds of the keeper's clock)."""

    event: FlowEvent
    at: float


@dataclass(frozen=True)
class Standing:
    """A flow's status and all that belongs to it.

    Attributes:
        flow: The id of the deployed flow, for messages.
        previous: While REBALANCING: the status that it returns to.
        wait_seconds: While REBALANCING or KILLED: the delay that was asked for.
        due: While REBALANCING or KILLED: what ends it, and when.
        request: While REBALANCING: what is to change.
    """

    flow: str
    status: Status = Status.ACTIVE
    previous: Status | None = None
    wait_seconds: float | None = None
    due: Due | None = None
    request: Request | None = None

    @property
    def accepting(self) -> bool:
        """Return whether new batches are opened."""
        return self.status is Status.ACTIVE


@dataclass(frozen=True)
class Transition:
    """The outcome of an event: the next standing (None: the flow is gone) and what is to be done."""

    standing: Standing | None
    action: Action | None = None
    request: Request | None = None


@dataclass(frozen=True)
class _Circumstances:
    """An event's circumstances."""

    now: float
    delay: float
    request: Request


def delay_seconds(wait_seconds: float | None, message_timeout_seconds: float | None = None) -> float:
    """Return how long a kill or a rebalance waits: `wait_seconds`, else the flow's message time-out, else 30 s.

    A negative number means 30 s (Nimbus rules 4).
    """
    given = message_timeout_seconds if wait_seconds is None else wait_seconds
    if given is None:
        return DEFAULT_WAIT_SECONDS
    if not math.isfinite(given):
        raise ValueError(f"a number of seconds to wait cannot be {given}")
    return DEFAULT_WAIT_SECONDS if given < 0 else float(given)


def check_request(flow: str, request: Request, components: Collection[str]) -> Request:
    """Return the request as it may be applied: without the protected settings (Nimbus rules 1.3).

    Args:
        components: The flow's components. Ids of the system's own (`__acker`) need not be among them.

    Raises:
        RebalanceError: A component is unknown, a number is not a whole number above 0, or the time-out is no number.
    """
    valid = ",".join(sorted(components))
    for component, executors in request.parallelism.items():
        if component not in components and not component.startswith("__"):
            problem = f"Invalid component {component} for topology {flow}, valid values are {valid}"
            raise RebalanceError(flow, problem, component=component, value=executors)
        if not _is_count(executors):
            problem = "Number of executors must be greater than 0"
            raise RebalanceError(flow, problem, component=component, value=executors)
        _check_most(flow, f"parallelism of {component}", executors, TASKS, component)
    if request.workers is not None and not _is_count(request.workers):
        raise RebalanceError(flow, "Number of workers must be greater than 0", value=request.workers)
    _check_most(flow, "number of workers", request.workers or 1, WORKERS)
    check_timeout(flow, request.settings)
    kept = {name: value for name, value in request.settings.items() if name not in PROTECTED_SETTINGS}
    return replace(request, settings=kept)


def check_timeout(flow: str, settings: Mapping[str, Any]) -> None:
    """Check the time-out: one that is no number would only be found by the kill that needs it."""
    seen = settings.get("message_timeout_seconds")
    if seen is None or (isinstance(seen, int | float) and not isinstance(seen, bool) and math.isfinite(seen)):
        return
    raise RebalanceError(flow, f"message_timeout_seconds must be a finite number, not {seen!r}", value=seen)


def _check_most(flow: str, what: str, number: int, limit: Range, component: str | None = None) -> None:
    try:
        limit.taken(number)
    except OutOfBoundsError as error:
        raise RebalanceError(flow, f"the {what} {error}", component=component, value=number) from None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def step(
    standing: Standing,
    event: FlowEvent,
    *,
    now: float,
    wait_seconds: float | None = None,
    message_timeout_seconds: float | None = None,
    request: Request | None = None,
) -> Transition:
    """Apply one event (Nimbus rules 1.3).

    Args:
        now: The time, in seconds.
        wait_seconds: The delay of a KILL or REBALANCE.
        message_timeout_seconds: The delay where `wait_seconds` is None.
        request: What a REBALANCE changes, checked by `check_request`; None: nothing but the places.

    Raises:
        NoTransitionError: The status has no transition for it, and it is no system event.
    """
    transition = _TRANSITIONS[standing.status].get(event)
    if transition is None:
        if event in SYSTEM_EVENTS:
            return Transition(standing)
        raise NoTransitionError(event, standing.status, standing.flow)
    delay = delay_seconds(wait_seconds, message_timeout_seconds)
    return transition(standing, _Circumstances(now, delay, request or Request()))


def fire(standing: Standing, *, now: float) -> Transition | None:
    """Apply the event that has come due; None if there is none yet."""
    if standing.due is None or standing.due.at > now:
        return None
    return step(standing, standing.due.event, now=now)


def _stay(standing: Standing, _: _Circumstances) -> Transition:
    return Transition(standing)


def _activate(standing: Standing, _: _Circumstances) -> Transition:
    return Transition(replace(standing, status=Status.ACTIVE))


def _inactivate(standing: Standing, _: _Circumstances) -> Transition:
    return Transition(replace(standing, status=Status.INACTIVE))


def _rebalance(standing: Standing, happening: _Circumstances) -> Transition:
    return Transition(
        replace(
            standing,
            status=Status.REBALANCING,
            previous=standing.status,
            wait_seconds=happening.delay,
            due=Due(FlowEvent.DO_REBALANCE, happening.now + happening.delay),
            request=happening.request,
        )
    )


def _do_rebalance(standing: Standing, _: _Circumstances) -> Transition:
    # A standing of REBALANCING always has its previous status; ACTIVE is for one that some other hand wrote.
    back = Standing(standing.flow, standing.previous or Status.ACTIVE)
    return Transition(back, Action.REASSIGN, standing.request or Request())


def _kill(standing: Standing, happening: _Circumstances) -> Transition:
    """Set KILLED at once; a rebalance under way is dropped, and the delay of an earlier kill is replaced."""
    due = Due(FlowEvent.REMOVE, happening.now + happening.delay)
    return Transition(Standing(standing.flow, Status.KILLED, wait_seconds=happening.delay, due=due))


def _remove(_: Standing, __: _Circumstances) -> Transition:
    return Transition(None, Action.REMOVE)


def _wait_again(standing: Standing, happening: _Circumstances) -> Transition:
    """Let a new leader wait the whole delay again: it cannot know how much of the drain the old one has seen."""
    if standing.due is None:
        return Transition(standing)
    wait = DEFAULT_WAIT_SECONDS if standing.wait_seconds is None else standing.wait_seconds
    return Transition(replace(standing, due=Due(standing.due.event, happening.now + wait)))


_TRANSITIONS: Mapping[Status, Mapping[FlowEvent, Callable[[Standing, _Circumstances], Transition]]] = {
    Status.ACTIVE: {
        FlowEvent.INACTIVATE: _inactivate,
        FlowEvent.ACTIVATE: _stay,
        FlowEvent.REBALANCE: _rebalance,
        FlowEvent.KILL: _kill,
    },
    Status.INACTIVE: {
        FlowEvent.ACTIVATE: _activate,
        FlowEvent.INACTIVATE: _stay,
        FlowEvent.REBALANCE: _rebalance,
        FlowEvent.KILL: _kill,
    },
    Status.REBALANCING: {
        FlowEvent.GAIN_LEADERSHIP: _wait_again,
        FlowEvent.KILL: _kill,
        FlowEvent.DO_REBALANCE: _do_rebalance,
    },
    Status.KILLED: {
        FlowEvent.GAIN_LEADERSHIP: _wait_again,
        FlowEvent.KILL: _kill,
        FlowEvent.REMOVE: _remove,
    },
}
