"""Event flows over the departures: who is late, under which weather, where it is worst, and when to stop saying so.

An event is a flight at its scheduled departure, on New York's clocks (shown as if they were UTC). The same record
reports what was late, so these flows look back at a day that has ended, as the files do.
"""

from __future__ import annotations

from functools import partial

from pipelines.catalog.flights import AIRPORTS, FLIGHTS
from pipelines.catalog.flights_data import FLIGHTS_SCHEMA, WEATHER_SCHEMA
from pipelines.catalog.flow import FlowSettings, FlowSpec, QueryAsset, Ranking
from pipelines.flowmix import Average, Count, Flow, FlowStream, Max, Policy
from pipelines.quality import drop, fail, warn
from pipelines.sources import JsonFiles

FUNCTIONS = ()

# A batch of a window query costs about a second and a half beside its rows, so a year's is a quarter of it.
FILES_PER_BATCH = 92

HOUR, DAY = 3600, 86_400
# By night nothing leaves for five hours: what an airport's window knew of the evening does not count in the morning.
A_NIGHT = 3 * HOUR * 1000
# From the first departure of a day to the last: they leave between five in the morning and midnight.
FLYING = 20 * HOUR
# Just behind the moment at which a day's window tells: it is not there any more to tell an empty day.
FORGOTTEN = (FLYING + 1) * 1000

FLIGHT = "concat_ws('-', date, origin, carrier, flight, sched_dep_time)"
# A flight without a time must not set the clock, which would make all that follows late: it is put before all others.
NEVER = "timestamp_ntz'1970-01-01'"
SCHEDULED = f"coalesce(try_make_timestamp_ntz(year, month, day, hour, minute, 0), {NEVER})"
OBSERVED = f"coalesce(try_make_timestamp_ntz(year, month, day, hour, 0, 0), {NEVER})"


def _departures(start: Flow | FlowStream, settings: FlowSettings) -> FlowStream:
    """Return the stream of flights, without those that no airline can have meant."""
    files = JsonFiles(settings.data / "flights", FLIGHTS_SCHEMA, max_files_per_batch=FILES_PER_BATCH)
    return start.stream("flights", files, id=FLIGHT, timestamp=SCHEDULED).gate(
        drop("column_values_to_be_in_set", column="origin", value_set=list(AIRPORTS), name="origin_is_new_york"),
        drop("column_values_to_not_be_null", column="dest", name="dest_is_there"),
        drop(
            "column_values_to_be_between", column="dep_delay", min_value=-120, max_value=1800, name="delay_is_possible"
        ),
        name="possible",
    )


def late_departures(settings: FlowSettings) -> Flow:
    """Every 25 departures of an airport: how late its last 100 were. An alert where that is 45 minutes or more."""
    return (
        _departures(Flow("late_departures", LATE_DEPARTURES.description), settings)
            .filter("dep_delay is not null")
            .partition("origin")
            .aggregate(
                Count("departures"), Average("dep_delay", "avg_delay"), Max("dep_delay", "max_delay"),
                trigger=Policy.count(25), evict=Policy.count(100), window_evict_millis=A_NIGHT,
            )
            .filter("avg_delay >= 45")
            .persist("delay_alerts")
        .build()
    )  # fmt: skip


def departure_weather(settings: FlowSettings) -> Flow:
    """Join each flight to the weather that its airport reported for the hour; hours without a report have no rows."""
    reports = JsonFiles(settings.data / "weather", WEATHER_SCHEMA, max_files_per_batch=FILES_PER_BATCH)
    flow = Flow("departure_weather", DEPARTURE_WEATHER.description)
    weather = (
        flow.stream("weather", reports, id="concat_ws('-', origin, time_hour)", timestamp=OBSERVED)
            .select("origin", "time_hour", "temp", "wind_speed", "wind_gust", "precip", "visib")
            .to("under_weather")
    )  # fmt: skip
    return (
        _departures(weather, settings)
            .select("origin", "time_hour", "date", "sched_dep_time", "carrier", "flight", "dest", "dep_delay")
            .to("under_weather")
        .stream("under_weather")
            .partition("origin", "time_hour")
            .join("weather", "flights", evict=Policy.time(HOUR))
            .persist("departures_with_weather")
        .build()
    )  # fmt: skip


