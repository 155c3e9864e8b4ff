"""Checks on a whole table, as a Dagster asset check runs them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from pipelines.quality.compiled import FAILED, CompiledGate, compile_gate
from pipelines.quality.expectations import run_expectations
from pipelines.quality.gate import Gate, as_checks
from pipelines.quality.results import GateResult, to_json_value
from pipelines.quality.samples import with_rows
from pipelines.spark.arrow_frame import plain_dicts, to_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def validate_frame(df: DataFrame, checks: Iterable[Any], *, sample: int = 10, name: str = "table") -> GateResult:
    """Check a whole table: in one Spark aggregation where possible, by great-expectations for the rest.

    Args:
        df: the table's rows.
        checks: checks (their actions do not matter here: nothing is dropped), or great-expectations objects.
        sample: how many violating rows of a failed row rule to put into its `detail["sample"]`, as JSON dicts.
        name: the name that the result carries.

    Raises:
        FieldError: a check names a column that the table lacks.
        FunctionError: a check's arguments do not suit the column's type.
    """
    compiled = compile_gate(Gate(name, as_checks(checks)), df.schema)
    annotated = compiled.annotate(df)
    result = compiled.judge(annotated, df)
    return _with_samples(compiled, annotated, result, sample) if sample else result


def _with_samples(compiled: CompiledGate, annotated: DataFrame, result: GateResult, sample: int) -> GateResult:
    """Return `result` with sample rows for each row rule that does not hold."""
    rules = {rule.check.name for rule in compiled.row_rules}
    wanted = [check.name for check in result.failed if check.name in rules]
    if not wanted:
        return result
    # One query for all: a limit a rule, united.
    parts = [compiled.violating(annotated, name).limit(sample).withColumn(FAILED, F.lit(name)) for name in wanted]
    united = parts[0]
    for part in parts[1:]:
        united = united.unionAll(part)
    rows: dict[str, list[Any]] = {name: [] for name in wanted}
    # Not by `collect`, whose times are in the zone of this host.
    for values in plain_dicts(to_arrow(united)):
        rows[values.pop(FAILED)].append(to_json_value(values))
    return with_rows(result, rows)


def run_with_great_expectations(
    df: DataFrame, checks: Iterable[Any], *, complete: bool = True, name: str = "table"
) -> GateResult:
    """Return the same question as `validate_frame`, all of it answered by great-expectations: for comparison.

    Args:
        df: the table's rows.
        checks: checks, or great-expectations objects.
        complete: fetch the counts of the successful ones too.
        name: the name that the result carries.
    """
    gate = Gate(name, as_checks(checks))
    return GateResult(name, run_expectations(df, gate.checks, complete=complete))
