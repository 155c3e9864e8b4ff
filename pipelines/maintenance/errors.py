"""What maintenance refuses to do, and why."""

from __future__ import annotations

from pipelines.errors import TrideltaError


class RepartitionRefusedError(TrideltaError):
    """The number of partitions of a query cannot become this one; nothing was changed."""

    def __init__(self, flow: str, group: str, partitions: int, problem: str, hint: str = "") -> None:
        self.flow, self.group, self.partitions, self.problem = flow, group, partitions, problem
        super().__init__(f'flow "{flow}", query "{group}": not repartitioned to {partitions}: {problem}', hint=hint)


class UnfinishedBatchError(RepartitionRefusedError):
    """A batch of the query was begun and is not finished: its rows may be in some of the tables."""

    def __init__(self, flow: str, group: str, partitions: int, batch: int) -> None:
        self.batch = batch
        super().__init__(
            flow,
            group,
            partitions,
            f"its batch {batch} was begun and is not finished",
            hint="run the query until that batch is done (catch_up with max_batches=1), then repartition",
        )
