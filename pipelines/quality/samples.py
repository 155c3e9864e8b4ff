"""Some of the rows that a gate's row rules find wrong: asked only where a rule does not hold, and of the wrong rows alone.

Rows that pass cost nothing. A bounded collect beside the counts (one `min_by` a rule) made the counting of a batch up to twice
as slow, whether a row failed or not, since it ends the generated code: docs/adr/0029-checks-by-slice.md.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F

from pipelines.quality.gate import ACTIONS
from pipelines.quality.results import GateResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pipelines.quality.compiled import CompiledGate

MOST = 10
"""Rows that are kept of one rule."""
MOST_CHARACTERS = 2000
"""The length of one row as JSON: longer rows are cut, so that the rows of five rules stay below 100 KB in a report."""

_log = logging.getLogger(__name__)
# Without this, a field that is null and was asked not to be would be missing from the row.
_JSON = {"ignoreNullFields": "false"}


def with_samples(
    compiled: CompiledGate,
    annotated: DataFrame,
    results: Mapping[str, GateResult],
    fields: Sequence[str],
    within: str | None = None,
    actions: Sequence[str] = ACTIONS,
) -> dict[str, GateResult]:
    """Return the results with `detail["sample"]` for each row rule that does not hold: up to ten rows, as JSON dicts.

    One Spark job over the rows that violate these rules, or none if all hold. A job that fails leaves the results as they are:
    the rows are there to be looked at, the verdict stands without them.

    Args:
        annotated: the rows with `_failed`.
        results: by slice, or a single one of the whole frame.
        fields: the columns of the rows to show.
        within: the column of the slices; None for the whole frame.
        actions: of which checks rows are wanted.
    """
    rules = {rule.check.name for rule in compiled.row_rules if rule.check.action in actions}
    wanted = sorted({check.name for result in results.values() for check in result.failed} & rules)
    if not wanted:
        return dict(results)
    try:
        samples = _collected(compiled, annotated, wanted, fields, within)
    except (PySparkException, Py4JError) as error:
        _log.warning("gate %s: no rows to show: %s", compiled.gate.name, str(error).splitlines()[0])
        return dict(results)
    return {key: with_rows(result, samples.get(key if within else None, {})) for key, result in results.items()}


def _collected(
    compiled: CompiledGate, annotated: DataFrame, names: Sequence[str], fields: Sequence[str], within: str | None
) -> dict[str | None, dict[str, list[dict[str, Any]]]]:
    """Return by slice and rule up to ten rows."""
    row = F.struct(*(F.col(f"`{name}`") for name in fields))
    # Any ten rows will do, so all are alike in the order; a null there leaves a row out.
    picked = [F.min_by(row, F.when(compiled.violates([name]), F.lit(1)), MOST) for name in names]
    as_text = [F.transform(rows, _as_text).alias(f"_{index}") for index, rows in enumerate(picked)]
    wrong = annotated.where(compiled.violates(names))
    keys = [F.col(within).alias("_key")] if within else []
    return {
        record["_key"] if within else None: {
            name: [_parsed(text) for text in record[f"_{index}"] or ()] for index, name in enumerate(names)
        }
        for record in wrong.groupBy(*keys).agg(*as_text).collect()
    }


def _as_text(row: Column) -> Column:
    return F.substring(F.to_json(row, _JSON), 1, MOST_CHARACTERS + 1)


def _parsed(text: str) -> dict[str, Any]:
    if len(text) > MOST_CHARACTERS:
        return {"row": text[:MOST_CHARACTERS] + "..."}
    row: dict[str, Any] = json.loads(text)
    return row


def with_rows(result: GateResult, rows: Mapping[str, list[Any]]) -> GateResult:
    """Return a gate's result with rows, by name, for the checks that do not hold."""
    checks = (
        replace(check, detail={**check.detail, "sample": rows[check.name]})
        if not check.success and rows.get(check.name)
        else check
        for check in result.checks
    )
    return GateResult(result.gate, tuple(checks))
