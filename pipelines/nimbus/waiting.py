"""Waiting for a deployed flow: until it stands as it is wanted, or runs again after a change."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from pipelines.nimbus.errors import WaitError
from pipelines.nimbus.status import FlowStatus

POLL_SECONDS = 0.2


class Seen(Protocol):
    """The part of a `Nimbus` that waiting needs."""

    def flow(self, name: str) -> FlowStatus:
        """Return a deployed flow."""


def wait_until(
    nimbus: Seen,
    flow: str,
    reached: Callable[[FlowStatus], bool],
    until: str,
    seconds: float,
    sleep: Callable[[float], None] = time.sleep,
) -> FlowStatus:
    """Wait until a flow stands as it is wanted.

    Args:
        nimbus: Where it is deployed.
        flow: Its name.
        reached: Says whether it does.
        until: The same in words, for the error.
        seconds: For how long.
        sleep: Pauses between two looks.

    Raises:
        NotAliveError: It is not deployed, or was removed meanwhile.
        WaitError: It has not come there in time; the text says where it stands.
    """
    deadline = time.monotonic() + seconds
    while True:
        now = nimbus.flow(flow)
        if reached(now):
            return now
        if time.monotonic() >= deadline:
            raise WaitError(flow, until, seconds, _where(now))
        sleep(POLL_SECONDS)


def runs_again(
    nimbus: Seen,
    before: FlowStatus,
    *,
    seconds: float,
    new_process: bool,
    sleep: Callable[[float], None] = time.sleep,
) -> FlowStatus:
    """Wait until every query of an updated or rebalanced flow runs as it is to run now: what it was still runs for a moment.

    Args:
        nimbus: Where it is deployed.
        before: The flow before the change.
        seconds: For how long.
        new_process: Whether the change needs other processes: a new version does, for imported code stays as it was.
        sleep: Pauses between two looks.

    Raises:
        NotAliveError: It was removed meanwhile.
        WaitError: It does not run in time; the text says where it stands.
    """
    old = {task.pid for task in before.tasks if task.pid is not None} if new_process else set()

    def reached(now: FlowStatus) -> bool:
        return now.status == "ACTIVE" and now.running and not old & {task.pid for task in now.tasks}

    return wait_until(nimbus, before.name, reached, "running again", seconds, sleep)


def _where(now: FlowStatus) -> str:
    states = ", ".join(f"{task.group} {task.state}" for task in now.tasks) or "no queries"
    why = now.problem or now.last_error
    return f"{now.status}; {states}" + (f"; {why}" if why else "")