def worst_routes(settings: FlowSettings) -> Flow:
    """Return the routes of a day by their average delay, of those with three departures or more; the ten worst of each day.

    A route's day is over 20 hours after its first departure, and the day of all of them 20 hours after the first route's: in
    the evening of the day after.
    """
    return (
        _departures(Flow("worst_routes", WORST_ROUTES.description), settings)
            .filter("dep_delay is not null")
            .partition("date", "origin", "dest")
            .aggregate(
                Count("departures"), Average("dep_delay", "avg_delay"), Max("dep_delay", "max_delay"),
                trigger=Policy.time(FLYING), evict=Policy.time(DAY), clear_on_trigger=True,
                window_evict_millis=FORGOTTEN,
            )
            .filter("departures >= 3")
            .partition("date")
            .sort(
                "avg_delay desc", "origin", "dest",
                top_n=10, trigger=Policy.time(FLYING), flush=True, window_evict_millis=FORGOTTEN,
            )
            .persist("worst_routes_of_the_day")
        .build()
    )  # fmt: skip


def delay_notices(settings: FlowSettings) -> Flow:
    """Return a notice of each flight an hour late. After ten of an airport within an hour it is muted for two hours.

    An airport from which nothing came for two hours begins again.
    """
    return (
        _departures(Flow("delay_notices", DELAY_NOTICES.description), settings)
            .filter("dep_delay >= 60")
            .select("origin", "date", "carrier", "flight", "dest", "dep_delay")
            .partition("origin")
            .switch(open=Policy.time_delta_lt(HOUR), evict=Policy.count(10), close=Policy.time(2 * HOUR))
            .persist("long_delay_notices")
        .build()
    )  # fmt: skip


_spec = partial(FlowSpec, owners=FLIGHTS.owners, tags=FLIGHTS.tags)

LATE_DEPARTURES = _spec(
    "late_departures",
    "Alerts: an airport whose last 100 departures were 45 minutes late on average, looked at every 25 departures.",
    build=late_departures,
    queries=(
        QueryAsset(
            "worst_alerts",
            "The ten alerts with the longest average delay.",
            reads=("delay_alerts",),
            ranking=Ranking("avg_delay", rows=10),
        ),
    ),
    suites={
        "delay_alerts": (
            fail("column_values_to_be_in_set", column="origin", value_set=list(AIRPORTS)),
            fail("column_values_to_be_between", column="departures", min_value=25, max_value=100),
            fail("column_values_to_be_between", column="avg_delay", min_value=45),
        ),
    },
)
DEPARTURE_WEATHER = _spec(
    "departure_weather",
    "Every departure joined with the weather that its airport reported for the hour.",
    build=departure_weather,
    suites={
        "departures_with_weather": (
            fail(
                "compound_columns_to_be_unique", column_list=["date", "origin", "carrier", "flight", "sched_dep_time"]
            ),
            warn("column_values_to_not_be_null", column="temp", mostly=0.99),
        ),
    },
)
WORST_ROUTES = _spec(
    "worst_routes",
    "The ten routes of each day with the longest average departure delay.",
    build=worst_routes,
    queries=(
        QueryAsset(
            "worst_route_days",
            "The ten days on which a route was latest.",
            reads=("worst_routes_of_the_day",),
            ranking=Ranking("avg_delay", rows=10),
        ),
    ),
    suites={
        "worst_routes_of_the_day": (
            fail("compound_columns_to_be_unique", column_list=["date", "origin", "dest"]),
            fail("column_values_to_be_between", column="departures", min_value=3),
        ),
    },
)
DELAY_NOTICES = _spec(
    "delay_notices",
    "A notice of each flight an hour late; an airport that sends ten within an hour is muted for two.",
    build=delay_notices,
    suites={
        "long_delay_notices": (
            fail("column_values_to_be_unique", column="event_id"),
            fail("column_values_to_be_between", column="dep_delay", min_value=60),
        ),
    },
)
FLIGHTS_FLOWS = (LATE_DEPARTURES, DEPARTURE_WEATHER, WORST_ROUTES, DELAY_NOTICES)
