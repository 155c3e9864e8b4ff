"""catch_up_job: batches become materializations of the slices that they touched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from assets.events.reporting import watching
from assets.view import FlowView
from ops.schedules import _Looks
from pipelines import Runtime
from pipelines.catalog import FlowSettings
from pipelines.execution.report import BatchReport
from resources import NimbusResource
from tests.nimbus import looks

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:Property `OpDefinition.version`:DeprecationWarning")]

Lay = Callable[[str, list[tuple[str | None, int]]], None]


def run(defs: dg.Definitions, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    return defs.resolve_job_def("catch_up_job").execute_in_process(instance=instance, raise_on_error=False)


def news(instance: dg.DagsterInstance, view: FlowView) -> str | None:
    """What has arrived for a flow that no catch-up has run to the end."""
    arrived, unknown, _ = _Looks().arrived(instance, [view])
    assert not unknown
    return arrived.get(view.name)


def shown_by(verdict: Any) -> Mapping[str, Any]:
    """The metadata of a check's verdict."""
    return dict(verdict.event.dagster_event.asset_check_evaluation_data.metadata)


def test_what_a_failed_catch_up_left_is_news_still(
    spark: SparkSession, defs: dg.Definitions, lay: Lay, view: FlowView, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay("2024-01-01", [("a", 1)])

    def fails(*_: Any, **__: Any) -> None:
        raise OSError("No space left on device")

    with dg.instance_for_test() as instance:
        with monkeypatch.context() as full:
            full.setattr(Runtime, "catch_up", fails)
            assert not run(defs, instance).success
        assert news(instance, view) is not None
        assert run(defs, instance).success
        assert news(instance, view) is None


def test_catch_up_reports_slices_checks_and_answers(
    spark: SparkSession, defs: dg.Definitions, lay: Lay, view: FlowView, settings: FlowSettings
) -> None:
    lay("2024-01-01", [("a", 0), (None, 7)])
    lay("2024-01-02", [("a", 2), ("b", 4)])
    seen: list[BatchReport] = []
    with dg.instance_for_test() as instance:
        assert news(instance, view) is not None
        with watching(seen.append):
            assert run(defs, instance).success
        assert [batch.txid for batch in seen] == [0, 1]
        assert instance.get_materialized_partitions(dg.AssetKey("lines")) == {"2024-01-01", "2024-01-02"}
        record = instance.get_latest_materialization_event(dg.AssetKey("rides"))
        assert record is not None
        assert record.asset_materialization is not None
        metadata = record.asset_materialization.metadata
        assert (metadata["txid_first"].value, metadata["txid_last"].value) == (1, 1)
        assert metadata["dagster/row_count"].value == 2
        for plot in ("rows per batch", "batch seconds", "table size", "files"):
            # Inside the page, not behind a link.
            assert len(str(metadata[plot].value)) < 1000
        assert instance.get_latest_materialization_event(dg.AssetKey("top_line")) is not None
        key = dg.AssetCheckKey(dg.AssetKey("rides"), "plausible__line_is_there")
        (verdict,) = instance.event_log_storage.get_asset_check_execution_history(key, limit=5)
        assert verdict.status.value == "FAILED"
        shown = shown_by(verdict)
        (row,) = shown["failed_rows"].records
        assert row.data["reason"] == 'gate "plausible": does not hold: line_is_there'
        assert (row.data["row"], row.data["txid"]) == ('{"day":"2024-01-01","line":null,"n":7}', 0)
        assert shown["quarantine"].value == dg.AssetKey(["quarantine", "trips"])
        assert shown["quarantine_path"].value == str(settings.lake / "quarantine" / "trips")
        assert shown["replay"].value == "tridelta replay-quarantine trips --gate plausible --reason line_is_there"
        key = dg.AssetCheckKey(dg.AssetKey("rides"), "plausible__not_empty")
        (warned,) = instance.event_log_storage.get_asset_check_execution_history(key, limit=5)
        (row,) = shown_by(warned)["failed_rows"].records
        assert (row.data["line"], row.data["n"], row.data["txid"]) == ("a", 0, 0)
        page = Path(str(shown["page"].value)).read_text("utf-8")
        assert "plausible: line_is_there" in page
        assert "&quot;n&quot;:7" in page

        # Nothing new: the schedule skips, and a run makes no batch.
        assert news(instance, view) is None
        seen.clear()
        with watching(seen.append):
            assert run(defs, instance).success
        assert seen == []
        lay("2024-01-03", [("b", 1)])
        assert news(instance, view) is not None
        assert "2024-01-03.json" in str(news(instance, view))


def test_a_batch_that_a_gate_refuses_turns_its_check_red(spark: SparkSession, defs: dg.Definitions, lay: Lay) -> None:
    lay("2024-01-01", [("a", 5000)])
    with dg.instance_for_test() as instance:
        result = run(defs, instance)
        assert not result.success
        failure = result.failure_data_for_node("catch_up_trips")
        assert failure is not None
        assert failure.user_failure_data is not None
        assert "tridelta skip trips 0" in str(failure.user_failure_data.description)
        key = dg.AssetCheckKey(dg.AssetKey("rides"), "plausible__fits")
        (verdict,) = instance.event_log_storage.get_asset_check_execution_history(key, limit=5)
        assert verdict.status.value == "FAILED"
        shown = shown_by(verdict)
        (row,) = shown["failed_rows"].records
        assert '"n":5000' in row.data["row"]
        assert "fits: 1 of 1 rows" in row.data["reason"]
        assert shown["replay"].value == "tridelta replay-quarantine trips --reason poison"


def test_tables_that_are_not_made_yet_are_no_failure(
    defs: dg.Definitions, view: FlowView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flow that was deployed a moment ago: its worker has committed no batch, and the job has nothing to judge."""
    monkeypatch.setattr(NimbusResource, "deployed", lambda _: {view.name: looks.flow(view.name)})
    with dg.instance_for_test() as instance:
        done = run(defs, instance)
        assert done.success
        said = "\n".join(one.user_message for one in instance.all_logs(done.run_id))
    for state in view.suites:
        assert f"{state} is not made yet" in said
    assert not done.get_asset_check_evaluations()
