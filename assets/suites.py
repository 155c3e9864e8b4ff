"""Suites: checks on whole tables, run after they were written. What stands at a gate is judged before."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import dagster as dg

from assets.failures import told_plainly
from assets.view import FlowView, identifier, state_key
from pipelines.quality import Check, CheckResult, GateResult
from resources import LakeResource, QualityResource, SparkResource, markdown, table_metadata

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pipelines.state.table import StateTable

# Stored rows up to which a table travels through this process: some hundred megabytes.
READ_WHOLE = 1_000_000


def check_name(check: Check | CheckResult) -> str:
    """The name of a suite's check in Dagster."""
    return f"suite__{identifier(check.name)}"


def severity(action: str) -> dg.AssetCheckSeverity:
    """A check that fails a batch at a gate is an error on a table; any other is a warning."""
    return dg.AssetCheckSeverity.ERROR if action == "fail" else dg.AssetCheckSeverity.WARN


def check_table(
    view: FlowView, state: str, lake: LakeResource, spark: SparkResource, quality: QualityResource
) -> GateResult:
    """Run a state's suite on its table.

    Raises:
        UnknownStateError: the flow has not run yet.
    """
    return quality.validate_table(frame_of(lake.lake().state(state), spark), view.suites[state].checks, state)


def frame_of(table: "StateTable", spark: SparkResource) -> "DataFrame":
    """A state as a Spark frame. A sliced table is many small files, which delta-rs reads in a tenth of Spark's time."""
    if table.count("true") <= READ_WHOLE:
        read = table.scan()
        return spark.session().createDataFrame(read.cast(table_metadata.plain_schema(read.schema)))
    return table.frame(spark.session())


def metadata(result: CheckResult) -> dict[str, Any]:
    """A check's result as Dagster shows it."""
    shown: dict[str, Any] = {"expectation": result.expectation, "action": result.action}
    plain = result.to_json()
    for name in ("rows", "unexpected", "observed", "error"):
        if plain[name] is not None:
            shown[name] = plain[name]
    sample = plain["detail"].get("sample")
    if sample:
        shown["sample"] = dg.MetadataValue.md(markdown.table(list(sample[0]), sample))
    rest = {name: value for name, value in plain["detail"].items() if name != "sample"}
    return {**shown, "detail": rest} if rest else shown


def suite_checks(view: FlowView, state: str) -> dg.AssetChecksDefinition:
    """The suite of a state as asset checks: one pass over the table for all of them."""

    @dg.multi_asset_check(
        name=f"{state}_suite",
        specs=[
            dg.AssetCheckSpec(
                check_name(check),
                asset=state_key(state),
                description=f"Suite, {check.action}: {check.expectation}",
                blocking=check.action == "fail",
            )
            for check in view.suites[state].checks
        ],
    )
    def suite(
        context: dg.AssetCheckExecutionContext, spark: SparkResource, lake: LakeResource, quality: QualityResource
    ) -> Iterator[dg.AssetCheckResult]:
        with told_plainly():
            found = check_table(view, state, lake, spark, quality)
        for one in found.checks:
            yield dg.AssetCheckResult(
                asset_key=state_key(state),
                check_name=check_name(one),
                passed=one.success,
                severity=severity(one.action),
                metadata=metadata(one),
            )

    return suite


def evaluations(state: str, found: GateResult) -> Iterator[dg.AssetCheckEvaluation]:
    """The same for a job that reports on assets which it does not own."""
    for one in found.checks:
        yield dg.AssetCheckEvaluation(
            asset_key=state_key(state),
            check_name=check_name(one),
            passed=one.success,
            severity=severity(one.action),
            metadata=metadata(one),
        )
