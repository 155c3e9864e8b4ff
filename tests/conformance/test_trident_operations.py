"""Each case of shared/rules/trident.md on the reference engine, on a bounded run and on a stream."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.testing import run_topology
from pipelines.testing.table import in_order
from tests.conformance.trident_cases import CASES, Case


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.spark])
def test_reference(name: str) -> None:
    case = CASES[name]
    assert run_topology(case.topology(), {"s": case.batches}) == case.states


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.spark])
@pytest.mark.usefixtures("spark")
def test_reference_with_expressions(name: str) -> None:
    case = CASES[name]
    assert run_topology(case.topology(), {"s": case.batches}) == case.states


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(120)
def test_stream(name: str) -> None:
    case = CASES[name]
    assert run_topology(case.topology(), {"s": case.batches}, "stream") == case.states


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(120)
def test_bounded(name: str) -> None:
    case = CASES[name]
    assert run_topology(case.topology(), {"s": case.batches}, "bounded") == as_one_commit(case)


def as_one_commit(case: Case) -> dict[str, Any]:
    """What the bounded engine gives: a commit a state."""
    expected = {**case.states, **case.bounded}
    return {name: in_order(rows, tuple(rows[0])) if rows else [] for name, rows in expected.items()}
