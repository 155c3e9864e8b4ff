"""`tridelta plan`: for people, as JSON, as a drawing; exit code 1 if the flow would be refused. No Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ops.cli.app import app
from pipelines import catalog
from pipelines.catalog import FlowSettings, FlowSpec, flow
from pipelines.planner.changes import save_plan
from pipelines.sources import JsonFiles
from pipelines.state.lake import Lake
from pipelines.trident import DeltaState, TridentTopology

runner = CliRunner()
pytestmark = pytest.mark.usefixtures("home")


def test_of_a_flow_that_never_ran() -> None:
    done = runner.invoke(app, ["plan", "flights"])
    assert done.exit_code == 0, done.output
    for said in (
        "no earlier run has stored its plan",
        "bolts (0 stay as they are)",
        "carrier_delay",
        "fits",
        "The flow can be deployed.",
    ):
        assert said in done.stdout


def test_of_what_is_deployed() -> None:
    lake = Lake(FlowSettings.from_environment().lake)
    save_plan(flow("flights").topology(), lake.checkpoint_path("flights", "flights"))
    done = runner.invoke(app, ["plan", "flights"])
    assert done.exit_code == 0, done.output
    assert "flights, compared with its plan of 20" in done.stdout
    assert "bolts" not in done.stdout


def test_a_state_that_another_flow_of_the_catalog_writes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def spec(name: str) -> FlowSpec:
        def build(settings: FlowSettings) -> TridentTopology:
            topology = TridentTopology(name)
            rows = topology.new_stream(f"{name}_in", JsonFiles(settings.data / name, "n int"))
            rows.partition_persist(DeltaState("kept"))
            return topology

        return FlowSpec(name, "", build)

    def wrong(_: FlowSettings) -> TridentTopology:
        raise ValueError("it is another's")

    monkeypatch.setattr(catalog, "FLOWS", (spec("one"), FlowSpec("wrong", "", wrong), spec("two")))
    done = runner.invoke(app, ["plan", "two"])
    assert (
        done.exit_code,
        'the state "kept" of flow two has the name of the state "kept" of flow one' in done.stderr,
    ) == (
        1,
        True,
    )
    monkeypatch.setattr(catalog, "FLOWS", catalog.FLOWS[1:])
    assert runner.invoke(app, ["plan", "two"]).exit_code == 0


def test_as_json_and_as_a_drawing() -> None:
    plain = json.loads(runner.invoke(app, ["plan", "flights", "--json"]).stdout)
    assert plain["refused"] == []
    assert {one["change"] for one in plain["states"]} == {"new"}
    drawn = runner.invoke(app, ["plan", "flights", "--mermaid"])
    assert drawn.exit_code == 0
    assert drawn.stdout == plain["mermaid"]
    assert drawn.stdout.startswith("flowchart LR\n")


def test_exit_code_1_if_the_flow_would_be_refused(home: Path) -> None:
    from deltalake import write_deltalake
    from pyarrow import table

    path = Path(FlowSettings.from_environment().lake) / "states" / "carrier_delay"
    path.mkdir(parents=True)
    write_deltalake(str(path), table({"carrier": ["AA"]}))
    done = runner.invoke(app, ["plan", "flights"])
    assert done.exit_code == 1
    assert "The flow would be refused at its start because of: carrier_delay" in done.stdout
    as_json = runner.invoke(app, ["plan", "flights", "--json"])
    assert as_json.exit_code == 1
    assert json.loads(as_json.stdout)["refused"] == ["carrier_delay"]
    assert runner.invoke(app, ["plan", "flights", "--mermaid"]).exit_code == 1


def test_exit_code_1_if_a_state_would_lack_batches() -> None:
    """Each was renamed: no table is there that a batch has written."""
    folder = Lake(FlowSettings.from_environment().lake).checkpoint_path("flights", "flights")
    for file, text in (
        ("epoch.json", '{"number": 1, "first_txid": 0}'),
        ("spark/metadata", "{}"),
        ("spark/offsets/0", "v1\n{}\n0"),
        ("spark/commits/0", "v1"),
    ):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    done = runner.invoke(app, ["plan", "flights"])
    assert (done.exit_code, "would be refused at its start" in done.stdout) == (1, True), done.output


def test_an_unknown_flow_is_an_error_as_text() -> None:
    done = runner.invoke(app, ["plan", "fligths"])
    assert done.exit_code == 1
    assert 'did you mean "flights"?' in done.stderr


def test_a_table_of_others_in_place_of_a_state_is_said_to_be_one() -> None:
    from deltalake import write_deltalake
    from pyarrow import table

    path = Path(str(FlowSettings.from_environment().lake)) / "states" / "theirs"
    path.mkdir(parents=True)
    write_deltalake(str(path), table({"a": [1]}))
    done = runner.invoke(app, ["state", "theirs"])
    assert (done.exit_code, 'state "theirs"' in done.stderr, "the engine did not make it" in done.stderr) == (
        1,
        True,
        True,
    )
