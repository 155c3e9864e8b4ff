from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pipelines.catalog import flights_data
from pipelines.catalog.flights_data import lay_out, published


@pytest.fixture(scope="module")
def year(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("year")
    report = lay_out(folder)
    assert (report.days, report.flights, report.files_kept) == (365, 336_776, 0)
    return folder


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def names(schema: str) -> list[str]:
    return [field.split()[0] for field in schema.split(", ")]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_every_flight_lies_in_the_file_of_its_day(year: Path) -> None:
    files = sorted((year / "flights").iterdir())
    assert len(files) == 365
    lines, totals, carriers, unknown = 0, Counter[str](), Counter[str](), Counter[str]()
    numbers = ("dep_delay", "arr_delay", "air_time", "distance", "sched_dep_time")
    for file in files:
        for row in rows_of(file):
            lines += 1
            assert row["date"] == file.stem == f"{row['year']}-{row['month']:02d}-{row['day']:02d}"
            carriers[row["carrier"]] += 1
            for name in numbers:
                if row[name] is None:
                    unknown[name] += 1
                else:
                    assert type(row[name]) is int
                    totals[name] += row[name]
    frame = published("flights")
    assert lines == len(frame) == 336_776
    assert carriers == frame["carrier"].value_counts().to_dict()
    assert totals == {name: int(frame[name].sum()) for name in numbers}
    assert all(unknown[name] == int(frame[name].isna().sum()) for name in numbers)


@pytest.mark.slow
def test_a_row_has_the_fields_of_the_schema(year: Path) -> None:
    (row, *_) = rows_of(year / "flights" / "2013-01-01.json")
    assert list(row) == names(flights_data.FLIGHTS_SCHEMA)
    assert (row["dep_time"], row["tailnum"], row["time_hour"]) == (517, "N14228", "2013-01-01T10:00:00Z")


@pytest.mark.slow
def test_a_missing_value_is_null(year: Path) -> None:
    cancelled = next(row for row in rows_of(year / "flights" / "2013-01-01.json") if row["dep_time"] is None)
    assert [cancelled[name] for name in ("dep_delay", "arr_time", "arr_delay", "air_time")] == [None] * 4


@pytest.mark.parametrize(
    ("table", "schema"),
    [
        ("weather", flights_data.WEATHER_SCHEMA),
        ("planes", flights_data.PLANES_SCHEMA),
        ("airports", flights_data.AIRPORTS_SCHEMA),
        ("airlines", flights_data.AIRLINES_SCHEMA),
    ],
)
@pytest.mark.slow
def test_the_other_tables_are_whole(year: Path, table: str, schema: str) -> None:
    rows = [row for file in sorted((year / table).iterdir()) for row in rows_of(file)]
    frame = published(table)
    assert len(rows) == len(frame)
    assert set(names(schema)) - {"date"} == set(frame.columns)
    for name in frame.columns:
        present = [row[name] for row in rows if row[name] is not None]
        assert Counter(present) == Counter(frame[name].dropna().tolist()), name


@pytest.mark.slow
def test_later_days_have_later_modification_times(year: Path) -> None:
    times = [file.stat().st_mtime_ns // 1_000_000 for file in sorted((year / "flights").iterdir())]
    assert times == sorted(set(times))


@pytest.mark.slow
def test_a_second_call_touches_nothing_and_more_days_come_after(tmp_path: Path) -> None:
    first = lay_out(tmp_path, days=3)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    assert (first.days, first.files_written) == (3, len(before))
    seen: list[tuple[int, int]] = []
    second = lay_out(tmp_path, days=4, progress=lambda done, total: seen.append((done, total)))
    assert (second.files_written, second.files_kept) == (2, len(before))
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert (tmp_path / "flights" / "2013-01-04.json").stat().st_mtime_ns > max(before.values())
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.slow
def test_a_torn_file_is_written_again(tmp_path: Path) -> None:
    lay_out(tmp_path, days=1)
    file = tmp_path / "flights" / "2013-01-01.json"
    whole = file.read_bytes()
    os.truncate(file, len(whole) // 2)
    assert lay_out(tmp_path, days=1).files_written == 1
    assert file.read_bytes() == whole
    assert [path.name for path in file.parent.iterdir()] == ["2013-01-01.json"]
