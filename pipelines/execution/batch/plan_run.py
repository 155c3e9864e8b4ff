"""One evaluation of a batch group's plan over one frame: a stream's batch, or the slices of a bounded run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from pipelines.errors import BatchError
from pipelines.execution.batch.accounts import HASH, row_hash, xor, xor_of_rows
from pipelines.execution.batch.channels import LATE, LATEST
from pipelines.execution.batch.quarantine import rejected_by_gate, rejected_by_source, violated
from pipelines.graph import events, nodes
from pipelines.graph.dialects import SPARK
from pipelines.planner.compile import Compiler
from pipelines.quality.compiled import FAILED, CompiledGate
from pipelines.quality.results import GateResult
from pipelines.quality.samples import with_samples
from pipelines.sources.base import CORRUPT, FILE
from pipelines.sources.fixed import BATCH_NUMBER
from pipelines.spark.arrow_frame import arrow_frame
from pipelines.spark.observations import observed
from pipelines.state.schema import NO_SLICE, SLICE_COLUMN
from pipelines.state.views import StateView

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column

    from pipelines.execution.batch.group import BatchGroup, FirstGate
    from pipelines.execution.batch.group_sources import Frames
    from pipelines.planner.siblings import Siblings
    from pipelines.state.table import StateTable

RECEIVED, REJECTED, XOR = "received", "refused", "xor"
_RULES = "_rules"
"""int: how many checks a rejected row violates, by which it is counted again; 0 for what was rejected before the gates."""

_LeftOut = frozenset[tuple[str, frozenset[str]]]


@dataclass(frozen=True)
class Base:
    """The content of a map state before a batch: the table at a version, without what the txid `before` wrote to it."""

    table: StateTable
    version: int | None = None
    before: int | None = None


def around_own(table: StateTable, own: Sequence[int], behind: bool) -> tuple[StateTable, int | None]:
    """Return a table and the version to read: before the reader's own commits, or behind them; None: it has made none."""
    return table, (own[-1] if behind else own[0] - 1) if own else None


@dataclass
class KeptVerdicts:
    """Verdicts that hold for all runs of one attempt, each with what counted the gates up to it."""

    gates: dict[tuple[int, _LeftOut], tuple[PlanRun, dict[int, _PassedGate]]] = field(default_factory=dict)
    sources: dict[int, DataFrame] = field(default_factory=dict)


@dataclass(frozen=True)
class Reads:
    """Reads of a plan beside its sources.

    Attributes:
        state: gives the table and version that a state query reads, by the name and whether it is behind the persist.
        emitted: what updaters have emitted in this batch, by persist node.
        base: gives what a map state held before the batch; None: map states start from nothing.
        watermark: gives the watermark of a channel before the batch, in ms; None: no event is late.
        heard: what watermark rows of a bounded run say, by origin.
        judged: the gates that rows passed in this attempt whose verdict might be another one the next time, by node and rows
            left out, each with the run that judged and the gates that it had passed on the way there; by spout the source's
            rows for which that holds.
    """

    state: Callable[[str, bool], tuple[StateTable, int | None]]
    emitted: Mapping[int, pa.Table] = field(default_factory=dict)
    base: Callable[[str], Base] | None = None
    watermark: Callable[[str], int | None] | None = None
    heard: Mapping[str, int] = field(default_factory=dict)
    judged: KeptVerdicts = field(default_factory=KeptVerdicts)


@dataclass
class _PassedGate:
    """A gate that a frame has passed in this run."""

    compiled: CompiledGate
    annotated: DataFrame
    observation: Observation | None = None
    results: dict[str, GateResult] = field(default_factory=dict)

    def count(self) -> Mapping[str, Any]:
        """Return what the observation would have seen, by a job of its own."""
        return self.annotated.agg(*self.compiled.metrics()).collect()[0].asDict()


