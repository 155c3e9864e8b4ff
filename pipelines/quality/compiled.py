"""A gate compiled for one schema: one pass over the rows decides all that Spark columns can decide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pipelines.errors import FunctionError
from pipelines.quality.aggregates import AggregateRule, check_schema, compile_aggregate
from pipelines.quality.gate import Check, Gate
from pipelines.quality.literals import Frame
from pipelines.quality.results import CheckResult, GateResult, merge_results
from pipelines.quality.rules import RowRule, compile_row_rule
from pipelines.spark.arrow_frame import empty_frame

FAILED = "_failed"
# The bits of a signed bigint that stay positive.
MOST_ROW_RULES = 63


@dataclass(frozen=True)
class CompiledGate:
    """A gate, ready to run on frames of one schema.

    The engine's order of calls: `annotate`, then `metrics` over the annotated frame (observed during the write, or in
    an aggregation of its own when `needs_cut`), `run_batch_checks` if there are `batch_checks`, `verdict`; or `judge`, which
    does these three. `kept` goes on, `dropped` goes to quarantine.

    Attributes:
        gate: the gate as defined.
        row_rules: checks about rows.
        aggregate_rules: checks that are one aggregate each.
        schema_results: checks that the schema has decided.
        batch_checks: checks that only great-expectations can run.
        shown: the columns that these see.
    """

    gate: Gate
    row_rules: tuple[RowRule, ...]
    aggregate_rules: tuple[AggregateRule, ...]
    schema_results: tuple[CheckResult, ...]
    batch_checks: tuple[Check, ...]
    shown: tuple[str, ...]

    @property
    def observable(self) -> bool:
        """Return whether `metrics()` may be used in `observe`, which takes no distinct aggregates."""
        return not any(rule.distinct for rule in self.aggregate_rules)

    @property
    def needs_cut(self) -> bool:
        """Return whether rows must wait for the verdict: a check may refuse the batch, or needs a pass of its own."""
        refusing = any(check.action == "fail" for check in self.gate.checks)
        return refusing or bool(self.batch_checks) or not self.observable

    @property
    def by_rows_alone(self) -> bool:
        """Return whether the verdict follows from the rows' `_failed` alone, each made from its own row."""
        plain = all(not rule.key and _mostly(rule.check) == 1 for rule in self.row_rules)
        return plain and not self.needs_cut and not self.aggregate_rules

    @cached_property
    def drop_names(self) -> tuple[str, ...]:
        """Return the names of the checks that drop rows."""
        return tuple(rule.check.name for rule in self.row_rules if rule.check.action == "drop")

    def _metric(self, index: int, kind: str) -> str:
        # The gate's name keeps two gates of one plan apart; the index keeps odd check names out of Spark.
        return f"_{self.gate.name}_{index}_{kind}"

    def annotate(self, df: DataFrame, within: Sequence[str] = (), unless: Column | None = None) -> DataFrame:
        """Return `df` with `_failed`: which row rules each row violates, as one bit per rule (0 for good rows).

        A number is nearly free in the metrics, where an array of names cost a quarter more time; `failed_names` and
        `dropped` give the names.

        Args:
            df: a frame with the columns that the gate was compiled for.
            within: columns each combination of which is a batch of its own, for rules that compare rows.
            unless: true for rows that no rule is about; theirs is 0.
        """
        # Windows become columns first: inside a conditional Spark would not plan them.
        windows = {
            self._metric(index, "repeated"): rule.violated(within)
            for index, rule in enumerate(self.row_rules)
            if rule.key
        }
        marked = df.withColumns(windows) if windows else df
        bits = self._bits if unless is None else F.when(unless, F.lit(0).cast("bigint")).otherwise(self._bits)
        return marked.withColumn(FAILED, bits).drop(*windows)

    @cached_property
    def _bits(self) -> Column:
        """Return the column `_failed`. Built once: a Column is made by a call to the JVM a part, some 0.1 s for six rules."""
        bits = F.lit(0).cast("bigint")
        for index, rule in enumerate(self.row_rules):
            flag = F.col(self._metric(index, "repeated")) if rule.key else rule.violated()
            bits = bits.bitwiseOR(F.when(flag, _bit(index)).otherwise(F.lit(0).cast("bigint")))
        return bits

    def failed_names(self) -> Column:
        """Return the names behind `_failed`, as an `array<string>` Column."""
        names = [F.when(self.violates([rule.check.name]), rule.check.name).otherwise("") for rule in self.row_rules]
        # array_remove, because a lambda (filter, array_compact) would end whole-stage code generation.
        return F.array_remove(F.array(*names), "") if names else F.array().cast(T.ArrayType(T.StringType()))

    def violating(self, annotated: DataFrame, name: str) -> DataFrame:
        """Return the rows of an annotated frame that violate the row rule `name`, without `_failed`."""
        return annotated.where(self.violates([name])).drop(FAILED)

    def violates(self, names: Iterable[str]) -> Column:
        """Return true for the rows of an annotated frame that violate one of the row rules `names`."""
        wanted = set(names)
        mask = sum(1 << index for index, rule in enumerate(self.row_rules) if rule.check.name in wanted)
        return F.col(FAILED).bitwiseAND(F.lit(mask).cast("bigint")) != 0

    def metrics(self, unless: Column | None = None) -> list[Column]:
        """Return named aggregate Columns over an annotated frame; their values are what `verdict` takes.

        Args:
            unless: as for `annotate`, of a gate that judges `by_rows_alone`.
        """
        if unless is None:
            return list(self._metrics)
        return [F.count(F.when(~unless, 1)).alias(self._metric(0, "rows")), *self._metrics[1:]]

    @cached_property
    def _metrics(self) -> tuple[Column, ...]:
        columns = [F.count(F.lit(1)).alias(self._metric(0, "rows"))]
        for index, rule in enumerate(self.row_rules):
            violated = self.violates([rule.check.name])
            columns.append(F.count(F.when(violated, 1)).alias(self._metric(index, "unexpected")))
            # Only `mostly` needs to know how many rows there were to judge.
            if rule.considered is not None and _mostly(rule.check) < 1:
                columns.append(F.count(F.when(rule.considered, 1)).alias(self._metric(index, "considered")))
        for index, aggregate in enumerate(self.aggregate_rules):
            columns += [column.alias(self._metric(index, key)) for key, column in aggregate.columns.items()]
        return tuple(columns)

    def verdict(self, metrics: Mapping[str, Any], batch_results: Iterable[CheckResult] = ()) -> GateResult:
        """Return the gate's result from the values of `metrics()`.

        Args:
            metrics: value by name: a Row's `asDict()`, or `Observation.get`.
            batch_results: what `run_batch_checks` returned.
        """
        rows = int(metrics[self._metric(0, "rows")])
        results = [*self.schema_results, *batch_results]
        for index, rule in enumerate(self.row_rules):
            unexpected = int(metrics[self._metric(index, "unexpected")])
            considered = int(metrics.get(self._metric(index, "considered"), rows))
            results.append(_row_result(rule, rows, unexpected, considered))
        for index, aggregate in enumerate(self.aggregate_rules):
            values = {key: metrics[self._metric(index, key)] for key in aggregate.columns}
            success, observed = aggregate.evaluate(values)
            check = aggregate.check
            results.append(CheckResult(check.name, check.expectation, check.action, success, rows, observed=observed))
        return merge_results(self.gate.name, [check.name for check in self.gate.checks], results)

    def judge(self, annotated: DataFrame, batch: DataFrame | None = None) -> GateResult:
        """Return the verdict on an annotated frame, at once: by an aggregation of its own.

        Args:
            batch: what `run_batch_checks` takes, where that is not the annotated frame itself.
        """
        metrics = annotated.agg(*self.metrics()).collect()[0].asDict()
        return self.verdict(metrics, self.run_batch_checks(annotated if batch is None else batch))

    def run_batch_checks(self, df: DataFrame) -> tuple[CheckResult, ...]:
        """Return the checks that only great-expectations can run, on one batch (or slice). Costs a second or more.

        Args:
            df: the batch, best persisted.
        """
        from pipelines.quality.expectations import run_expectations

        if not self.batch_checks:
            return ()
        hidden = [name for name in df.columns if name not in self.shown]
        return run_expectations(df.drop(*hidden), self.batch_checks)

    def dropped(self, annotated: DataFrame) -> DataFrame:
        """Return the rows that violate a `drop` check, with `_failed` as the names of all row rules that they violate."""
        return annotated.where(self.violates(self.drop_names)).withColumn(FAILED, self.failed_names())

    def kept(self, annotated: DataFrame) -> DataFrame:
        """Return the rows that pass, without `_failed`."""
        passing = annotated.where(~self.violates(self.drop_names)) if self.drop_names else annotated
        return passing.drop(FAILED)


