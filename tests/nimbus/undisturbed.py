"""What the tables of the test flows hold if nothing goes wrong: computed from the same files, without Nimbus and Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from pipelines import Lake
from pipelines.catalog.flow import FlowSettings
from pipelines.errors import UnknownStateError
from pipelines.testing import run_flow
from tests.nimbus.deployed_flows import readings, rows_of

Row = tuple[Any, ...]
Contents = dict[str, list[Row]]

COLUMNS = {
    "numbers_kept": ("id", "k", "v", "timestamp"),
    "sums_by_key": ("k", "n", "total"),
    "apart_kept": ("id", "k", "v", "timestamp"),
    "apart_sums": ("k", "n", "total"),
    "guarded_kept": ("id", "k", "v", "timestamp"),
    "asking_kept": ("id", "k", "v", "timestamp"),
    "asking_top": ("m",),
    "reading_sums": ("k", "sum", "n"),
    "reading_averages": ("k", "avg"),
}
TABLES = {
    "numbers": ("numbers_kept", "sums_by_key"),
    "apart": ("apart_kept", "apart_sums"),
    "guarded": ("guarded_kept",),
    "asking": ("asking_kept", "asking_top"),
    "readings": ("reading_sums", "reading_averages"),
}


def expected(flow: str, files: Iterable[int]) -> Contents:
    """The tables of a flow over these files."""
    return _computed(flow, tuple(files))


@cache
def _computed(flow: str, files: tuple[int, ...]) -> Contents:
    rows = [row for number in files for row in rows_of(number)]
    makers: dict[str, Callable[[list[dict[str, Any]]], list[list[dict[str, Any]]]]] = {
        "numbers": lambda rows: [rows, _sums(rows)],
        "apart": lambda rows: [rows, _sums(rows)],
        "guarded": lambda rows: [rows],
        "asking": lambda rows: [rows, [{"m": max(row["v"] for row in rows)}]],
        "readings": _windows,
    }
    return {name: _sorted(name, found) for name, found in zip(TABLES[flow], makers[flow](rows), strict=True)}


def seen(lake: Lake, flow: str) -> Contents:
    """The tables of a flow as they are; one that is not there yet is empty."""
    return {name: _sorted(name, _scanned(lake, name)) for name in TABLES[flow]}


def differences(lake: Lake, flow: str, files: Iterable[int]) -> list[str]:
    """In what the tables differ from what they should hold: a line a table, with rows that are lost and too many."""
    wanted, found = expected(flow, files), seen(lake, flow)
    return [
        f"{name}: {len(lost)} rows lost {lost[:3]}, {len(more)} too many {more[:3]}"
        for name in wanted
        for lost, more in [(minus(wanted[name], found[name]), minus(found[name], wanted[name]))]
        if lost or more
    ]


def minus(left: list[Row], right: list[Row]) -> list[Row]:
    """The rows of `left` without those of `right`, each as often as it is there."""
    from collections import Counter

    return list((Counter(left) - Counter(right)).elements())


def _sums(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    keys = sorted({row["k"] for row in rows})
    values = {key: [row["v"] for row in rows if row["k"] == key] for key in keys}
    return [{"k": key, "n": len(values[key]), "total": sum(values[key])} for key in keys]


def _windows(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    # The reference engine reads no source: the home does not matter.
    results = run_flow(readings(FlowSettings(Path("/nowhere"))), {"readings": rows}, engine="reference")
    return [[dict(event) for event in results[name]] for name in TABLES["readings"]]


def _scanned(lake: Lake, name: str) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = lake.state(name).scan().to_pylist()
    except UnknownStateError:
        return []
    return rows


def _sorted(name: str, rows: list[dict[str, Any]]) -> list[Row]:
    return sorted(tuple(row[column] for column in COLUMNS[name]) for row in rows)
