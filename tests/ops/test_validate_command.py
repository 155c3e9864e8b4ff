"""`tridelta validate FILE`: a flow's YAML file, checked without Spark."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from typer.testing import CliRunner

from ops.cli.app import app

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


OWN = """
flow: own
streams:
  - name: s
    source: k string, v bigint
    operations:
      - filter: {python: NAME.passes}
      - each: {function: NAME.made, schema: "k string, v bigint"}
      - aggregate:
          aggregators: [{own: {name: NAME.Mine, arguments: {path: /etc/passwd}}}]
          trigger: {count: 2}
          evict: {count: 2}
      - filter: anything > 1
      - output
"""


def test_nothing_that_a_file_names_is_imported_or_called(tmp_path: Path) -> None:
    """A module of the catalog that would leave a trace, were it imported, and functions that would, were they called."""
    module = Path("pipelines/catalog").absolute() / f"zz_validated_{os.getpid()}.py"
    trace = tmp_path / "trace"
    module.write_text(
        f"import os\nopen({str(trace)!r}, 'w').close()\n"
        "def passes(event): ...\ndef made(event): ...\nclass Mine:\n    def __init__(self, path): raise SystemExit(path)\n"
        "def unlisted(event): ...\nFUNCTIONS = (passes, made, Mine)\n"
    )
    file = tmp_path / "own.yaml"
    try:
        file.write_text(OWN.replace("NAME", module.stem))
        done = runner.invoke(app, ["validate", str(file)])
        assert done.exit_code == 0, done.output
        for name, said in (
            ("os", "does not define os"),
            ("nothing", "does not define"),
            ("unlisted", "does not list unlisted"),
        ):
            file.write_text(OWN.replace("NAME.made", f"{module.stem}.{name}").replace("NAME", module.stem))
            done = runner.invoke(app, ["validate", str(file), "--json"])
            (error,) = json.loads(done.stdout)["errors"]
            assert (done.exit_code, said in error["problem"]) == (1, True)
    finally:
        module.unlink()
    assert not trace.exists()
    assert f"pipelines.catalog.{module.stem}" not in sys.modules


def test_a_file_that_names_other_modules_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    for name in (
        "own_code.imported",
        "package.flows_of",
        "os.system",
        "nowhere.made",
        "__init__.flows",
        "../x.made",
        "a.b.c",
    ):
        file.write_text(OWN.replace("NAME.made", name).replace("NAME.passes", name).replace("NAME.Mine", name))
        done = runner.invoke(app, ["validate", str(file), "--json"])
        assert done.exit_code == 1
        assert "no function" in json.loads(done.stdout)["errors"][0]["problem"]