def _bit(index: int) -> Column:
    return F.lit(1 << index).cast("bigint")


def _mostly(check: Check) -> float:
    return float(check.kwargs.get("mostly", 1))


def _row_result(rule: RowRule, rows: int, unexpected: int, considered: int) -> CheckResult:
    check, mostly, detail = rule.check, _mostly(rule.check), dict[str, Any]()
    success = unexpected == 0
    if mostly < 1:
        share = (considered - unexpected) / considered if considered else 1.0
        success, detail = share >= mostly, {"mostly": mostly, "considered": considered, "share": share}
    return CheckResult(check.name, check.expectation, check.action, success, rows, unexpected, detail=detail)


def compile_gate(gate: Gate, schema: T.StructType, fields: Sequence[str] | None = None) -> CompiledGate:
    """Compile a gate for frames of `schema`. Needs a running Spark session.

    Args:
        gate: the gate.
        schema: of the frames.
        fields: the columns that a check of the table's form sees, in order, for the engine has more of its own; None: all.

    Raises:
        FieldError: a check names a column that the schema lacks.
        FunctionError: a check's arguments do not suit the column's type.
    """
    gate.validate(schema.fieldNames())
    frame, shown = Frame(schema, gate.name), schema.fieldNames() if fields is None else list(fields)
    rows, aggregates, decided, batch = list[RowRule](), list[AggregateRule](), list[CheckResult](), list[Check]()
    for check in gate.checks:
        if check.is_row_rule:
            rows.append(compile_row_rule(check, frame))
        elif check.custom is None and (result := check_schema(check, schema, shown)) is not None:
            decided.append(result)
        elif check.custom is None and (aggregate := compile_aggregate(check, frame)) is not None:
            aggregates.append(aggregate)
        else:
            batch.append(check)
    if len(rows) > MOST_ROW_RULES:
        raise FunctionError(
            f"gate {gate.name}", f"has {len(rows)} row rules, more than {MOST_ROW_RULES}", hint="split it"
        )
    _analyse(rows, aggregates, schema)
    return CompiledGate(gate, tuple(rows), tuple(aggregates), tuple(decided), tuple(batch), tuple(shown))


def _analyse(rows: Sequence[RowRule], aggregates: Sequence[AggregateRule], schema: T.StructType) -> None:
    """Let Spark analyse the compiled columns now, so that a wrong type is an error of the definition."""
    empty = empty_frame(SparkSession.active(), schema)
    try:
        empty.select([rule.violated().alias(f"c{index}") for index, rule in enumerate(rows)]).schema  # noqa: B018
        empty.agg(F.count(F.lit(1)), *[c for rule in aggregates for c in rule.columns.values()]).schema  # noqa: B018
        return
    except AnalysisException:
        pass
    for check, columns in [(rule.check, [rule.violated()]) for rule in rows]:
        _analyse_one(check, lambda columns=columns: empty.select(columns).schema)
    for rule in aggregates:
        _analyse_one(rule.check, lambda rule=rule: empty.agg(*rule.columns.values()).schema)


def _analyse_one(check: Check, analyse: Any) -> None:
    try:
        analyse()
    except PySparkException as error:
        raise FunctionError(check.operation, str(error).splitlines()[0]) from error
