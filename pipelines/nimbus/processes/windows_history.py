"""Changes of a query's windows, which a start makes for a changed definition, on their way into the history of its flow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipelines import logs
from pipelines.nimbus.errors import RegistryError

if TYPE_CHECKING:
    from pipelines.execution.runners.stream import StreamRunner
    from pipelines.nimbus.processes.starting import Application
    from pipelines.nimbus.registry.records import DeployedFlow

logger = logs.logger(__name__)

WINDOWS_EMPTIED, EVENTS_WAIT = "WINDOWS_ANEW", "EVENTS_WAIT"
"""Events of a flow's history that say what a change has made of its windows."""


def emptied_reason(query: str) -> str:
    """Say why windows restart empty."""
    return f"windows of {query} begin empty: their number, or the channels that it reads, have changed"


def waiting_reason(query: str, count: int) -> str:
    """Say that events wait in windows that are gone."""
    return f"{count} event(s) wait for the clock in the windows of {query}, which the flow has no more"


class WindowsHistory:
    """The changes that starts of a query have made to its windows, until the registry has taken them."""

    def __init__(self, application: Application, flow: DeployedFlow, query: str) -> None:
        self._application, self._flow, self._query = application, flow, query
        self._untold: list[tuple[DeployedFlow, str, str]] = []
        """Events of the flow's history that the registry has not taken yet, with the flow as it was, and their reasons."""

    @contextmanager
    def noting(self, runner: StreamRunner) -> Iterator[None]:
        """Note what a start makes of windows in the batch whose definition has changed, also where it comes to nothing.

        The next one finds them changed, and has nothing to report.
        """
        try:
            yield
        finally:
            if runner.emptied_windows:
                self.emptied(f"windows of {self._query} begin empty: {', '.join(runner.emptied_windows)}")
            if runner.events_wait:
                self.events_wait(self._query, runner.events_wait)

    def emptied(self, reason: str) -> None:
        """Note that windows begin empty."""
        logger.info("query windows begin empty", reason=reason)
        self._untold.append((self._flow, WINDOWS_EMPTIED, reason))

    def events_wait(self, query: str, count: int) -> None:
        """Note that events wait in windows that are gone, of this query or of one that the flow has no more."""
        reason = waiting_reason(query, count)
        logger.warning("events wait", reason=reason)
        self._untold.append((self._flow, EVENTS_WAIT, reason))

    def tell(self) -> None:
        """Tell the flow's history what changed definitions have made of windows.

        Raises:
            RegistryError: It does not take it; what it has not taken is told later.
        """
        while self._untold:
            flow, event, reason = self._untold[0]
            self._application.registry.tell(flow, event, {"reason": reason})
            del self._untold[0]

    def try_to_tell(self) -> None:
        """Tell it, if the registry takes it; else it is told later."""
        try:
            self.tell()
        except RegistryError as error:
            logger.warning("change of windows not reported yet", reason=str(error))

    def take_over(self, other: WindowsHistory) -> None:
        """Tell from now on what another one, of a query that has ended, could not."""
        untold, other._untold = other._untold, []
        if untold:
            self._untold += untold
            self.try_to_tell()
