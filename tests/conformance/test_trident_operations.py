"""Each case of shared/rules/trident.md on the reference engine, on a bounded run and on a stream."""

from __future__ import annotations

import pytest

from pipelines.testing import run_topology
from tests.conformance.trident_cases import CASES


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


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(120)
def test_bounded(name: str) -> None:
    case = CASES[name]
    assert run_topology(case.topology(), {"s": case.batches}, "bounded") == case.states
