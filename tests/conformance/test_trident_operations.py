"""Each case of docs/rules/trident.md on the reference engine, on a bounded run and on a stream."""

from __future__ import annotations

import pytest

from pipelines.testing import query_topology, run_topology
from tests.conformance import (
    trident_cases,
    trident_contracts,
    trident_corners,
    trident_meetings,
    trident_originals,
    trident_partitions,
    trident_states,
)
from tests.conformance.case import Case
from tests.tiers import tier

CASES: dict[str, Case] = {
    **trident_cases.CASES,
    **trident_contracts.CASES,
    **trident_partitions.CASES,
    **trident_meetings.CASES,
    **trident_states.CASES,
    **trident_originals.CASES,
    **trident_corners.CASES,
}
QUERIES = [(name, number) for name, case in CASES.items() for number in range(len(case.answers))]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.spark])
def test_reference(name: str) -> None:
    case = CASES[name]
    assert run_topology(case.topology(), case.given()) == case.states


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.spark])
@pytest.mark.usefixtures("spark")
def test_reference_with_expressions(name: str) -> None:
    case = CASES[name]
    assert run_topology(case.topology(), case.given()) == case.states


# Each case runs on Spark in `make test`, as a stream or bounded (`make test-all` runs each as both), and the first of its
# queries. One stream in 48 runs with the fast tests, so that a broken stream shows there.
STREAMED = [pytest.param(name, marks=tier(n % 2 == 0, fast=n % 48 == 0)) for n, name in enumerate(CASES)]
BOUNDED = [pytest.param(name, marks=tier(n % 2 == 1)) for n, name in enumerate(CASES)]
ASKED = [pytest.param(name, n, marks=[pytest.mark.exhaustive] if n else []) for name, n in QUERIES]


@pytest.mark.parametrize("name", STREAMED)
@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(120)
def test_stream(name: str) -> None:
    case = CASES[name]
    assert run_topology(case.topology(), case.given(), "stream") == case.states


@pytest.mark.slow
@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(120)
def test_bounded(name: str) -> None:
    case = CASES[name]
    assert run_topology(case.topology(), case.given(), "bounded") == case.states


@pytest.mark.parametrize(("name", "number"), QUERIES)
def test_queries_on_the_reference_engine(name: str, number: int) -> None:
    case = CASES[name]
    query, arguments, answer = case.answers[number]
    assert query_topology(case.topology(), case.given(), query, arguments) == answer


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number"), ASKED)
@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(120)
def test_queries_on_a_stream(name: str, number: int) -> None:
    case = CASES[name]
    query, arguments, answer = case.answers[number]
    assert query_topology(case.topology(), case.given(), query, arguments, "stream") == answer
