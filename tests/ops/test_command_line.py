"""`tridelta`: the verbs, the errors as texts, JSON for programs."""

from __future__ import annotations

import json
import math
import runpy
import subprocess
import sys
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from ops.cli.app import app
from ops.cli.parts import emit, plainly
from pipelines.state import lookup
from pipelines.state.damage import DamagedTableError
from pipelines.state.kinds import LOG, TRANSACTIONAL
from pipelines.state.schema import PROPERTY, StateSchema
from pipelines.state.table import StateTable
from tests.state.small_kinds import SmallTable

runner = CliRunner()
pytestmark = pytest.mark.usefixtures("home")


def test_list_names_flows_states_and_queries() -> None:
    done = runner.invoke(app, ["list", "--json"])
    assert done.exit_code == 0
    listed = {one["flow"]: one for one in json.loads(done.stdout)}
    flights = listed["flights"]
    assert flights["states"]["carrier_delay"] is None
    assert flights["queries"] == ["delays", "route"]
    assert flights["channels"] == {}
    notices = listed["delay_notices"]
    assert notices["states"] == {"late_delay_notices_flights": None, "long_delay_notices": None}
    assert notices["channels"] == {"delay_notices__flights__flights": None}
    assert "not run yet" in runner.invoke(app, ["list"]).stdout
    assert flights["deployed"] is None


def test_list_goes_on_behind_a_table_that_cannot_be_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def last_txid(table: StateTable) -> int:
        raise DamagedTableError(table.name, table.path, "its log has a hole", "nothing", hint="mend it")

    monkeypatch.setattr(StateTable, "last_txid", last_txid)
    monkeypatch.setattr(StateTable, "exists", lambda table: table.name == "carrier_delay")
    done = runner.invoke(app, ["list", "--json"])
    assert done.exit_code == 1
    listed = {one["flow"]: one for one in json.loads(done.stdout)}
    assert list(listed["flights"]["unread"]) == ["carrier_delay"]
    assert "its log has a hole" in listed["flights"]["unread"]["carrier_delay"]
    assert listed["delay_notices"]["unread"] == {}
    assert "its log has a hole" in done.stderr
    rows = [line.split() for line in runner.invoke(app, ["list"]).stdout.splitlines()]
    assert ["state", "carrier_delay", "cannot", "be", "read"] in rows
    assert len([row for row in rows if row[-3:] == ["not", "run", "yet"]]) > 3


def test_list_tells_what_is_deployed(home: Path) -> None:
    assert runner.invoke(app, ["list"]).exit_code == 0
    assert not (home / "nimbus").exists()
    file = home / "late.yaml"
    file.write_text("flow: late\nstreams:\n  - name: s\n    source: {json_files: {path: in, schema: v bigint}}\n")
    file.write_text(file.read_text() + "    operations: [{persist: kept}]\n")
    for arguments in (["flights"], [str(file), "--inactive"]):
        done = runner.invoke(app, ["submit", *arguments, "--no-supervisor", "--no-wait"])
        assert done.exit_code == 0, done.output + str(done.exception)
    listed = {one["flow"]: one["deployed"] for one in json.loads(runner.invoke(app, ["list", "--json"]).stdout)}
    assert listed["flights"] == {"status": "ACTIVE", "version": 1, "running": False, "txid": None, "problem": None}
    assert listed["late"]["status"] == "INACTIVE"
    assert listed["worst_routes"] is None
    shown = runner.invoke(app, ["list"]).stdout
    assert "ACTIVE, version 1" in shown
    assert "INACTIVE, version 1" in shown


def test_a_registry_that_does_not_answer_does_not_hide_the_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIDELTA_REGISTRY", "mysql://here")
    done = runner.invoke(app, ["list", "--json"])
    assert done.exit_code == 0
    assert "neither SQLite nor PostgreSQL" in done.stderr
    assert json.loads(done.stdout)[0]["flow"] == "flights"


@pytest.mark.parametrize("has_run", [False, True])
def test_an_impossible_setting_does_not_hide_the_catalog(
    home: Path, monkeypatch: pytest.MonkeyPatch, has_run: bool
) -> None:
    """Where there is no registry, too."""
    monkeypatch.setenv("TRIDELTA_NIMBUS_BEAT_SECONDS", "often")
    if has_run:
        (home / "nimbus" / "supervisors" / "vm").mkdir(parents=True)
    done = runner.invoke(app, ["list", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)[0]["flow"] == "flights"
    assert ("supervisors have run from this home" in " ".join(done.stderr.split())) is has_run


def test_a_registry_that_was_lost_is_not_one_that_was_never_there(home: Path) -> None:
    assert "nothing was deployed from this home" in runner.invoke(app, ["status"]).stderr
    assert runner.invoke(app, ["list"]).stderr == ""
    (home / "nimbus" / "supervisors" / "vm").mkdir(parents=True)
    for arguments, code in ((["status"], 1), (["list"], 0)):
        done = runner.invoke(app, arguments)
        assert done.exit_code == code
        said = " ".join(done.stderr.split())
        assert "supervisors have run from this home, so it was there" in said
        assert "if its file was lost, restore it first; else submit a flow" in said
    assert not (home / "nimbus" / "registry.db").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "fligths"], 'no flow "fligths" in the catalog'),
        (["query", "fligths", "delays"], 'did you mean "flights"?'),
        (["state", "carrier_delay"], 'no state "carrier_delay" in the lake'),
        (["history", "../etc"], "does not match [a-z][a-z0-9_]*"),
        (["backfill", "flights", "--from", "2013-02-30", "--to", "2013-03-01"], "not a day: '2013-02-30'"),
        (["backfill", "flights", "--from", "2014-01-01", "--to", "2014-01-02"], "not a slice of this flow"),
    ],
)
def test_an_error_is_its_text_and_exit_code_1(arguments: list[str], said: str) -> None:
    done = runner.invoke(app, arguments)
    assert done.exit_code == 1
    assert said in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.output
    assert done.stdout == ""


