"""Suites: checks on whole tables, run after they were written. Gates judge before."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from assets.events import failed_rows
from assets.events.reporting import plain_failures
from assets.events.results_page import Checked, page_facts, write
from assets.view import FlowView, identifier, state_key, verdict
from pipelines.quality import Check, CheckResult, GateResult
from resources import LakeResource, QualityResource, SparkResource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pipelines.state.table import StateTable

# Stored rows up to which a table travels through this process: some hundred megabytes.
READ_WHOLE = 1_000_000
# The details of a result that are rows: they are shown as a table.
_ROWS = ("sample", "partial_unexpected_list")


def check_name(view: FlowView, state: str, check: Check | CheckResult) -> str:
    """Return the name of a suite's check in Dagster."""
    return f"suite__{identifier(check.name, [one.name for one in view.suites[state].checks])}"


def check_table(
    view: FlowView, state: str, lake: LakeResource, spark: SparkResource, quality: QualityResource
) -> GateResult:
    """Run a state's suite on its table."""
    return quality.validate_table(frame_of(lake.lake().state(state), spark), view.suites[state].checks, state)


def frame_of(table: "StateTable", spark: SparkResource) -> "DataFrame":
    """Return a state as a Spark frame. A sliced table is many small files, which delta-rs reads in a tenth of the time."""
    if table.count("true") <= READ_WHOLE:
        return spark.session().createDataFrame(table.scan())
    return table.frame(spark.session())


def metadata(view: FlowView, state: str, result: CheckResult, page: Path) -> dict[str, Any]:
    """Return a check's result as Dagster shows it."""
    shown: dict[str, Any] = {"expectation": result.expectation, "action": result.action}
    plain = result.to_json()
    for name in ("rows", "unexpected", "observed", "error"):
        if plain[name] is not None:
            shown[name] = plain[name]
    rows = _failed_rows(view, state, result)
    if rows:
        shown["failed_rows"] = failed_rows.table(rows)
    rest = {name: value for name, value in plain["detail"].items() if name not in _ROWS}
    return {**shown, **({"detail": rest} if rest else {}), "page": dg.MetadataValue.path(str(page))}


def _failed_rows(view: FlowView, state: str, result: CheckResult) -> list[dict[str, Any]]:
    checks = {check.name: check for check in view.suites[state].checks}
    return [] if result.success else failed_rows.of_result(checks[result.name], result)


def results_page(view: FlowView, state: str, result: GateResult, run: str) -> Path:
    """Write the page of a suite's results in one run."""
    checks = [
        Checked(
            check.name,
            check.expectation,
            check.action,
            check.success,
            check.rows,
            check.unexpected,
            check.error or ("" if check.observed is None else f"observed {check.to_json()['observed']}"),
            _failed_rows(view, state, check),
        )
        for check in result.checks
    ]
    facts = page_facts(view.name, run) | {"table": str(view.settings.lake / "states" / state)}
    return write(view.settings.home / "checks" / state, run, f"Suite of {state}", facts, checks)


def suite_checks(view: FlowView, state: str) -> dg.AssetChecksDefinition:
    """Make the suite of a state as asset checks: one pass over the table for all of them."""

    @dg.multi_asset_check(
        name=f"{state}_suite",
        specs=[
            dg.AssetCheckSpec(
                check_name(view, state, check),
                asset=state_key(state),
                description=f"Suite, {check.action}: {check.written}",
                blocking=check.action == "fail",
            )
            for check in view.suites[state].checks
        ],
    )
    def suite(
        context: dg.AssetCheckExecutionContext, spark: SparkResource, lake: LakeResource, quality: QualityResource
    ) -> Iterator[dg.AssetCheckResult]:
        with plain_failures():
            results = check_table(view, state, lake, spark, quality)
        page = results_page(view, state, results, context.run.run_id)
        for result in results.checks:
            yield dg.AssetCheckResult(**_judged(view, state, result, page))

    return suite


def evaluations(view: FlowView, state: str, results: GateResult, run: str) -> Iterator[dg.AssetCheckEvaluation]:
    """Return the same for a job that reports on assets which it does not own."""
    page = results_page(view, state, results, run)
    for result in results.checks:
        yield dg.AssetCheckEvaluation(**_judged(view, state, result, page))


def _judged(view: FlowView, state: str, result: CheckResult, page: Path) -> dict[str, Any]:
    key = dg.AssetCheckKey(state_key(state), check_name(view, state, result))
    return verdict(key, result.success, result.action, metadata(view, state, result, page))
