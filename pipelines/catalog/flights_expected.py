"""The results that the flows over the departures must give, computed by pandas from the published tables: a second opinion.

Nothing of the engine is used here but the reading of its tables, so that both can only agree by being right.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import pandas as pd

from pipelines.catalog.flights_data import published

if TYPE_CHECKING:
    from pipelines.state.lake import Lake

FUNCTIONS = ()


@dataclass(frozen=True)
class Comparison:
    """A table beside what pandas says that it holds. `missing` are rows that only pandas has, `more` those of the table."""

    table: str
    rows: int
    missing: int
    more: int

    @property
    def agrees(self) -> bool:
        return not self.missing and not self.more


def compared(lake: Lake, days: int | None = None) -> list[Comparison]:
    """Return the tables of the four flows against pandas.

    Args:
        lake: where the flows have run, over the first `days` of the year.
        days: None: all of it.
    """
    return [_compared(lake, table, compute(days)) for table, compute in EXPECTED.items()]


def _compared(lake: Lake, table: str, expected: pd.DataFrame) -> Comparison:
    actual = lake.state(table).scan().to_pandas()[list(expected.columns)]
    for frame in (actual, expected):
        for name, kind in frame.dtypes.items():
            if kind.kind == "f":
                frame[name] = frame[name].round(9)
            elif kind.kind == "M":
                frame[name] = frame[name].dt.strftime("%Y-%m-%d %H:%M:%S")
    # Rows may come twice, so it is their number that counts.
    rows = [frame.astype(str).value_counts() for frame in (actual, expected)]
    difference = rows[0].sub(rows[1], fill_value=0)
    return Comparison(table, len(actual), int(-difference[difference < 0].sum()), int(difference[difference > 0].sum()))


@lru_cache(maxsize=1)
def flights(days: int | None = None) -> pd.DataFrame:
    """Return the flights of the first days, in the order of their scheduled departure `at` (of one minute: as published)."""
    frame = published("flights")
    day = pd.to_datetime(frame[["year", "month", "day"]])
    frame["date"] = day.dt.strftime("%Y-%m-%d")
    frame["at"] = day + pd.to_timedelta(frame["hour"] * 60 + frame["minute"], unit="min")
    if days is not None:
        frame = frame[day < pd.Timestamp("2013-01-01") + pd.Timedelta(days=days)]
    return frame.sort_values("at", kind="stable")


def delay_alerts(days: int | None = None) -> pd.DataFrame:
    """List every 25th of an airport's departures without a gap of three hours at which the last 100 were 45 minutes late."""
    alerts = []
    for origin, own in flights(days).dropna(subset="dep_delay").groupby("origin"):
        spell = (own["at"].diff() >= pd.Timedelta(hours=3)).cumsum()
        for _, part in own.groupby(spell):
            last = part["dep_delay"].rolling(100, min_periods=1)
            counted = pd.DataFrame({"event_time": part["at"], "departures": last.count().astype(int)})
            counted["avg_delay"] = last.sum() / counted["departures"]
            counted["max_delay"] = last.max().astype(int)
            alerts.append(counted.assign(origin=origin)[24::25])
    every = pd.concat(alerts)
    return every[every["avg_delay"] >= 45]


def departures_with_weather(days: int | None = None) -> pd.DataFrame:
    """Return the flights beside the report of their airport and hour, as far as there are reports."""
    reports, frame = published("weather"), flights(days)
    reported_at = pd.to_datetime(reports[["year", "month", "day", "hour"]])
    until = reported_at[reported_at <= frame["at"].max()].max()
    own = ["date", "origin", "time_hour", "sched_dep_time", "carrier", "flight", "dest", "dep_delay"]
    weather = reports[["origin", "time_hour", "temp", "wind_speed", "wind_gust", "precip", "visib"]]
    return frame.loc[frame["at"] <= until, own].merge(weather, on=["origin", "time_hour"])


def worst_routes_of_the_day(days: int | None = None) -> pd.DataFrame:
    """Return ten routes per day, of days whose result is due before the last flight: 40 hours after their first departure."""
    frame = flights(days)
    routes = frame.dropna(subset="dep_delay").groupby(["date", "origin", "dest"])
    every = routes.agg(
        departures=("dep_delay", "size"),
        avg_delay=("dep_delay", "mean"),
        max_delay=("dep_delay", "max"),
        first=("at", "min"),
    ).reset_index()
    every = every[every["departures"] >= 3]
    due = every.groupby("date")["first"].transform("min") + pd.Timedelta(hours=40)
    complete = every[due <= frame["at"].max()].drop(columns="first").astype({"max_delay": int})
    return complete.sort_values(["avg_delay", "origin", "dest"], ascending=[False, True, True]).groupby("date").head(10)


def long_delay_notices(days: int | None = None) -> pd.DataFrame:
    """Return the flights an hour late, but for those of an airport that is muted: after ten within an hour, for two hours.

    An airport from which nothing came for two hours begins again.
    """
    frame = flights(days)
    late = frame[frame["dep_delay"] >= 60].astype({"dep_delay": int})
    noticed = []
    for _, own in late.groupby("origin"):
        passed: deque[pd.Timestamp] = deque(maxlen=10)
        muted_until: pd.Timestamp | None = None
        after_pause = own["at"].diff() > pd.Timedelta(hours=2)
        for (index, at), first in zip(own["at"].items(), after_pause, strict=True):
            if first:
                passed.clear()
            elif muted_until is not None and at <= muted_until:
                continue
            muted_until = None
            if len(passed) == 10 and passed[-1] - passed[0] <= pd.Timedelta(hours=1):
                muted_until = at + pd.Timedelta(hours=2)
                passed.clear()
                continue
            passed.append(at)
            noticed.append(index)
    return late.loc[noticed, ["date", "origin", "carrier", "flight", "dest", "dep_delay", "at"]].rename(
        columns={"at": "event_time"}
    )


EXPECTED: dict[str, Callable[[int | None], pd.DataFrame]] = {
    "delay_alerts": delay_alerts,
    "departures_with_weather": departures_with_weather,
    "worst_routes_of_the_day": worst_routes_of_the_day,
    "long_delay_notices": long_delay_notices,
}
"""By table what computes it, over the first days of the year."""
