"""`tridelta validate FILE`: a flow's YAML file, checked without Spark."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from ops.command_line import app

runner = CliRunner()

GOOD = """
flow: late
streams:
  - name: departures
    source: origin string, dep_delay double
    operations:
      - filter: dep_delay > 15
      - split: {paths: {very_late: dep_delay > 60}}
  - {name: very_late, operations: [{persist: alerts}, output]}
"""


def test_a_flow_is_shown_by_its_streams(tmp_path: Path) -> None:
    file = tmp_path / "late.yaml"
    file.write_text(GOOD)
    done = runner.invoke(app, ["validate", str(file)])
    assert done.exit_code == 0, done.output
    for said in ("flow late", "departures", "very_late", "alerts, output"):
        assert said in done.stdout
    found = json.loads(runner.invoke(app, ["validate", str(file), "--json"]).stdout)
    assert (found["valid"], found["flow"], found["errors"]) == (True, "late", [])
    assert found["streams"][1] == {
        "stream": "very_late",
        "from": "departures",
        "operations": ["persist alerts", "output"],
        "to": ["alerts", "output"],
    }


def test_faults_are_told_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "late.yaml"
    file.write_text(GOOD.replace("filter: dep", "filtr: dep"))
    done = runner.invoke(app, ["validate", str(file)])
    assert done.exit_code == 1
    assert "line 7, streams[0].operations[0].filtr" in done.stdout.replace("\n", " ")
    done = runner.invoke(app, ["validate", str(file), "--json"])
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert not found["valid"]
    (error,) = found["errors"]
    assert (error["line"], error["path"]) == (7, "streams[0].operations[0].filtr")
    assert 'did you mean "filter"' in error["problem"]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    done = runner.invoke(app, ["validate", str(tmp_path / "nowhere.yaml"), "--json"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)["errors"][0]["problem"].startswith("cannot be read")
