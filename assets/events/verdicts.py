"""The verdicts of a gate's checks in a run: per slice, and over all batches or slices together."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from assets.events import failed_rows, markdown
from assets.events.results_page import Checked
from assets.view import FlowView, GateCheck
from resources.dagster_internals import (
    COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES,
    AssetCheckEvaluationTargetMaterializationData,
    PartitionKeyFilter,
)

if TYPE_CHECKING:
    from pipelines import Lake

# Days that a check's verdict lists: more would not be read.
LISTED = 31


def check_specs(view: FlowView) -> list[dg.AssetCheckSpec]:
    """Return the checks of a flow's gates: with one verdict per slice where the flow has slices."""
    with warnings.catch_warnings():
        # A preview in Dagster 1.13; the dependency is held below 1.14. docs/adr/0029-checks-by-slice.md
        warnings.simplefilter("ignore", dg.PreviewWarning)
        return [
            dg.AssetCheckSpec(
                gate_check.name,
                asset=gate_check.key.asset_key,
                description=f"Gate {gate_check.gate}, {gate_check.check.action}: {gate_check.check.written}",
                blocking=gate_check.check.action == "fail",
                partitions_def=view.partitions,
            )
            for gate_check in view.gate_checks
        ]


def materialization_of(
    instance: dg.DagsterInstance, key: dg.AssetKey, slice_: str
) -> AssetCheckEvaluationTargetMaterializationData | None:
    """Return what a verdict on a slice is about: the slice's last materialization.

    Dagster counts a partition's verdict only as long as it names the last materialization of that partition. The class
    is not a public one of Dagster's, which is held below 1.14.
    """
    wanted = dg.AssetRecordsFilter(asset_key=key, asset_partitions=[slice_])
    records = instance.fetch_materializations(wanted, limit=1).records
    if not records:
        return None
    return AssetCheckEvaluationTargetMaterializationData(
        storage_id=records[0].storage_id, run_id=records[0].run_id, timestamp=records[0].timestamp
    )


@dataclass
class GateVerdict:
    """The verdict of one gate check, over all batches or slices of a run or, with `slice`, on that slice."""

    check: GateCheck
    view: FlowView
    lake: Lake
    slice: str | None = None
    rows: int = 0
    unexpected: int = 0
    observed: Any = None
    failed: list[dict[str, Any]] = field(default_factory=list)
    txids: list[int] = field(default_factory=list)
    slices: list[str] = field(default_factory=list)
    page: Path | None = None
    judged: bool = False
    _seen: list[dict[str, Any]] = field(default_factory=list)

    def add(self, where: int | str, result: Mapping[str, Any]) -> None:
        """Take in the result of one batch (its txid) or slice."""
        self.judged = True
        self.rows += result.get("rows") or 0
        self.unexpected += result.get("unexpected") or 0
        self.observed = result.get("observed")
        if not result["success"]:
            said = result.get("error") or result.get("unexpected") or result.get("observed")
            batch = isinstance(where, int)
            self.failed.append(
                {"where": f"batch {where}" if batch else where, "rows": result.get("rows"), "unexpected": said}
            )
            self.txids += [where] if isinstance(where, int) else []
            self.slices += [where] if isinstance(where, str) else []
            self._take_rows({"txid" if batch else "slice": where}, result)

    def _take_rows(self, place: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        if len(self._seen) < failed_rows.SHOWN:
            rows = failed_rows.of_detail(self.check.check, result.get("detail") or {})
            self._seen += [{**place, **row} for row in rows][: failed_rows.SHOWN - len(self._seen)]

    @property
    def was_asked(self) -> bool:
        """Check whether the check has seen anything, so that there is something to report."""
        return bool(self.rows or self.failed)

    def metadata(self) -> dict[str, Any]:
        """Return the metadata that Dagster shows."""
        shown: dict[str, Any] = {
            "action": self.check.check.action,
            "expectation": self.check.check.written,
            "rows": self.rows,
            "unexpected": self.unexpected,
        }
        if self.slice is not None and self.observed is not None:
            shown["observed"] = self.observed
        if self.failed:
            more = len(self.failed) - LISTED
            text = markdown.table(["where", "rows", "unexpected"], self.failed[:LISTED])
            shown["where"] = dg.MetadataValue.md(text + (f"\n\nand {more} more" if more > 0 else ""))
            shown |= failed_rows.failed_metadata(self.view, self.check, self.failed_rows)
        return shown if self.page is None else {**shown, "page": dg.MetadataValue.path(str(self.page))}

    @cached_property
    def failed_rows(self) -> list[dict[str, Any]]:
        """Return some of the rejected rows; call it when all results are in.

        The gate's result brings them along. A batch that was refused as a whole has no result, but a copy in quarantine.
        """
        if self._seen or not self.failed:
            return self._seen
        return failed_rows.of_gate(self.view, self.lake, self.check, self.txids, self.slices)

    def checked(self) -> Checked:
        """Return the check as the page of results shows it."""
        check, said = self.check.check, ", ".join(str(failure["where"]) for failure in self.failed[:LISTED])
        name = f"{self.check.gate}: {check.name}"
        failed = self.failed_rows
        return Checked(name, check.written, check.action, not self.failed, self.rows, self.unexpected, said, failed)

    def result(self, instance: dg.DagsterInstance) -> dg.AssetCheckResult:
        """Return the result for the step that owns the check; in a run of one partition Dagster takes it for that one's.

        Dagster wants one of each check. One that judged nothing in this run says what it said last. Not that of `fail`, which
        ends the run: what it refused is read again until it is well or skipped, so a run that reads nothing has no more of it.
        """
        last = None if self.judged or self.failed else self._last(instance)
        if last is None or (not last.passed and last.severity == dg.AssetCheckSeverity.ERROR):
            return dg.AssetCheckResult(**self.check.judged(not self.failed, self.metadata()))
        told = {**last.metadata, "judged": "nothing in this run; this is the last verdict"}
        return dg.AssetCheckResult(**self.check.judged(last.passed, told))

    def _last(self, instance: dg.DagsterInstance) -> dg.AssetCheckEvaluation | None:
        """Return the last verdict on the same slice, or on the table as a whole."""
        records = instance.event_log_storage.get_asset_check_execution_history(
            self.check.key,
            limit=1,
            status=set(COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES),
            partition_filter=PartitionKeyFilter(key=self.slice),
        )
        return records[0].evaluation if records else None

    def evaluation(self, about: AssetCheckEvaluationTargetMaterializationData | None = None) -> dg.AssetCheckEvaluation:
        """Return the verdict for a step that does not own the check, that fails, or that reports each slice by itself.

        Args:
            about: of a slice the materialization that was judged.
        """
        return dg.AssetCheckEvaluation(
            **self.check.judged(not self.failed, self.metadata()),
            blocking=self.check.check.action == "fail",
            partition=self.slice,
            target_materialization_data=about,
        )
