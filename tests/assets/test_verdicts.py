"""What a check of a gate said, taken together and of one slice: without Spark and without a run."""

from __future__ import annotations

import dataclasses
import json
import shlex
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.events import DagsterEvent
from dagster._core.test_utils import create_run_for_test
from deltalake import DeltaTable, write_deltalake

from assets.events.failed_rows import of_detail, of_gate, of_result, quarantine_links, table
from assets.events.reporting import Reporter
from assets.events.verdicts import GateVerdict, check_specs
from assets.factory import failure, state_assets
from assets.view import FlowView
from pipelines import Lake
from pipelines.catalog import FlowSettings
from pipelines.execution.report import SliceReport
from pipelines.quality import CheckResult, drop
from pipelines.state.snapshot import Snapshot
from resources import LakeResource, SparkResource
from tests.assets.conftest import TRIPS

SEEN = {"sample": [{"line": None, "n": 0}]}
WRONG: dict[str, Any] = {"success": False, "rows": 20, "unexpected": 8, "observed": None}


@pytest.fixture
def lake(view: FlowView) -> Lake:
    return Lake(view.settings.lake)


def verdict(view: FlowView, lake: Lake, name: str, slice_: str | None = None) -> GateVerdict:
    (check,) = [one for one in view.gate_checks if one.check.name == name]
    return GateVerdict(check, view, lake, slice_)


def rows_of(told: dg.AssetCheckEvaluation) -> list[dict[str, Any]]:
    table = told.metadata["failed_rows"]
    assert isinstance(table, dg.TableMetadataValue)
    return [dict(one.data) for one in table.records]


def test_checks_have_the_partitions_of_the_table(view: FlowView) -> None:
    assert view.partitions is not None
    assert [(one.name, one.partitions_def == view.partitions, one.blocking) for one in check_specs(view)] == [
        ("plausible__fits", True, True),
        ("plausible__line_is_there", True, False),
        ("plausible__not_empty", True, False),
    ]


def test_ten_rows_of_a_run_each_with_its_slice(view: FlowView, lake: Lake) -> None:
    whole = verdict(view, lake, "not_empty")
    for day in ("2024-01-01", "2024-01-02"):
        whole.add(day, {**WRONG, "detail": {"sample": [{"line": "a", "n": -n} for n in range(8)]}})
    told = whole.evaluation()
    rows = rows_of(told)
    assert (told.passed, told.partition, told.severity) == (False, None, dg.AssetCheckSeverity.WARN)
    assert told.metadata["unexpected"].value == 16
    assert [row["slice"] for row in rows] == ["2024-01-01"] * 8 + ["2024-01-02"] * 2
    assert rows[3]["reason"] == "n is -3; expected values to be between (min_value=1)"
    # A warning keeps its rows: there is nothing to replay.
    assert "quarantine" not in told.metadata


def test_the_way_back_is_one_command_of_a_shell(view: FlowView) -> None:
    (one,) = [check for check in view.gate_checks if check.check.name == "line_is_there"]
    name = "a$(touch p)(x)"
    hostile = dataclasses.replace(one, check=dataclasses.replace(one.check, name=name))
    words = shlex.split(quarantine_links(view, hostile)["replay"])
    assert words == ["tridelta", "replay-quarantine", view.name, "--gate", "plausible", "--reason", name]
    one_slice, other = (SliceReport("trips", name, 0, 0, (), 0, error="x") for name in ("$(touch p)", "a b"))
    said = failure(view, (one_slice, other), 2).description or ""
    assert shlex.split(said.rpartition("or: ")[2])[2:] == [view.name, "--from", "$(touch p)", "--to", "a b"]


def test_long_rows_are_cut(view: FlowView, lake: Lake, tmp_path: Path) -> None:
    """What a check shows is kept with each of its events: three rows of 20 MB were 60 MB of metadata."""
    (fits,) = [one for one in view.gate_checks if one.check.name == "fits"]
    check = dataclasses.replace(fits, check=dataclasses.replace(fits.check, action="drop"))
    columns: dict[str, list[Any]] = {name: ["\u00e9" * 5000] * 2 for name in ("reason", "row", "file")}
    columns |= {"stage": [check.gate] * 2, "rule": ["fits"] * 2, "_slice": ["2024-01-02", None], "_txid": [-1, 7]}
    write_deltalake(tmp_path / "held", pa.table(columns))
    read: list[pa.Table] = []

    class Held(Snapshot):
        def query(self, sql: str) -> pa.Table:
            read.append(super().query(sql))
            return read[-1]

    def stored(where: str, columns: str = "*") -> pa.Table:
        return Held(DeltaTable(tmp_path / "held")).query(f"SELECT {columns} FROM state WHERE {where}")

    held = SimpleNamespace(exists=lambda: True, stored=stored)
    of_held = cast(Lake, SimpleNamespace(quarantine_path=lambda _: "", table=lambda *_: held))
    rows = of_gate(view, of_held, check, [7], ["2024-01-02"])
    assert read[0].nbytes < 30_000
    assert [sorted(row) for row in rows] == [
        ["file", "reason", "row", "txid"],
        ["file", "reason", "row", "slice", "txid"],
    ]
    said = of_detail(check.check, {"partial_unexpected_list": ["x" * 5000]})
    assert {len(value) for value in said[0].values()} == {2003}
    shown = table([*rows, *said, {"a value of another kind": ["x" * 5000]}])
    texts = [text for one in shown.records for text in one.data.values() if isinstance(text, str)]
    assert max(map(len, texts)) == 2003