class PlanRun:
    """Builds the frames that a group commits, and accounts for what came in and what was rejected.

    Args:
        sources: by spout the source's frame: fields, `_corrupt`, `_file`.
        reads: what the plan reads beside them.
        slices: the slices wanted (a bounded run: each is a batch of its own), or None for a stream's batch.
        txid: of a stream's batch.
    """

    checked = True
    """A group compiles each of its plans once before it runs."""

    def __init__(
        self,
        group: BatchGroup,
        sources: Frames,
        label: str,
        reads: Reads,
        slices: tuple[str, ...] | None = None,
        txid: int | None = None,
    ) -> None:
        self.group, self.label, self.slices, self.txid = group, label, slices, txid
        self.numbered = slices is not None and all(spout.slice_by == BATCH_NUMBER for spout in group.spouts)
        self._reads = reads
        self._cached: list[DataFrame] = []
        self._observation: Observation | None = None
        self._source_read = False
        self._counts: dict[str, Any] | None = None
        self._first_gate: FirstGate | None = None
        self.gates: dict[int, _PassedGate] = {}
        self._left_out: _LeftOut = frozenset()
        self.watermark = reads.watermark or _no_watermark
        self.refused_slices: dict[str, dict[int, str]] = {}
        self._marked = {spout.id: self._enter(spout, sources[spout.id]) for spout in group.spouts}

    # --- the way in -------------------------------------------------------------------------------------------------

    def _enter(self, spout: nodes.SpoutNode, source: DataFrame) -> DataFrame:
        """Return the source's rows with `_slice`, which is `?` for rows that the plan cannot take; counted as they pass."""
        if self.slices is None and len(self.group.spouts) == 1:
            return self._observed(spout, source)
        source = self.group.sources.with_slice(spout, source)
        if self.slices is not None:
            if spout.slice_by is not None:
                source = source.where(F.col(SLICE_COLUMN).isin(*self.slices, NO_SLICE))
            return self._cache(source)
        # A batch of several sources is kept, so `counts` has them for the price of a small job; an observation
        # would be waited for in vain where a result does not need every source.
        return self._same_each_time(spout, source)

    def _same_each_time(self, spout: nodes.SpoutNode, rows: DataFrame) -> DataFrame:
        """Keep a source's rows whose slice, or verdict at the first gate, might be another one the next time."""
        if not self.group.may_differ(spout, rows):
            return rows
        judged = self._reads.judged.sources
        if spout.id not in judged:
            judged[spout.id] = self._cache(rows)
        return judged[spout.id]

    def _observed(self, spout: nodes.SpoutNode, source: DataFrame) -> DataFrame:
        self._observation = Observation()
        rows = self._same_each_time(spout, self.group.marked(source))
        self._first_gate = self.group.first_gate
        return rows.observe(self._observation, *self._observed_counters(spout))

    def _observed_counters(self, spout: nodes.SpoutNode) -> list[Column]:
        return [*self._counters(spout), *(self._first_gate.metrics if self._first_gate is not None else ())]

    def _counters(self, spout: nodes.SpoutNode) -> list[Column]:
        """Return rows, rejected rows, and the XOR of the rows' hashes (malformed ones have nothing but nulls to hash)."""
        hashed = HASH if self._observation is not None else row_hash(self.group.sources.hashed(spout))
        counters = [
            F.expr(f"count(1) AS {RECEIVED}"),
            F.expr(f"count(CASE WHEN {self.group.sources.rejected} THEN 1 END) AS {REJECTED}"),
            F.expr(f"{xor_of_rows(hashed)} AS {XOR}"),
        ]
        if self._tells_time(spout):
            good = F.when(~F.expr(self.group.sources.rejected), F.col(events.CLOCK))
            counters.append(F.max(good).alias(LATEST))
            marks = [self.watermark(name) for name in self.group.watermarked]
            known = [mark for mark in marks if mark is not None]
            late = good < F.lit(max(known)) if known else F.lit(False)
            counters.append(F.count(F.when(late, 1)).alias(LATE))
        return counters

    def _tells_time(self, spout: nodes.SpoutNode) -> bool:
        """Return whether the clock of a channel comes from this source's events."""
        return events.CLOCK in spout.fields and spout not in self.group.sources.channels

    def frames(
        self,
        wanted: Iterable[int],
        left_out: Mapping[str, frozenset[str]],
        given: Mapping[int, DataFrame] | None = None,
        siblings: Sequence[Siblings] = (),
    ) -> dict[int, DataFrame]:
        """Return the frames of some nodes (persists, and what leads to a window), by id.

        Args:
            left_out: rows to leave out, because a backfill has counted them: source files by slice.
            given: frames that are there already, by node.
            siblings: persists that get one frame, with the rows of all.
        """
        good, self._left_out = {}, frozenset(left_out.items())
        for spout in self.group.spouts:
            fields = [*spout.fields, SLICE_COLUMN] if self.group.sources.sliced else list(spout.fields)
            if self._first_gate is not None and not left_out:
                fields.append(FAILED)
            taken = without(self._marked[spout.id], left_out).where(f"NOT {self.group.sources.rejected}")
            good[spout.id] = taken.selectExpr(*(SPARK.name(name) for name in fields))
        compiler = Compiler(self.group.topology.graph, tuple(wanted), self, good, given, siblings)
        self._source_read |= compiler.reads_source
        return compiler.frames()

    # --- the plan's context -----------------------------------------------------------------------------------------

    def shared(self, node: nodes.Node, frame: DataFrame) -> DataFrame:
        """Keep a frame that two consumers read. A bounded run's source is kept already, and gates are cheap on it."""
        if isinstance(node, nodes.SpoutNode | nodes.GateNode) and (self.slices is not None or self._cut(node)):
            return frame
        return self._cache(frame)

    def _cut(self, node: nodes.Node) -> bool:
        passed = self.gates.get(node.id)
        return passed is not None and passed.observation is None

    def state(self, name: str, behind: bool = True) -> tuple[StateTable, int | None]:
        return self._reads.state(name, behind)

    def last_clock(self) -> int | None:
        """Return the latest time of all that a bounded run reads, in ms."""
        latest = self.counts.get(LATEST)
        return max([*self._reads.heard.values(), *([] if latest is None else [latest])], default=None)

    def map_base(self, node: nodes.PersistNode) -> DataFrame:
        """Return what a map state held before the batch: keys and values."""
        if self._reads.base is None:
            return self.group.lake.state(node.state.name).frame(self.group.spark).limit(0)
        base = self._reads.base(node.state.name)
        if base.before is None:
            return base.table.frame(self.group.spark, version=base.version)
        return base.table.base_frame(self.group.spark, base.before, base.version)

    def base_view(self, node: nodes.PersistNode) -> StateView:
        """Return the same as a map that workers open."""
        if self._reads.base is None:
            declared = self.group.lake.state(node.state.name).declared
            return StateView.of_rows(declared.keys, declared.value_names, [])
        base = self._reads.base(node.state.name)
        return base.table.view(base.version, before=base.before)

    def emitted(self, node: nodes.PersistNode) -> DataFrame | None:
        """Return what an updater emitted, if its state is committed."""
        rows = self._reads.emitted.get(node.id)
        return None if rows is None else arrow_frame(self.group.spark, rows)

    def gate(self, node: nodes.GateNode, frame: DataFrame) -> DataFrame:
        """Let a frame pass: count what the checks find, refuse the batch (or slices) where one says so, keep the rest."""
        if FAILED in frame.columns and self._first_gate is not None:
            first = self._first_gate.compiled
            self.gates[node.id] = _PassedGate(first, frame, self._observation)
            return first.kept(frame)
        judged = self._judged_before(node)
        if judged is not None:
            return judged
        compiled = self.group.compiled_gate(node, frame)
        bounded = self.slices is not None and SLICE_COLUMN in frame.columns
        annotated = compiled.annotate(frame, within=(SLICE_COLUMN,) if bounded else ())
        passed = self.gates[node.id] = _PassedGate(compiled, annotated)
        if bounded:
            kept = compiled.kept(self._judge_slices(node, passed))
            passed.results = with_samples(compiled, passed.annotated, passed.results, node.fields, SLICE_COLUMN)
            return kept
        differs = bool(compiled.drop_names) and self.group.may_differ(node, annotated)
        if differs:
            self._reads.judged.gates[node.id, self._left_out] = self, self._passed_up_to(node)
        if compiled.needs_cut or differs:
            passed.annotated = self._cache(annotated)
        if compiled.needs_cut:
            result = passed.results[self.label] = compiled.judge(passed.annotated)
            result.raise_if_refused(self.label)
            return compiled.kept(passed.annotated)
        passed.observation = Observation()
        return compiled.kept(passed.annotated.observe(passed.observation, *compiled.metrics()))

    def _judged_before(self, node: nodes.GateNode) -> DataFrame | None:
        """Return what has passed a gate by a verdict that holds for the whole attempt; None: there is none."""
        run, gates = self._reads.judged.gates.get((node.id, self._left_out), (self, None))
        if gates is None:
            return None
        # Those ahead of it, too: what this run has just made of them may be in no job, and nobody would be told its counts.
        self.gates |= gates
        passed = gates[node.id]
        if run is not self:
            # The rows do not come from the source again, so this run's own count may never be told.
            self._counts = dict(run.counts)
        return passed.compiled.kept(passed.annotated)

    def _passed_up_to(self, node: nodes.GateNode) -> dict[int, _PassedGate]:
        way = {before.id for before in self.group.topology.graph.ancestors(node.id)}
        return {node_id: passed for node_id, passed in self.gates.items() if node_id in way}

    def _judge_slices(self, node: nodes.GateNode, passed: _PassedGate) -> DataFrame:
        compiled = passed.compiled
        if compiled.needs_cut or (compiled.drop_names and self.group.may_differ(node, passed.annotated)):
            passed.annotated = self._cache(passed.annotated)
        for row in passed.annotated.groupBy(SLICE_COLUMN).agg(*compiled.metrics()).collect():
            own = passed.annotated.where(F.col(SLICE_COLUMN) == row[SLICE_COLUMN])
            passed.results[row[SLICE_COLUMN]] = compiled.verdict(row.asDict(), compiled.run_batch_checks(own))
        # Without a row there is no group. A slice that a gate ahead has refused does not come here at all.
        ahead = {before.id for before in self.group.topology.graph.ancestors(node.id)}
        gone = {slice_ for slice_, by in self.refused_slices.items() if ahead & by.keys()}
        empty = [slice_ for slice_ in self.slices or () if slice_ not in passed.results and slice_ not in gone]
        if empty:
            passed.results |= dict.fromkeys(empty, compiled.judge(passed.annotated.limit(0)))
        for slice_, result in passed.results.items():
            if result.refused:
                reasons = "; ".join(str(check) for check in result.refused)
                self.refused_slices.setdefault(slice_, {})[node.id] = f'gate "{node.gate.name}": {reasons}'
        refused = [slice_ for slice_, by in self.refused_slices.items() if node.id in by]
        return passed.annotated.where(~F.col(SLICE_COLUMN).isin(*refused)) if refused else passed.annotated

    def _cache(self, frame: DataFrame) -> DataFrame:
        kept = frame.persist()
        self._cached.append(kept)
        return kept

    @property
    def kept_frames(self) -> int:
        """Return how many frames are kept for several consumers."""
        return len(self._cached)

    def close(self) -> None:
        """Give the kept frames back."""
        for frame in self._cached:
            frame.unpersist()

    # --- accounts ---------------------------------------------------------------------------------------------------

    @property
    def counts(self) -> Mapping[str, Any]:
        """Return `received` and rejected rows and their `xor`: from the observation if a job ran, else from a counting job."""
        if self._counts is None and self._observation is None:
            rows = [self._marked[spout.id].agg(*self._counters(spout)).collect()[0] for spout in self.group.spouts]
            self._counts = {name: sum(row[name] for row in rows) for name in (RECEIVED, REJECTED)}
            self._counts[XOR] = xor([row[XOR] for row in rows])
            latest = [row[LATEST] for row in rows if LATEST in row.asDict() and row[LATEST] is not None]
            self._counts[LATEST] = max(latest, default=None)
            self._counts[LATE] = sum(row[LATE] for row in rows if LATE in row.asDict())
        elif self._counts is None:
            assert self._observation is not None
            if not self._source_read:
                self._pass_over_source()
            self._counts = dict(observed(self._observation, self._counted))
        return self._counts

    def count_now(self) -> Mapping[str, Any]:
        """Return the counts by a pass over the source, for a batch all of whose commits are there already."""
        self._source_read = False
        return self.counts

    def _counted(self) -> Mapping[str, Any]:
        """Return what the observation would have seen, by a job of its own."""
        (spout,) = self.group.spouts
        return self._marked[spout.id].agg(*self._observed_counters(spout)).collect()[0].asDict()

    def _pass_over_source(self) -> None:
        """Run a job that does nothing but let the observation see the rows."""
        (only,) = self._marked.values()
        only.write.format("noop").mode("overwrite").save()
        self._source_read = True

    def slice_counts(self) -> dict[str, tuple[int, frozenset[str]]]:
        """Return per slice of a bounded run the rows that came in, and the source files that they came from."""
        key = F.col(SLICE_COLUMN) if self.group.sources.sliced else F.lit(self.slices[0])  # type: ignore[index]
        key = F.when(F.col(CORRUPT).isNotNull(), F.lit(NO_SLICE)).otherwise(key).alias("slice")
        total: dict[str, tuple[int, frozenset[str]]] = {}
        for frame in self._marked.values():
            groups = frame.groupBy(key).agg(F.count(F.lit(1)).alias("rows"), F.collect_set(FILE).alias("files"))
            for row in groups.collect():
                rows, files = total.get(row["slice"], (0, frozenset()))
                total[row["slice"]] = (rows + row["rows"], files | frozenset(row["files"]))
        return total

    def gate_results(self, slice_: str | None = None) -> tuple[dict[str, Any], ...]:
        """Return the results of the gates as JSON, of the batch or of one slice, with some of the rows that do not hold."""
        results = []
        key = slice_ if slice_ is not None and self.group.sources.sliced else self.label
        for node_id, passed in self.gates.items():
            result = self._result(passed, key)
            if result is not None and self.slices is None and self.group.may_sample(node_id, result):
                fields = self._fields(node_id)
                result = with_samples(passed.compiled, passed.annotated, {"": result}, fields, actions=("warn",))[""]
            if result is not None:
                results.append(result.to_json())
        return tuple(results)

    def _result(self, passed: _PassedGate, key: str) -> GateResult | None:
        if passed.observation is not None and not passed.results:
            passed.results[self.label] = passed.compiled.verdict(self._metrics(passed, passed.observation))
        return passed.results.get(key)

    def _metrics(self, passed: _PassedGate, observation: Observation) -> Mapping[str, Any]:
        if observation is self._observation:
            return self.counts
        if self.slices is not None and len(self.group.waves) > 1:
            # The last wave passes all gates, and computes the frames of its own states alone.
            return passed.count()
        return observed(observation, passed.count)

    def rejected_rows(self, left_out: Mapping[str, frozenset[str]]) -> pa.Table | None:
        """Return the rows that the source's format or a gate rejected, or None if there are none. Two passes only if needed.

        Raises:
            BatchError: they are others than those that were counted on the way to the states.
        """
        parts: list[DataFrame] = []
        if self.slices is not None or self.counts[REJECTED]:
            for spout in self.group.spouts:
                marked = without(self._marked[spout.id], left_out).where(F.expr(self.group.sources.rejected))
                parts.append(rejected_by_source(marked, spout, [F.lit(0).alias(_RULES)]))
        counted = 0
        for node_id, passed in self.gates.items():
            name, drops = passed.compiled.gate.name, passed.compiled.drop_names
            if drops and (found := self._dropped(passed)):
                counted += found
                dropped, rules = passed.compiled.dropped(passed.annotated), violated(drops).alias(_RULES)
                parts.append(rejected_by_gate(dropped, name, drops, self._fields(node_id), [rules]))
        if not parts:
            return None
        rows = reduce(DataFrame.unionByName, parts).toArrow()
        again = sum(rows[_RULES].to_pylist())
        if again != counted:
            raise BatchError(
                f"{self.label}: the gates rejected rows for {counted} violated check(s), and for {again} when asked again",
                hint="let functions and conditions in front of a gate give the same for the same row, or try again",
            )
        return rows.drop_columns([_RULES])

    def _dropped(self, passed: _PassedGate) -> int:
        self._result(passed, self.label)
        return sum(
            check.unexpected or 0
            for result in passed.results.values()
            for check in result.checks
            if check.action == "drop"
        )

    def _fields(self, node_id: int) -> tuple[str, ...]:
        return self.group.topology.graph[node_id].fields


def _no_watermark(channel: str) -> int | None:
    return None


def without(frame: DataFrame, left_out: Mapping[str, frozenset[str]]) -> DataFrame:
    """Return the frame without the rows of the given files in the given slices."""
    if not left_out:
        return frame
    by_files: dict[frozenset[str], list[str]] = {}
    for slice_, files in left_out.items():
        by_files.setdefault(files, []).append(slice_)
    # Without slices all rows are of the one that a bounded run replaces as a whole.
    sliced = SLICE_COLUMN in frame.columns
    of_slices = F.col(SLICE_COLUMN).isin if sliced else lambda *_: F.lit(True)
    hit = [of_slices(*slices) & F.col(FILE).isin(*files) for files, slices in by_files.items() if files]
    return frame.where(~reduce(lambda a, b: a | b, hit)) if hit else frame
