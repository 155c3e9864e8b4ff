"""Decisions from the figures of a streaming query: more partitions, fewer, a table clustered again, or nothing. No Spark here.

A caller looks at its queries now and then, keeps the looks, and asks `decide`. The thresholds leave a gap between "too slow" and
"idle" that no single step can cross, so that a constant load settles (docs/adr/0018).
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pipelines.planner.plain.murmur import task_of
from pipelines.thresholds import Thresholds
from pipelines.windows import BUCKETS

NONE, SCALE_OUT, SCALE_IN, CLUSTER = "none", "scale_out", "scale_in", "cluster"


@dataclass(frozen=True)
class TableLoad:
    """A state table that a query writes, as its readers find it.

    Attributes:
        clustered_by: the key columns that its files are sorted by, most important first.
        asked_by: the key columns that most reads name; empty: not known.
    """

    name: str
    bytes: int
    clustered_by: tuple[str, ...] = ()
    asked_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Figures:
    """One look at one query.

    Attributes:
        query: `<flow>/<group>`.
        trigger_seconds: how often a batch is to begin; 0: at once.
        batch_seconds: of the last batches, oldest first.
        backlog: what waited at the source behind each of them, in the source's own measure.
        rows_per_second: over these batches.
        partitions: of its shuffles, and of its state if it has windows.
        state_rows: rows of the state of its windows; None: it has none.
        is_dealt: whether Spark deals that state over the partitions, and not the driver keeps it, for they run in the batch.
        partition_rows: of the state, by partition; empty: not known.
    """

    query: str
    trigger_seconds: float
    batch_seconds: tuple[float, ...]
    backlog: tuple[float, ...]
    rows_per_second: float
    partitions: int
    cores: int
    state_rows: int | None = None
    partition_rows: tuple[int, ...] = ()
    tables: tuple[TableLoad, ...] = ()
    is_dealt: bool = True

    @property
    def load(self) -> float | None:
        """Return the median batch over the trigger; None: no batch, or no trigger to keep."""
        if not self.batch_seconds or self.trigger_seconds <= 0:
            return None
        return statistics.median(self.batch_seconds) / self.trigger_seconds

    @property
    def skew(self) -> float | None:
        """Return rows of the fullest partition over the average one; None: not known."""
        return skew_of(self.partition_rows) if any(self.partition_rows) else None


@dataclass(frozen=True)
class Decision:
    """A decision about one query.

    Attributes:
        query: as in `Figures`.
        action: `none`, `scale_out`, `scale_in`, `cluster`.
        before, after: partitions.
        reasons: sentences with the numbers they rest on.
        tables: of `cluster`: the states, each with the columns to cluster by.
    """

    query: str
    action: str
    before: int
    after: int
    reasons: tuple[str, ...] = ()
    tables: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """Return the decision in words, for people."""
        step = f" {self.before} -> {self.after}" if self.before != self.after else ""
        return f"{self.query}: {self.action}{step}: {'; '.join(self.reasons)}"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "reasons": list(self.reasons), "tables": {n: list(c) for n, c in self.tables.items()}}


def decide(
    history: Sequence[Figures], thresholds: Thresholds | None = None, *, last_change_at: float | None, now: float
) -> Decision:
    """Decide what one query needs.

    Args:
        history: looks at the query, oldest first; those before its last change count as experience.
        thresholds: by default those of `Thresholds()`.
        last_change_at: when its partitions changed last, in seconds since 1970; None: never.
        now: in the same seconds.

    Raises:
        ValueError: there is no look, or they are of several queries.
    """
    if not history or len({look.query for look in history}) > 1:
        raise ValueError("a decision needs one look at least, all at the same query")
    limits, last = thresholds or Thresholds(), history[-1]
    waited = None if last_change_at is None else now - last_change_at
    if waited is not None and waited < limits.cool_down_seconds:
        return _stays(
            last, f"the last change was {waited:.0f} s ago, before {limits.cool_down_seconds:.0f} s nothing is judged"
        )
    looks = _since_change(history)[-limits.looks :]
    wishes = [_wish(look, limits) for look in looks]
    wish, why = wishes[-1]
    if wish == NONE:
        return _clustering(last, limits) or _stays(last, why)
    agree = sum(other == wish for other, _ in wishes)
    if agree < limits.looks:
        return _stays(last, why, f"{agree} of the last {limits.looks} looks say so, all must")
    return _out(history, why, limits) if wish == SCALE_OUT else _in(history, why, limits)


def skew_of(partition_rows: Sequence[int]) -> float:
    """Return rows of the fullest partition over the average one; some partition must have one."""
    return max(partition_rows) * len(partition_rows) / sum(partition_rows)


def look_of_beat(query: str, beat: Mapping[str, Any], *, cores: int, tables: Sequence[TableLoad] = ()) -> Figures:
    """Return a look from what a deployed query says of itself (`pipelines.nimbus.telemetry.figures`).

    Args:
        query: `<flow>/<group>`.
        beat: the figures of its last beat, as JSON.
    """
    return Figures(
        query=query,
        trigger_seconds=float(beat.get("trigger_seconds") or 0.0),
        batch_seconds=tuple(map(float, beat.get("last_batch_seconds") or ())),
        backlog=tuple(map(float, beat.get("last_backlogs") or ())),
        rows_per_second=float(beat.get("rows_per_second") or 0.0),
        partitions=int(beat.get("partitions") or 1),
        cores=cores,
        state_rows=beat.get("state_rows"),
        partition_rows=tuple(map(int, beat.get("partition_rows") or ())),
        tables=tuple(tables),
        is_dealt=beat.get("window_rows") is None,
    )


def window_spread(partitions: int) -> float:
    """Return in how many equal parts the buckets of windows fall, when Spark deals them over so many partitions.

    Spark goes by a hash of the bucket, so few numbers spread them well: 5 partitions are no better than 4.
    """
    return BUCKETS / max(Counter(task_of((bucket,), ("int",), partitions) for bucket in range(BUCKETS)).values())


# --- one look -------------------------------------------------------------------------------------------------------


def _wish(look: Figures, limits: Thresholds) -> tuple[str, str]:
    """Return what one look by itself asks for, and its reason."""
    grows, waits = _growth(look, limits)
    load = look.load
    if load is None:
        if look.batch_seconds and grows:
            return SCALE_OUT, f"the backlog grows ({waits}), and a batch begins as soon as the last one ends"
        return (
            NONE,
            "no batch has run" if not look.batch_seconds else "there is no trigger to keep, and no growing backlog",
        )
    median, trigger = statistics.median(look.batch_seconds), look.trigger_seconds
    said = f"the median batch takes {median:.2f} s of a trigger of {trigger:g} s ({load:.0%})"
    if load > limits.overloaded:
        return SCALE_OUT, f"{said}, more than {limits.overloaded:.0%}"
    if load > limits.busy and grows:
        return SCALE_OUT, f"{said}, more than {limits.busy:.0%}, and the backlog grows ({waits})"
    if load < limits.idle and not any(look.backlog):
        return SCALE_IN, f"{said}, less than {limits.idle:.0%}, and nothing waits"
    return NONE, f"{said}; {waits}"


def _growth(look: Figures, limits: Thresholds) -> tuple[bool, str]:
    """Return whether the backlog grows, and how it went."""
    if not any(look.backlog):
        return False, "nothing waits"
    half = len(look.backlog) // 2
    if not half:
        return False, f"{look.backlog[-1]:g} wait"
    earlier, later = statistics.median(look.backlog[:half]), statistics.median(look.backlog[-half:])
    return later > earlier * limits.growth, f"from {earlier:g} to {later:g} waiting"


def _clustering(look: Figures, limits: Thresholds) -> Decision | None:
    wrong = {
        table.name: table
        for table in look.tables
        if table.asked_by
        and table.bytes >= limits.cluster_bytes
        and table.clustered_by[: len(table.asked_by)] != table.asked_by
    }
    if not wrong:
        return None
    reasons = tuple(
        f'"{table.name}" ({table.bytes:,} bytes) lies by {_names(table.clustered_by)}, and is asked by {_names(table.asked_by)}'
        for table in wrong.values()
    )
    wanted = {name: table.asked_by for name, table in wrong.items()}
    return Decision(look.query, CLUSTER, look.partitions, look.partitions, reasons, wanted)


# --- steps ----------------------------------------------------------------------------------------------------------


def _out(history: Sequence[Figures], why: str, limits: Thresholds) -> Decision:
    """Decide on up to twice as many: what is too slow now is at most half as slow then, and by no step idle."""
    look = history[-1]
    most = min(limits.most, limits.partitions_a_core * max(1, look.cores))
    if look.partitions >= most:
        return _stays(look, why, f"it has {look.partitions} partitions, and {most} are the most for {look.cores} cores")
    if look.skew is not None and look.skew > limits.skewed:
        return _stays(
            look, why, f"its fullest partition holds {look.skew:.1f} times the average: more would not part it"
        )
    if (tried := _in_vain(history, limits)) is not None:
        return _stays(look, why, tried)
    numbers = range(look.partitions + 1, min(most, 2 * look.partitions) + 1)
    after = max(numbers, key=lambda number: (_spread(look, number), -number))
    if _spread(look, after) <= _spread(look, look.partitions):
        return _stays(
            look, why, f"the {BUCKETS} buckets of its windows would not spread better over up to {numbers[-1]}"
        )
    return Decision(look.query, SCALE_OUT, look.partitions, after, (why,))


def _in(history: Sequence[Figures], why: str, limits: Thresholds) -> Decision:
    """Decide on down to half as many at least, where experience does not speak against it."""
    look = history[-1]
    if look.partitions <= limits.least:
        return _stays(look, why, f"it has {look.partitions} partitions, the least that it may have")
    half = max(limits.least, (look.partitions + 1) // 2)
    after = next(n for n in range(half, look.partitions + 1) if 2 * _spread(look, n) >= _spread(look, look.partitions))
    if after == look.partitions:
        return _stays(look, why, "fewer would hold more than twice as much each")
    for other in history:
        alike = other.rows_per_second <= look.rows_per_second * limits.similar_load
        if other.partitions <= after and alike and _wish(other, limits)[0] == SCALE_OUT:
            seen = f"with {other.partitions} it was too slow at {other.rows_per_second:.0f} rows per second"
            return _stays(look, why, f"{seen}, and there are {look.rows_per_second:.0f} now")
    return Decision(look.query, SCALE_IN, look.partitions, after, (why,))


def _in_vain(history: Sequence[Figures], limits: Thresholds) -> str | None:
    """Return whether the last step out has not shortened the batch, under no greater load."""
    now = statistics.median(history[-1].batch_seconds)
    own = history[-1].partitions
    earlier = [look for look in history if look.partitions < own and look.batch_seconds]
    if not earlier:
        return None
    before = earlier[-1]
    took = statistics.median(before.batch_seconds)
    more = history[-1].rows_per_second > before.rows_per_second * limits.similar_load
    if more or now <= took * limits.gain:
        return None
    return f"a batch took {took:.2f} s with {before.partitions} partitions and takes {now:.2f} s with {own}: they did not help"


def _since_change(history: Sequence[Figures]) -> list[Figures]:
    """Return the looks at the number of partitions that there is now."""
    own = [look.partitions == history[-1].partitions for look in history]
    return list(history[len(own) - own[::-1].index(False) :] if False in own else history)


def _spread(look: Figures, partitions: int) -> float:
    """Return in how many equal parts its work falls."""
    return window_spread(partitions) if look.state_rows is not None and look.is_dealt else float(partitions)


def _stays(look: Figures, *reasons: str) -> Decision:
    return Decision(look.query, NONE, look.partitions, look.partitions, reasons)


def _names(columns: Sequence[str]) -> str:
    return ", ".join(columns) or "nothing"
