"""The thresholds at which a deployed flow is rebalanced, which a flow's setting `rebalance` may change."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

from pipelines.bounds import TASKS, OutOfBoundsError, Range, limits
from pipelines.windows import BUCKETS

_SHARE, _FACTOR, _NUMBER = Range(0.001, 1_000), Range(1, 1_000_000), Range(1, 1_000, whole=True)


@dataclass(frozen=True)
class Thresholds:
    """Thresholds, each with its reason.

    Attributes:
        busy: a median batch above this share of the trigger, with a growing backlog, is too slow. Below 1, for a batch that
            fills its trigger leaves nothing to catch up with.
        overloaded: above this share it is too slow whatever the backlog says: a source may not tell it, or be throttled.
        idle: below this share, with no backlog, partitions are overhead. A quarter of `busy`: halving the partitions doubles a
            batch at most, which leaves as much room again, so that no step in leads to a step out.
        growth: the backlog grows if the later half of the looks waits for so many times the earlier half. One big file more
            is not growth.
        looks: so many looks in a row must ask for the same: one slow batch (a full collection, a compaction beside) is none.
        cool_down_seconds: after a change nothing for so long. A repartition stops the query for seconds, and the batches
            behind it catch up what has waited meanwhile: they are no measure.
        least, most: partitions. A query has one; windows have 32 buckets, and beyond that partitions are empty.
        partitions_a_core: at most so many: beyond two a core tasks only queue, and each costs a batch its start.
        gain: a step out must have shortened the batch to this share of what it was, or the next one is not tried.
        similar_load: rows per second within this factor are the same load, when an earlier look at other partitions counts.
        skewed: a fullest partition of so many times the average takes the whole batch: more partitions do not part one key.
        cluster_bytes: a smaller table is read whole in some milliseconds, however it lies.
    """

    busy: Annotated[float, _SHARE] = 0.8
    overloaded: Annotated[float, _SHARE] = 1.5
    idle: Annotated[float, _SHARE] = 0.2
    growth: Annotated[float, _FACTOR] = 1.1
    looks: Annotated[int, _NUMBER] = 3
    cool_down_seconds: Annotated[float, Range(0, 366 * 86_400)] = 600.0
    least: Annotated[int, TASKS] = 1
    most: Annotated[int, TASKS] = BUCKETS
    partitions_a_core: Annotated[int, _NUMBER] = 2
    gain: Annotated[float, Range(0.001, 1)] = 0.9
    similar_load: Annotated[float, _FACTOR] = 1.25
    skewed: Annotated[float, _FACTOR] = 4.0
    cluster_bytes: Annotated[int, Range(0, 2**63 - 1, whole=True)] = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        for field in fields(self):
            try:
                limits(Thresholds)[field.name].taken(getattr(self, field.name))
            except OutOfBoundsError as error:
                raise ValueError(f"{field.name} {error}") from None
        if not self.idle <= self.busy / 4 or not self.busy < self.overloaded:
            raise ValueError("idle must be at most a quarter of busy, and busy below overloaded: else load swings")
        if not self.least <= self.most:
            raise ValueError("least must be at most most")