def test_a_slice_says_what_it_has_seen(view: FlowView, lake: Lake) -> None:
    one = verdict(view, lake, "fits", "2024-01-02")
    one.add("2024-01-02", {**WRONG, "detail": {"partial_unexpected_list": [1001, 1002]}})
    told = one.evaluation()
    assert (told.passed, told.partition, told.blocking) == (False, "2024-01-02", True)
    # Where only great-expectations can judge, it names values.
    assert [(row["n"], row["slice"]) for row in rows_of(told)] == [(1001, "2024-01-02"), (1002, "2024-01-02")]
    assert "quarantine" in told.metadata


def test_only_what_has_judged_a_slice_says_something_of_it(view: FlowView, lake: Lake) -> None:
    """A stream's part of a slice was told as passed with the report of another stream, over its own verdict."""
    told: list[dg.AssetCheckEvaluation] = []
    context = SimpleNamespace(
        has_partition_key=False,
        log=SimpleNamespace(info=print),
        log_event=told.append,
        instance=SimpleNamespace(fetch_materializations=lambda *_, **__: SimpleNamespace(records=[])),
    )
    gates = ({"gate": "plausible", "checks": [{"name": "not_empty", **WRONG}]},)
    with Reporter(cast(dg.OpExecutionContext, context), view, lake) as reporter:
        reporter.slice(SliceReport("trips", "2024-01-02", 0, 0, (), 0.0, gates))
    assert [(one.check_name, one.partition, one.passed) for one in told] == [
        ("plausible__not_empty", "2024-01-02", False)
    ]


def test_a_slice_of_which_no_rows_came_holds(view: FlowView, lake: Lake) -> None:
    told = verdict(view, lake, "fits", "2024-01-03").evaluation()
    assert told.passed
    assert told.metadata["rows"].value == 0


def test_a_run_that_reads_nothing_repeats_what_a_gate_said_last(settings: FlowSettings) -> None:
    view = FlowView.of(dataclasses.replace(TRIPS, slices=None), settings)
    checks = ("fits", "line_is_there", "not_empty")
    batches: list[dict[str, bool]] = []

    class Runs(LakeResource):
        def runtime(self, *_: Any, **__: Any) -> Any:
            def catch_up(_: Any, progress: Any) -> None:
                for txid, said in enumerate(batches):
                    told = [
                        {"name": name, "rows": 9, "success": passed, "detail": SEEN} for name, passed in said.items()
                    ]
                    gates = ({"gate": "plausible", "checks": told},)
                    progress(SimpleNamespace(txid=txid, attempt=0, gates=gates, commits=(), **took))

            return SimpleNamespace(catch_up=catch_up)

    took = {"received": 9, "quarantined": 0, "seconds": 0.1}
    resources = {"spark": SparkResource(), "lake": Runs(root=str(settings.lake))}
    with dg.instance_for_test() as instance:

        def run(*read: dict[str, bool]) -> dict[str, tuple[bool, Any]]:
            batches[:] = read
            done = dg.materialize([state_assets(view)], instance=instance, resources=resources, raise_on_error=False)
            assert done.success
            said = done.get_asset_check_evaluations()
            return {
                one.check_name.removeprefix("plausible__"): (one.passed, one.metadata["rows"].value) for one in said
            }

        nothing = dict.fromkeys(checks, (True, 0))
        assert run() == nothing
        # `line_is_there` drops, `not_empty` warns.
        red = {"fits": (True, 9), "line_is_there": (False, 9), "not_empty": (False, 9)}
        assert run({"fits": True, "line_is_there": False, "not_empty": False}) == red
        assert run() == red
        assert run() == red
        assert run(dict.fromkeys(checks, True)) == dict.fromkeys(checks, (True, 9))
        # What `fail` has refused was skipped, or is well: else the run would read it again.
        refused = dg.AssetCheckEvaluation(view.gate_checks[0].key.asset_key, "plausible__fits", passed=False)
        run_id = create_run_for_test(instance).run_id
        event = DagsterEvent("ASSET_CHECK_EVALUATION", "a_job", event_specific_data=refused)
        instance.report_dagster_event(event, run_id)
        assert run() == {**dict.fromkeys(checks, (True, 9)), "fits": (True, 0)}


def test_failed_rows_show_what_the_rows_hold() -> None:
    """A page reads numbers as doubles, and a field may be named as the column of the reasons."""
    check = drop("column_values_to_not_be_null", column="n", name="there")
    exact = Decimal("12345678901234567890.01")
    held = {
        "n": None,
        "id": 2**53 + 1,
        "paid": exact,
        "share": Decimal("0.10"),
        "most": Decimal("Infinity"),
        "reason": "late",
    }
    result = CheckResult("there", check.expectation, "drop", False, 1, 1, detail={"sample": [held]})
    json.dumps(result.to_json(), allow_nan=False)
    (row,) = table(of_result(check, result)).records
    assert row.data["reason"] == "n is null; expected values to not be null"
    assert row.data["row's reason"] == "late"
    assert (row.data["id"], row.data["paid"]) == ("9007199254740993", "12345678901234567890.01")
    assert (row.data["share"], row.data["most"]) == (0.1, "Infinity")