def test_list_shows_the_flows_beside_one_that_cannot_be_built(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'from pipelines.catalog import FlowSpec\nFLOWS = (FlowSpec("unbuilt", "Fails.", lambda settings: 1 / 0),)\n'
    (home / "unbuilt_flows.py").write_text(text)
    monkeypatch.syspath_prepend(str(home))
    monkeypatch.setenv("TRIDELTA_FLOWS", "unbuilt_flows")
    done = runner.invoke(app, ["list", "--json"])
    assert done.exit_code == 1
    assert "ZeroDivisionError" in done.stderr
    listed = {one["flow"]: one for one in json.loads(done.stdout)}
    assert listed["unbuilt"]["states"] == {}
    assert "carrier_delay" in listed["flights"]["states"]


def test_an_error_of_a_flow_says_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "orders.py"
    file.write_text(
        'from pipelines.graph.fields import checked_name\n\n\ndef build():\n    checked_name("flow", "A b")\n'
    )
    with pytest.raises(typer.Exit):
        plainly(runpy.run_path(str(file))["build"])()
    said = capsys.readouterr().err
    assert said.startswith("BadNameError: flow name 'A b' does not match")
    assert said.endswith(f"\n  At: {file}:5\n")


def test_help_names_every_verb() -> None:
    shown = runner.invoke(app, ["--help"]).stdout
    for verb in ("list", "plan", "run", "backfill", "query", "state", "history", "skip", "compact"):
        assert verb in shown


def test_key_values_take_the_type_of_their_column(home: Path) -> None:
    schema = StateSchema(layout="rows", flow="trips", columns=(("hour", "int"), ("origin", "string")))
    engine = {"_txid": pa.array([0, 0], pa.int64()), "_slice": ["a", "a"], "_gen": pa.array([0, 0], pa.int64())}
    table = pa.table({"hour": pa.array([5, 6], pa.int32()), "origin": ["JFK", "LGA"], **engine})
    path = str(home / "lake" / "states" / "hours")
    Path(path).parent.mkdir(parents=True)
    DeltaTable.create(
        path,
        table.schema,
        partition_by=["_slice", "_gen"],
        configuration={PROPERTY: schema.dump()},
        raise_if_key_not_exists=False,
    )
    write_deltalake(path, table, mode="append")
    done = runner.invoke(app, ["state", "hours", "--key", "hour=5", "--json"])
    assert done.exit_code == 0, done.output + str(done.exception)
    assert json.loads(done.stdout) == [{"hour": 5, "origin": "JFK"}]
    first = runner.invoke(app, ["state", "hours", "--limit", "1", "--json"])
    assert len(json.loads(first.stdout)) == 1
    assert "There are more than these 1 rows" in first.stderr
    assert runner.invoke(app, ["state", "hours", "--limit", "2"]).stderr == ""
    wrong = runner.invoke(app, ["state", "hours", "--key", "hour=five"])
    assert wrong.exit_code == 1
    assert "hour is int32" in wrong.stderr
    assert "write it as name=value" in runner.invoke(app, ["state", "hours", "--key", "five"]).stderr
    twice = runner.invoke(app, ["state", "hours", "--key", "hour=5", "--key", "origin=JFK", "--key", "hour=6"])
    assert (twice.exit_code, twice.stdout) == (1, "")
    assert "not a key: hour is given twice, as '5' and '6'" in twice.stderr


def test_the_version_of_a_state_is_that_of_its_rows(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = SmallTable(home / "lake", LOG, TRANSACTIONAL)
    for txid in range(2):
        state.commit(txid, ("a", 1))
    then, now = (commit.version for commit in state.table.history() if commit.kind == "batch")
    done = runner.invoke(app, ["state", "counts", "--txid", "0"])
    assert f"counts, version {then}, as of txid 0" in done.stdout
    real = lookup.look_up

    def meanwhile(*args: Any, **given: Any) -> list[dict[str, Any]]:
        state.commit(2, ("a", 1))
        return real(*args, **given)

    monkeypatch.setattr(lookup, "look_up", meanwhile)
    done = runner.invoke(app, ["state", "counts"])
    assert f"counts, version {now}\n" in done.stdout
    assert done.stdout.split()[-5:-1] == ["a", "│", "2", "│"]
    refused = runner.invoke(app, ["state", "counts", "--txid", "9"])
    assert "cannot be read as of txid 9: the last committed batch is 2" in refused.stderr


@pytest.mark.slow
def test_the_command_line_starts_without_dagster_and_spark() -> None:
    code = (
        "import sys, ops.cli.app;"
        "print([m for m in ('dagster', 'pyspark', 'pandas', 'sqlalchemy', 'alembic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_json_is_json_also_of_numbers_that_json_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    emit([{"avg": math.nan, "most": (math.inf, -math.inf), math.nan: 1.5, 2: Decimal("NaN"), "day": date(2013, 1, 1)}])
    said = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert said == [{"avg": "nan", "most": ["inf", "-inf"], "nan": 1.5, "2": "NaN", "day": "2013-01-01"}]
    emit([{"raw": b"\x00\xff", "many": [b"x"]}])
    assert json.loads(capsys.readouterr().out) == [{"raw": "AP8=", "many": ["eA=="]}]
    emit({date(2013, 1, 1): 1, Decimal("1.50"): {b"x": 2}, (1, math.nan): 3, None: 4, True: 5})
    said = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert said == {"2013-01-01": 1, "1.50": {"eA==": 2}, "(1, nan)": 3, "null": 4, "true": 5}
