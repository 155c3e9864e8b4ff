"""Waiting for a flow that was changed: what it was before still runs for a moment, and is not what is waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from pipelines.nimbus.errors import WaitError
from pipelines.nimbus.registry.lifecycle import Status
from pipelines.nimbus.status import FlowStatus

_POLL_SECONDS = 0.2


class Seen(Protocol):
    """What is asked: a `Nimbus`."""

    def flow(self, name: str) -> FlowStatus:
        """A deployed flow."""


def runs_again(
    nimbus: Seen,
    before: FlowStatus,
    *,
    seconds: float,
    new_process: bool,
    sleep: Callable[[float], None] = time.sleep,
) -> FlowStatus:
    """Wait until every query of an updated or rebalanced flow runs as it is to run now.

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
    deadline = time.monotonic() + seconds
    while True:
        now = nimbus.flow(before.name)
        if now.status == Status.ACTIVE and now.running and not old & {task.pid for task in now.tasks}:
            return now
        if time.monotonic() >= deadline:
            raise WaitError(before.name, "running again", seconds, _where(now))
        sleep(_POLL_SECONDS)


def _where(now: FlowStatus) -> str:
    states = ", ".join(f"{task.group} {task.state}" for task in now.tasks) or "no queries"
    why = now.problem or now.last_error
    return f"{now.status}; {states}" + (f"; {why}" if why else "")
