"""Hooks (per batch and stage: emitted, received, committed, failed; the original's task hooks) and listeners (per commit)."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.accumulators import AccumulatorParam

from pipelines import logs
from pipelines.trident.counters import counting_into

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import SparkSession

logger = logs.logger(__name__)


@dataclass(frozen=True)
class StageEvent:
    """An event at one stage of one attempt.

    Attributes:
        flow: the topology.
        group: the batch group.
        stage: the group's name for its sources, else the state's.
        txid: the batch.
        attempt: the try, from 0.
        rows: of the event; 0 for `failed`.
        seconds: from the batch's start for `emitted`, `received` and `failed`; the commit's own for `committed`.
        counters: what user functions counted in this attempt so far (`pipelines.trident.count`).
        error: for `failed` the reason in one line.
    """

    flow: str
    group: str
    stage: str
    txid: int
    attempt: int
    rows: int
    seconds: float
    counters: Mapping[str, int] = field(default_factory=dict)
    error: str | None = None


class Hook:
    """Override what is of interest. Called in the thread that runs the batch; an error in a hook is logged and left."""

    def emitted(self, event: StageEvent) -> None:
        """Take notice: the sources have delivered their rows."""

    def received(self, event: StageEvent) -> None:
        """Take notice: a state's part of the plan has taken its rows in."""

    def committed(self, event: StageEvent) -> None:
        """Take notice: a state's Delta commit is there."""

    def failed(self, event: StageEvent) -> None:
        """Take notice: the attempt failed; another may follow."""


def tell(hooks: tuple[Hook, ...], moment: str, event: StageEvent) -> None:
    """Call one method of all hooks."""
    for hook in hooks:
        try:
            getattr(hook, moment)(event)
        except Exception as error:
            logger.warning("hook failed", hook=type(hook).__name__, moment=moment, flow=event.flow, reason=repr(error))


class _Counts(AccumulatorParam[dict[str, int]]):
    """Adds dicts of numbers."""

    def zero(self, value: dict[str, int]) -> dict[str, int]:
        return {}

    def addInPlace(self, value1: dict[str, int], value2: dict[str, int]) -> dict[str, int]:  # noqa: N802 - Spark's name
        for name, number in value2.items():
            value1[name] = value1.get(name, 0) + number
        return value1


_accumulators: weakref.WeakKeyDictionary[Any, Accumulator[dict[str, int]]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


class Counters:
    """The user counters of one batch group: one accumulator a Spark context carries those of all groups.

    Spark keeps every accumulator that was ever made, so a batch cannot have one of its own.

    Args:
        scope: what tells this group's counters from others', e.g. `flow/group/`.
    """

    def __init__(self, spark: SparkSession, scope: str) -> None:
        self._scope = scope
        context = spark.sparkContext
        with _lock:
            if context not in _accumulators:
                _accumulators[context] = context.accumulator({}, _Counts())
            self._accumulator = _accumulators[context]
        self._before: dict[str, int] = {}

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Count here what plans count that are built within the block."""
        with counting_into(self._accumulator, self._scope):
            yield

    def start(self) -> None:
        """Begin a new attempt: what was counted before is of others."""
        self._before = self._mine()

    def since_start(self) -> dict[str, int]:
        """Return what this group's functions have counted since `start`, by name."""
        now = self._mine()
        return {name: n - self._before.get(name, 0) for name, n in now.items() if n != self._before.get(name, 0)}

    def _mine(self) -> dict[str, int]:
        value = dict(self._accumulator.value)
        return {name.removeprefix(self._scope): n for name, n in value.items() if name.startswith(self._scope)}


class Listener(Protocol):
    """Called around each commit, in the process and thread that commits."""

    def __call__(self, moment: str, state: str, txid: int) -> None:
        """Take notice.

        Args:
            moment: `committing` (all is computed, nothing written), `committed` (the Delta commit is there), and for a
                whole batch, with an empty `state`, `opened` and `closed` (Spark's own commit comes after).
            state: the state's name, or `quarantine`.
            txid: the batch; for a backfill the last batch that it covers.
        """
