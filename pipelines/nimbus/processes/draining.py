"""The time that the tasks of a worker have to drain, and a query to stop: what has not by then is cut off."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from pipelines.nimbus import deployed
from pipelines.nimbus.processes.task import Key, Task
from pipelines.nimbus.registry.lifecycle import Status, delay_seconds

if TYPE_CHECKING:
    from pipelines.nimbus.registry.records import DeployedFlow

# So long a query may take to stop, and its attempt to be withdrawn, also where a worker has no time to end.
_WITHDRAW_SECONDS = 5.0

# So long a batch that nobody has asked to be stopped may take before a worker that restarts cuts it off: it may only be slow, and
# one that is half done is finished by the gates that began it.
_SLOW_SECONDS = 600.0


class Draining:
    """The times of a worker's tasks.

    Args:
        stop_seconds: Within which a worker ends.
        ending: Whether it ends.
    """

    def __init__(self, stop_seconds: float, ending: threading.Event) -> None:
        self._stop_seconds, self._ending = stop_seconds, ending
        self._leave_by: dict[Key, float] = {}
        """Until when tasks may drain that are not to run here any more."""
        self.rebalanced: set[Key] = set()
        """Tasks that a rebalance drains, or has drained."""
        self._ending_since, self._hurried_at = 0.0, 0.0
        """Since when a round has seen that it ends, and that what has not drained is to stop; 0: not yet."""

    def has_time(self, key: Key, flow: DeployedFlow | None, beside: Iterable[DeployedFlow] = ()) -> bool:
        """Return whether a task that is not to run here any more may drain: its new place waits for its lease.

        A rebalance has drained it for as long as it was to. Whatever else moves it (slots that come late, a flow that joins,
        an update) has not, also where it drains already: for a new version, a restart of its worker, or a deactivation. A kill or
        a rebalance that is under way has its own wait.

        Args:
            flow: Its flow; None: it is not deployed any more.
            beside: The flows that are to run here.
        """
        if flow is None:
            return False
        if key not in self._leave_by:
            seconds = 0.0 if key in self.rebalanced else _drain_seconds(flow)
            self._leave_by[key] = time.monotonic() + seconds
        if self._ending.is_set() and len(deployed.applications_of(deployed.readable([flow, *beside]))) > 1:
            # Another application has got the slot, and waits for the end of this process.
            self._leave_by[key] = min(self._leave_by[key], time.monotonic() + self._stop_seconds)
        elif not goes_on(flow):
            # A kill, or another rebalance, has come meanwhile; its end tells.
            return True
        return time.monotonic() < self._leave_by[key]

    def stays(self, key: Key) -> bool:
        """Note that a task is to run here. Return whether it was not to before, and so has drained."""
        return self._leave_by.pop(key, None) is not None

    def forget(self, key: Key) -> None:
        """Forget a task that has ended."""
        self._leave_by.pop(key, None)
        self.rebalanced.discard(key)

    def cut_off(self, tasks: Collection[Task]) -> list[str]:
        """Return the queries that do not stop, once nothing else drains; what has not drained in time is stopped first."""
        stuck, ends_for = self.stuck(tasks), self._ends_for()
        if not (self._ending.is_set() and stuck):
            return []
        if len(stuck) < len(tasks):
            if ends_for <= self._patience:
                return []
            self._hurried_at = self._hurried_at or time.monotonic()
            for task in tasks:
                task.force()
            if time.monotonic() - self._hurried_at <= _WITHDRAW_SECONDS:
                return []
        return stuck

    @property
    def _patience(self) -> float:
        """Return how long a query may take to stop, and those beside one that does not may drain."""
        return max(self._stop_seconds, _WITHDRAW_SECONDS)

    def waits_no_more(self, flow: DeployedFlow) -> bool:
        """Return whether it ends, and a flow that goes on in another process has had its time to drain: a batch may hang."""
        patience = max(self._patience, _drain_seconds(flow), _SLOW_SECONDS)
        return self._ends_for() > patience and goes_on(flow)

    def _ends_for(self) -> float:
        """Return for how long its rounds have seen that it ends; 0: it does not."""
        if not self._ending.is_set():
            return 0.0
        self._ending_since = self._ending_since or time.monotonic()
        return time.monotonic() - self._ending_since

    def stuck(self, tasks: Iterable[Task]) -> list[str]:
        """Return the names of those whose queries have been told to stop in mid-batch, and have not for too long."""
        return sorted(task.name for task in tasks if task.stopping_seconds > self._patience)


def goes_on(flow: DeployedFlow) -> bool:
    """Return whether nothing drains a flow for as long as was asked for: neither a rebalance that is not over nor a kill."""
    return flow.status not in (Status.REBALANCING, Status.KILLED)


def _drain_seconds(flow: DeployedFlow) -> float:
    """Return for how long a flow drains if nobody has said it."""
    timeout = flow.settings.get("message_timeout_seconds") if deployed.readable([flow]) else None
    return delay_seconds(None, timeout)
