"""Replay quarantine, skip a poison batch, query: the forms, what they do, and what is refused before Spark starts."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
import typer
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType
from typer.testing import CliRunner

from assets.view import FlowView
from ops.cli import app as command_line
from ops.cli import replaying
from ops.jobs.operator_jobs import _REPLAYED, operator_jobs
from pipelines import Lake, Runtime
from pipelines.catalog import FlowSettings, FlowSpec
from pipelines.errors import PoisonBatchError
from pipelines.execution.batch.quarantine import quarantine_writer
from pipelines.execution.checkpoint.replay_records import Records
from pipelines.execution.replays.selection import Selection
from pipelines.quality import drop, fail
from pipelines.sources import JsonFiles
from pipelines.state.quarantine import COLUMNS
from pipelines.state.record import BATCH, BatchRecord
from pipelines.state.schema import StateSchema
from pipelines.state.writer import StateWriter
from pipelines.trident import Count, DeltaState, MapGet, Sum, TridentTopology
from resources import LakeResource, SparkResource


class NoSpark(SparkResource):
    def session(self) -> SparkSession:
        raise AssertionError("Spark starts")


def trips(most: int, *, fits: int = 1000) -> FlowSpec:
    """Trips by line, those of more than `most` refused; more than `fits` stop the flow."""

    def build(settings: FlowSettings) -> TridentTopology:
        topology = TridentTopology("trips")
        source = JsonFiles(settings.data, "line string, n bigint", max_files_per_batch=1)
        stream = topology.new_stream("rides", source).gate(
            drop("column_values_to_be_between", column="n", max_value=most, name="few"),
            fail("column_values_to_be_between", column="n", max_value=fits, name="fits"),
            name="plausible",
        )
        lines = stream.group_by("line").persistent_aggregate(DeltaState("lines"), [Count("trips"), Sum("n", "total")])
        queries = topology.new_query_stream("of_line", "line string, add bigint")
        queries.state_query(lines, "line", MapGet(), ["trips", "total"])
        totals = stream.group_by("line").aggregate("n", Sum(), "sum")
        if most < 0:
            totals.partition_persist(DeltaState("sums"))
        return topology

    return FlowSpec("trips", "Trips by line.", build)


class Desk:
    """A deployment of the one flow, and the jobs of its operator."""

    def __init__(self, root: Path) -> None:
        self.settings = FlowSettings(root)
        self.settings.data.mkdir(parents=True)
        self.lake = Lake(self.settings.lake)
        self.instance: dg.DagsterInstance | None = None
        self._times = itertools.count(1_700_000_000)

    def put(self, name: str, *rows: tuple[str, int]) -> None:
        file, at = self.settings.data / f"{name}.json", next(self._times)
        file.write_text("".join(json.dumps({"line": k, "n": n}) + "\n" for k, n in rows))
        # Spark takes files by their time, which is the same for two that are written at once.
        os.utime(file, (at, at))

    def jobs(self, spec: FlowSpec) -> dict[str, dg.JobDefinition]:
        return {job.name: job for job in operator_jobs([FlowView.of(spec, self.settings)])}

    def run(
        self, spec: FlowSpec, verb: str, config: dict[str, Any], *, spark: bool = False
    ) -> dg.ExecuteInProcessResult:
        return self.jobs(spec)[f"{verb}_job"].execute_in_process(
            run_config={"ops": {f"{verb}_op": {"config": config}}},
            resources={
                "spark": SparkResource() if spark else NoSpark(),
                "lake": LakeResource(root=str(self.settings.lake), warm=False),
            },
            raise_on_error=False,
        )

    def refuse(self, *rows: tuple[str, int], gate: str = "plausible") -> None:
        """Put rows into quarantine without Spark, as a batch would."""
        writer = quarantine_writer(self.lake, "trips")
        writer.prepare(StructType([StructField(name, StringType()) for name, _ in COLUMNS]))
        texts = [json.dumps({"line": line, "n": n}, separators=(",", ":")) for line, n in rows]
        table = writer.empty().select([name for name, _ in COLUMNS])
        made = [
            {"stage": gate, "rule": "few", "reason": "r", "row": text, "file": None, "stream": None} for text in texts
        ]
        record = BatchRecord(kind=BATCH, flow="trips", epoch=1, txid=len(writer.table.commits.batches()))
        writer.append_arrow(type(table).from_pylist(made, schema=table.schema), record, "trips/quarantine/rides/1")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "home")


def metadata(done: dg.ExecuteInProcessResult) -> dict[str, Any]:
    assert done.success
    (output,) = [one for one in done.all_events if one.event_type_value == "STEP_OUTPUT"]
    return {name: value.value for name, value in output.step_output_data.metadata.items()}


def refusal(done: dg.ExecuteInProcessResult, verb: str) -> str:
    assert not done.success
    failed = done.failure_data_for_node(f"{verb}_op")
    assert failed is not None
    assert failed.user_failure_data is not None, failed.error
    return str(failed.user_failure_data.description)


# --- refused in the launchpad ---------------------------------------------------------------------------------------


def test_the_launchpad_opens_with_a_question_that_can_be_launched(desk: Desk) -> None:
    job = desk.jobs(trips(3))["query_job"]
    assert job.run_config == {
        "ops": {"query_op": {"config": {"ask": {"state": {"name": "lines", "key": {}}}, "rows": 50}}}
    }
    dg.validate_run_config(job, job.run_config)
    dg.validate_run_config(job, {"ops": {"query_op": {"config": {"ask": {"query": {"name": "trips.of_line"}}}}}})


@pytest.mark.parametrize(
    ("verb", "config", "said"),
    [
        ("replay_quarantine", {"flow": "tirps"}, "tirps"),
        ("replay_quarantine", {"flow": "trips", "gates": ["plausibel"]}, "plausibel"),
        ("skip_batch", {"flow": "trips"}, 'Missing required config entry "txid"'),
        ("skip_batch", {"flow": "trips", "txid": "first"}, 'expected type "Int"'),
        ("query", {"ask": {"query": {"name": "trips.of_lien"}}}, "of_lien"),
        ("query", {"ask": {"state": {"name": "liens"}}}, "liens"),
        ("query", {"ask": {}}, "Must specify a field"),
        (
            "query",
            {"ask": {"state": {"name": "lines"}, "query": {"name": "trips.of_line"}}},
            "only specify a single field",
        ),
    ],
)
def test_the_form_refuses_what_there_is_not(desk: Desk, verb: str, config: dict[str, Any], said: str) -> None:
    job = desk.jobs(trips(3))[f"{verb}_job"]
    with pytest.raises(dg.DagsterInvalidConfigError, match=said):
        dg.validate_run_config(job, {"ops": {f"{verb}_op": {"config": config}}})


def test_each_field_and_job_is_explained(desk: Desk) -> None:
    for job in desk.jobs(trips(3)).values():
        assert job.description
        (op,) = job.nodes
        schema: Any = op.definition.config_schema
        fields = schema.config_type.fields
        assert fields
        assert all(field.description for field in fields.values()), job.name


# --- refused before Spark starts ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_impossible_is_a_failure_with_its_next_step(desk: Desk) -> None:
    never = refusal(desk.run(trips(3), "replay_quarantine", {"flow": "trips"}), "replay_quarantine")
    assert "quarantine of trips" in never
    text = refusal(desk.run(trips(3), "skip_batch", {"flow": "trips", "txid": 5}), "skip_batch")
    assert 'batch 5 of flow "trips" is not a poison batch' in text
    assert "Next: nothing to do: no batch stops the flow" in text
    for ask in ({"query": {"name": "trips.of_line", "args": ["a", "1"]}}, {"state": {"name": "lines"}}):
        assert 'no state "lines"' in refusal(desk.run(trips(3), "query", {"ask": ask}), "query").replace("'", '"')
    wrong = desk.run(trips(3), "query", {"ask": {"query": {"name": "trips.of_line", "args": ["a", "many"]}}})
    assert "add is bigint, got 'many'" in refusal(wrong, "query")
    few = desk.run(trips(3), "query", {"ask": {"query": {"name": "trips.of_line", "args": []}}})
    assert 'query "of_line": it takes 2 arguments, got 0' in refusal(few, "query")
    assert "Next: give one argument for each of: line string, add bigint" in refusal(few, "query")
    desk.refuse(("a", 7))
    text = refusal(desk.run(trips(-1), "replay_quarantine", {"flow": "trips"}), "replay_quarantine")
    assert "aggregates each batch" in text
    assert "Next: " in text
    text = refusal(desk.run(trips(3), "replay_quarantine", {"flow": "trips", "spouts": ["rode"]}), "replay_quarantine")
    assert 'did you mean "rides"' in text


def test_all_rules_of_the_engine_are_named_where_rows_are_selected() -> None:
    rules = [
        "malformed",
        "other_fields",
        "far_time",
        "not_read",
        "no_slice",
        "bad_slice",
        "no_time",
        "poison",
        "waiting",
    ]
    options = typer.main.get_command(replaying.app).params
    said = [getattr(option, "help", "") for option in options if option.name == "reason"]
    said += [_REPLAYED["reasons"][1].description, Selection.__doc__]
    assert len(said) == 3
    assert [rule for text in said for rule in rules if rule not in str(text)] == []


def test_a_dry_replay_counts_by_reason_and_changes_nothing(desk: Desk) -> None:
    desk.refuse(("a", 7), ("b", 8))
    shown = metadata(desk.run(trips(9), "replay_quarantine", {"flow": "trips", "dry_run": True}))
    assert "| gate plausible | few | 2 | yes |" in shown["replay"]
    assert metadata(desk.run(trips(9), "replay_quarantine", {"flow": "trips", "reasons": ["other"]}))["rows"] == 0
    assert desk.lake.quarantine("trips").count() == 2


def test_a_state_is_read_and_cut_without_spark(desk: Desk) -> None:
    columns = (("line", "string"), ("n", "bigint"))
    declared = StateSchema(layout="map", flow="trips", keys=("line",), columns=columns)
    writer = StateWriter(desk.lake.table(desk.lake.state_path("lines"), "lines"), declared)
    writer.prepare(StructType([StructField("line", StringType()), StructField("n", LongType())]))
    rows = pa.table({"line": ["a", "b", "c"], "n": [1, 2, 3]})
    writer.merge_arrow(rows, BatchRecord(kind=BATCH, flow="trips", epoch=1, txid=0), None)
    shown = metadata(desk.run(trips(3), "query", {"ask": {"state": {"name": "lines"}}, "rows": 2}))
    assert (shown["rows"], shown["cut"]) == (2, "at 2 rows; there are more")
    assert shown["answer"].count("\n") == 3
    shown = metadata(desk.run(trips(3), "query", {"ask": {"state": {"name": "lines", "key": {"line": "b"}}}}))
    assert "| b | 2 |" in shown["answer"]
    assert shown["cut"] == "not cut"
    # The same key on the command line's way.
    assert "not a key" in refusal(
        desk.run(trips(3), "query", {"ask": {"state": {"name": "lines", "key": {"n": "x"}}}}), "query"
    )


# --- the command line -----------------------------------------------------------------------------------------------


def test_the_command_line_looks_refuses_and_tells_what_was(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    runner, specs = CliRunner(), {"trips": trips(9)}
    monkeypatch.setenv("TRIDELTA_HOME", str(desk.settings.home))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(replaying, "topology_of", lambda name: specs[name].topology())

    def said(*words: str) -> tuple[int, str]:
        done = runner.invoke(command_line.app, ["replay-quarantine", "trips", *words])
        return done.exit_code, done.output

    assert said()[0] == 1
    desk.refuse(("a", 7), ("b", 8))
    code, shown = said("--dry-run")
    assert (code, "plausible" in shown, "few" in shown) == (0, True, True)
    found = json.loads(said("--dry-run", "--json")[1])
    assert [(one["stage"], one["rows"]) for one in found["lots"]] == [("plausible", {"few": 2})]
    assert said("--reason", "other", "--json") == (0, said("--reason", "other", "--json")[1])
    code, shown = said("--gate", "plausibel")
    assert (code, 'did you mean "plausible"' in shown) == (1, True)
    code, shown = said("--txids", "9-3")
    assert (code, "40-57" in shown) == (1, True)
    assert json.loads(said("--history", "--json")[1]) == []
    specs["trips"] = trips(-1)
    code, shown = said()
    assert (code, "aggregates each batch" in shown) == (1, True)
    assert "cannot be replayed" in said("--dry-run")[1]


def test_a_flow_that_has_run_and_refused_nothing_has_nothing_to_replay(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIDELTA_HOME", str(desk.settings.home))
    monkeypatch.setattr(replaying, "topology_of", lambda _: trips(9).topology())
    write_deltalake(str(desk.lake.state_path("lines")), pa.table({"line": ["a"]}))
    for words in ([], ["--dry-run"], ["--gate", "plausible", "--reason", "few"]):
        done = CliRunner().invoke(command_line.app, ["replay-quarantine", "trips", "--json", *words])
        assert (done.exit_code, json.loads(done.stdout)["lots"]) == (0, []), done.output
    assert CliRunner().invoke(command_line.app, ["replay-quarantine", "trips", "--gate", "plausibel"]).exit_code == 1


# --- for real -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_day_of_an_operator(spark: SparkSession, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gate too strict, then a batch that stops the flow: skipped, mended, replayed, asked."""
    desk.put("1", ("a", 1), ("a", 7))
    desk.put("2", ("b", 70))
    strict = FlowView.of(trips(3, fits=50), desk.settings).topology
    with pytest.raises(PoisonBatchError):
        Runtime(spark, desk.lake).catch_up(strict)
    wrong = refusal(desk.run(trips(9), "skip_batch", {"flow": "trips", "txid": 0}), "skip_batch")
    assert "poison: 1 of rides" in wrong
    assert metadata(desk.run(trips(9), "skip_batch", {"flow": "trips", "txid": 1}))["skipped"] == 1
    # NoSpark would fail below: the session of the tests is up, as in a run that has one.
    replay = {"flow": "trips", "gates": ["plausible"]}
    done = desk.run(trips(100), "replay_quarantine", replay, spark=True)
    assert metadata(done)["landed"] == 1
    (seen,) = [one for one in done.all_events if one.is_asset_observation]
    assert seen.asset_observation_data.asset_observation.asset_key == dg.AssetKey(["lines"])
    shown = metadata(desk.run(trips(100), "replay_quarantine", {"flow": "trips"}, spark=True))
    assert (shown["landed"], shown["left"]) == (1, 0)
    assert "| poison batches of rides | 1 | 1 |" in shown["replay"]
    asked = {"ask": {"query": {"name": "trips.of_line", "args": ["b", "5"]}}}
    answer = metadata(desk.run(trips(100), "query", asked))["answer"]
    assert "| b | 5 | 1 | 70 |" in answer
    as_of = {"ask": {"query": {"name": "trips.of_line", "args": ["a", "0"], "txid": 0}}}
    assert "| a | 0 | 1 | 1 |" in metadata(desk.run(trips(100), "query", as_of))["answer"]
    assert [one.rows for one in Records(desk.lake.quarantine_path("trips")).all()] == [1, 1]
    monkeypatch.setenv("TRIDELTA_HOME", str(desk.settings.home))
    monkeypatch.setattr(replaying, "topology_of", lambda name: trips(100).topology())
    told = CliRunner().invoke(command_line.app, ["replay-quarantine", "trips", "--history"]).output
    assert "gate plausible" in told
    assert "poison batches of rides" in told
