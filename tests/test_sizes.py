"""Functions of the four packages are short, and take few parameters."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("pipelines", "assets", "ops", "resources")
MOST_LINES, MOST_PARAMETERS = 40, 6
LONGER_SIGNATURES = {
    "ops/cli/deployed.py": {"submit", "update", "rebalance"},
    "ops/cli/replaying.py": {"replay_quarantine"},
    "pipelines/execution/protocol/tracker.py": {"__init__"},
    "pipelines/flowmix/flow.py": {"stream"},
    "pipelines/nimbus/placement/planner.py": {"plan_assignment", "plan_flows"},
    "pipelines/sources/kafka.py": {"__init__"},
}
"""docs/adr/0126 has the reasons."""


@cache
def functions() -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    return [
        (str(path.relative_to(ROOT)), node)
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines from `def` to the last one, without the docstring."""
    assert function.end_lineno
    own = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function) is None:
        return own
    first = function.body[0]
    assert first.end_lineno
    return own - (first.end_lineno - first.lineno + 1)


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Those with a name, but for self and cls."""
    given = [one.arg for one in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    return len(given) - (given[:1] in (["self"], ["cls"]))


@pytest.mark.parametrize("what", [lines, parameters], ids=lambda what: what.__name__)
def test_functions_are_small(what: object) -> None:
    most = MOST_LINES if what is lines else MOST_PARAMETERS
    over = [
        f"{path}:{function.lineno}: {function.name}: {size}"
        for path, function in functions()
        if (size := lines(function) if what is lines else parameters(function)) > most
        and not (what is parameters and function.name in LONGER_SIGNATURES.get(path, ()))
    ]
    assert over == []


def test_every_exception_is_one() -> None:
    long = {(path, function.name) for path, function in functions() if parameters(function) > MOST_PARAMETERS}
    assert {(path, name) for path, names in LONGER_SIGNATURES.items() for name in names} == long
