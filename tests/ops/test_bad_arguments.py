"""Arguments, variables and folders that are wrong are told in a sentence."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from ops.cli import app as command_line
from ops.cli.app import app
from ops.cli.deployed import counts, settings_of
from pipelines.errors import DefinitionError

pytestmark = pytest.mark.usefixtures("home")


def run(*arguments: str) -> Result:
    done = CliRunner().invoke(app, arguments)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert "Traceback" not in done.output
    return done


def said(done: Result) -> str:
    return " ".join("".join(c for c in done.output if c not in "│╭╮╰╯─").split())


NUMBERS = [
    ("state", "x", "--limit"),
    ("state", "x", "--txid"),
    ("history", "x", "--limit"),
    ("run", "flights", "--max-batches"),
    ("query", "flights", "q", "--txid"),
    ("compact", "flights", "--retention-hours"),
    ("compact", "flights", "--channel-retention-hours"),
    ("watch", ".", "--trigger-seconds"),
    ("supervisor", "--metrics-port"),
    ("submit", "flights", "--trigger-seconds"),
    ("submit", "flights", "--workers"),
    ("submit", "flights", "--wait-at-most"),
    ("rollback", "flights", "--to"),
    ("kill", "flights", "--wait-seconds"),
    ("rebalance", "flights", "--wait-seconds"),
    ("status", "flights", "-n"),
    ("logs", "flights", "-n"),
    ("top", "--seconds"),
]


@pytest.mark.slow
@pytest.mark.parametrize("given", ["-5", "nan", "inf", "1" + "0" * 20, "²", "", "9" * 5000])
def test_numbers_out_of_bounds(given: str) -> None:
    for command in NUMBERS:
        done = run(*command, given)
        assert done.exit_code == 2, (command, done.output)
        assert "must be a" in said(done), (command, done.output)


def test_what_is_no_text() -> None:
    assert (run("state", "x", "--key", "a=\udcff").exit_code, run("state", "a\0b").exit_code) == (2, 2)
    assert said(run("state", "x", "--key", "a=\udcff")) == r"Error: argument 4 is not UTF-8: b'a=\xff'"


@pytest.mark.parametrize("command", ["run", "watch"])
def test_an_unknown_word(command: str) -> None:
    done = run(command, "flights", "--on-fresh-checkpoint", "resett")
    assert done.exit_code == 2
    assert "must be one of refuse, continue, reset, not 'resett'" in said(done)


@pytest.mark.parametrize("text", ["x=²", "x=", "x=0", "x=1.5", "=3", "x", "x=" + "9" * 5000, "x=-1"])
def test_what_is_no_parallelism(text: str) -> None:
    with pytest.raises(DefinitionError, match="not a parallelism"):
        counts([text])


@pytest.mark.parametrize(
    "text",
    ["hosts=" + "[" * 300, "hosts=2013-13-45", "hosts=!!python/object:os.system x", "a", "=b", "hosts=" + "x" * 200_000,
     "hosts=&a [*a", "max_attempts=" + "9" * 6000],
)  # fmt: skip
def test_what_is_no_setting(text: str) -> None:
    with pytest.raises(DefinitionError, match="not a setting"):
        settings_of([text])


def test_settings_that_are_texts_stay_as_they_are_written() -> None:
    assert settings_of(["owner=2013-13-45", "application=7", "max_attempts=7", "spark.a=true"]) == {
        "owner": "2013-13-45",
        "application": "7",
        "max_attempts": 7,
        "spark": {"spark.a": "true"},
    }


@pytest.mark.parametrize("txids", ["9" * 5000, "1-" + "9" * 20, "²", "5-4", "-", "0x10"])
def test_txids_that_are_none(txids: str) -> None:
    done = run("replay-quarantine", "flights", "--txids", txids)
    assert done.exit_code == 1
    assert "not a range of txids" in said(done)


# --- what nobody foresaw --------------------------------------------------------------------------------------------


def test_what_nobody_foresaw(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError("sqlite://tridelta:secret@host/x is odd")

    monkeypatch.setattr(command_line, "opened_lake", broken)
    done = run("state", "x", "--key", "password=hidden")
    assert done.exit_code == 70
    assert "Tridelta did not foresee this: ZeroDivisionError" in done.output
    (report,) = (home / "reports").iterdir()
    assert str(report) in done.output
    assert (stat.S_IMODE(report.stat().st_mode), stat.S_IMODE(report.parent.stat().st_mode)) == (0o600, 0o700)
    text = report.read_text(encoding="utf-8")
    assert "Traceback" in text
    assert "ops/cli/app.py" in text
    assert "secret" not in text + done.output
    assert "hidden" not in text


def test_what_nobody_foresaw_without_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RecursionError

    monkeypatch.setenv("TRIDELTA_HOME", str(tmp_path / "no" / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(command_line, "opened_lake", broken)
    done = run("state", "x")
    assert done.exit_code == 70
    (report,) = tmp_path.glob("tridelta-*.txt")
    assert str(report) in done.output
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("number", [30, 13, 20, 28, 24])
def test_what_the_file_system_refuses(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OSError(number, os.strerror(number), "/lake/states/x")

    monkeypatch.setattr(command_line, "opened_lake", broken)
    done = run("state", "x")
    assert done.exit_code == 1
    assert f"FileAccessError: /lake/states/x: {os.strerror(number)}" in done.output
    assert "Next: " in done.output


# --- modules of flows -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("FLOWS = 5", "holds int"),
        ("FLOWS = [1]", "holds int"),
        ("FLOWS = None", "holds NoneType"),
        ("FLOWS = 'abc'", "must be a list"),
        ("import sys; sys.exit(3)", "raised SystemExit: 3"),
        ("raise RecursionError('deep')", "raised RecursionError: deep"),
        ("x = ]", "raised SyntaxError"),
    ],
)
def test_modules_of_flows_that_are_none(text: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"odd_flows_{abs(hash(text))}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TRIDELTA_FLOWS", name)
    done = run("list")
    assert done.exit_code == 1
    assert told in said(done)
    # The flows of others are there, and can be looked at.
    assert "flights" in done.stdout
    assert run("plan", "flights").exit_code == 0
    assert run("plan", "elsewhere").exit_code == 1
    assert json.loads(run("housekeeping", "--json").stdout)["things"]


@pytest.mark.parametrize("names", [".", "..x", "a b", "sys.exit", "os.path", "é", "-"])
def test_names_of_modules_that_are_none(names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIDELTA_FLOWS", names)
    assert run("list").exit_code == 1
