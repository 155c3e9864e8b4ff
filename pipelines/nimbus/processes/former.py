"""The version before of a flow: its queries read what is in their channels, before others read on behind it. Then it is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from pipelines.execution.checkpoint.ownership import leased
from pipelines.nimbus import deployed
from pipelines.nimbus.errors import FormerVersionError, LeaseHeldError, RegistryLeaseLostError
from pipelines.nimbus.processes.starting import Application
from pipelines.nimbus.processes.task import Task
from pipelines.nimbus.registry.leases import Lease

if TYPE_CHECKING:
    from pipelines.nimbus.registry.records import DeployedFlow
    from pipelines.trident.topology import TridentTopology

_POLL_SECONDS = 0.1


class FormerQuery(Task):
    """A task that reads its sources to their end, once, and does not try again.

    Args:
        former: The flow, in the version before.
        topology: The topology of that version.
        lease: Of the query. Whoever gives it keeps it renewed, and gives it back.
    """

    def __init__(
        self,
        application: Application,
        former: DeployedFlow,
        query: deployed.DeployedQuery,
        topology: TridentTopology,
        lease: Lease,
    ) -> None:
        # It stays in the partitions that it has: it is in no assignment any more.
        super().__init__(application, former, replace(query, partitions=None), topology)
        self.lease = lease
        self._trigger = None
        # Refused: with a checkpoint that was lost it would read its source from the start.
        self._on_fresh = None
        self._with_siblings = False
        self.error: Exception | None = None
        """What has stopped it."""
        self.want(wanted=True)

    def run(self) -> None:
        """Read to the end. Never raises: what has stopped it is in `error`."""
        with structlog.contextvars.bound_contextvars(flow=self.flow.name, group=self.query.group):
            try:
                # The lease says who owns the checkpoint: whichever host had it before.
                with leased():
                    self._live()
            except Exception as error:
                self.error = error


class FormerVersion:
    """The version before of a flow that changes in place. It reads once, in a thread of its own.

    Args:
        application: What it ran in, and reads to its end in.
        flow: The flow, in that version.
    """

    def __init__(self, application: Application, flow: DeployedFlow, topology: TridentTopology) -> None:
        self.flow, self.topology = flow, topology
        self._application, self._borrowed = application, list[Lease]()
        self._begun, self._over = threading.Event(), threading.Event()
        self._query: FormerQuery | None = None
        self._forced_at = 0.0
        """Since when it is to stop in mid-batch, or what reads beside its queries; 0: it is not."""
        self.left = False
        """Whether it has ended before its end, for a task of the new version was not to run any more."""

    @property
    def reads(self) -> bool:
        """Return whether it has begun and not ended."""
        return self._begun.is_set() and not self._over.is_set()

    @property
    def over(self) -> bool:
        """Return whether it has ended."""
        return self._over.is_set()

    def again(self) -> FormerVersion:
        """Return the same, to go on where this one has left."""
        return FormerVersion(self._application, self.flow, self.topology)

    def begin(self, read: Callable[[], None]) -> None:
        """Run, in a thread, what calls `read`; those behind it begin when that returns."""
        self._begun.set()
        threading.Thread(target=self._run, args=(read,), name=f"{self.flow.name} before", daemon=True).start()

    def _run(self, read: Callable[[], None]) -> None:
        try:
            read()
        finally:
            self._over.set()

    def force(self) -> None:
        """Stop it in the middle of a batch, as a task."""
        if self.reads and not self._forced_at:
            self._forced_at = time.monotonic()
        if (query := self._query) is not None:
            # One that has only been stopped would be taken for one that has come to its end.
            query.leave()
            query.force()

    @property
    def stopping_seconds(self) -> float:
        """Return for how long it has been told to stop in mid-batch; 0: it was not, or it has ended.

        Before and behind its queries it reads logs of tables, on a store or a mount that may hang.
        """
        if (query := self._query) is not None and query.is_alive():
            return query.stopping_seconds
        since = self._forced_at
        return max(0.0, time.monotonic() - since) if self.reads and since else 0.0

    def read(self, tasks: Mapping[str, Task]) -> None:
        """Let each query read to the end, one behind the other, under leases that are all held before the first begins.

        Args:
            tasks: Those of the new version, by query. Each has the lease of its query, and beats; it does not run yet.
                Where one of them is to leave, or to drain, it ends between two batches.

        Raises:
            LeaseHeldError: Another worker has one of the queries.
            FormerVersionError: It has left.
            TrideltaError: What has stopped a query.
        """
        from pipelines.execution.protocol.groups import group_name, spout_groups

        queries = {query.group: query for query in deployed.queries_of(self.flow)}
        groups = [group_name(spouts) for spouts in spout_groups(self.topology)]
        try:
            leases = {group: self._lease_of(group, tasks.get(group)) for group in groups}
            for group in groups:
                query = FormerQuery(self._application, self.flow, queries[group], self.topology, leases[group])
                self._query = query
                query.start()
                while query.is_alive():
                    if not (query.left or all(task.wanted and task.is_alive() for task in tasks.values())):
                        query.leave()
                    query.join(_POLL_SECONDS)
                    if self._forced_at:
                        # What comes behind a query begins to count at its end.
                        self._forced_at = time.monotonic()
                # Its next start would find nothing changed any more.
                next(iter(tasks.values())).tells_for(query)
                if query.error is not None:
                    raise query.error
                if query.left:
                    raise self._leave(group)
        finally:
            borrowed, self._borrowed = self._borrowed, []
            for lease in borrowed:
                self._application.registry.leases.release(lease)

    def _leave(self, group: str) -> FormerVersionError:
        self.left = True
        return FormerVersionError(self.flow.name, group, self.flow.version.number)

    def renew(self) -> None:
        """Renew the leases that no task has, while it reads."""
        for lease in list(self._borrowed):
            try:
                self._application.registry.leases.renew(lease, self._application.lease_seconds)
            except RegistryLeaseLostError:
                # It may have been given back in this moment, by the thread that reads.
                if lease in self._borrowed:
                    raise

    def _lease_of(self, group: str, task: Task | None) -> Lease:
        """Return the lease of a query: that of its task, or one of its own where the new version has no such query."""
        application = self._application
        name = f"task:{deployed.component_id(self.flow.name, group)}"
        if task is None:
            lease = application.registry.leases.take(name, application.holder, application.lease_seconds)
            self._borrowed.append(lease)
            return lease
        # It takes it in a thread of its own, and perhaps not at once.
        until = time.monotonic() + application.lease_seconds
        while (held := task.lease) is None:
            if not task.wanted:
                raise self._leave(group)
            if time.monotonic() > until or not task.is_alive():
                other = application.registry.leases.holder(name)
                raise LeaseHeldError(name, application.holder, other.holder if other else "nobody", 0.0)
            time.sleep(_POLL_SECONDS)
        return held
