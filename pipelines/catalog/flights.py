"""The flow "flights": departures from New York City, day by day, and what they add up to."""

from __future__ import annotations

from datetime import date

from pipelines.catalog.flights_data import FLIGHTS_SCHEMA
from pipelines.catalog.flow import DailySlices, FlowSettings, FlowSpec, QueryAsset, Ranking
from pipelines.quality import Check, drop, fail, warn
from pipelines.sources import JsonFiles
from pipelines.trident import Average, Count, DeltaState, MapGet, Max, Split, Sum, TridentTopology

FUNCTIONS = ()

AIRPORTS = ("EWR", "JFK", "LGA")
CARRIERS = "9E AA AS B6 DL EV F9 FL HA MQ OO UA US VX WN YV"
# A batch of nine days is some 8,000 flights: the year is 41 batches, each long enough that the work in it outweighs the
# commit of four tables, and short enough to watch.
FILES_PER_BATCH = 9

KEPT = [
    "date", "carrier", "flight", "tailnum", "origin", "dest", "hour", "minute", "dep_time", "dep_delay", "arr_delay",
    "air_time", "distance",
]  # fmt: skip


def accepted() -> tuple[Check, ...]:
    """Return the checks that a flight must pass to count.

    A file without a proper date would go into a slice that nobody can find again, so it stops the flow. Rows that lack
    their keys, or hold values that no airline can have meant, go to quarantine. Cancelled flights (no departure time) are
    flights; a day with a tenth of its flights cancelled is a warning.
    """
    return (
        fail("column_values_to_match_regex", column="date", regex=r"^\d{4}-\d{2}-\d{2}$", name="date_is_a_day"),
        drop("column_values_to_not_be_null", column="date", name="date_is_there"),
        drop("column_values_to_not_be_null", column="carrier", name="carrier_is_there"),
        drop("column_values_to_not_be_null", column="dest", name="dest_is_there"),
        drop("column_values_to_not_be_null", column="origin", name="origin_is_there"),
        drop("column_values_to_be_in_set", column="origin", value_set=list(AIRPORTS), name="origin_is_new_york"),
        drop(
            "column_values_to_be_between", column="dep_delay", min_value=-120, max_value=1800, name="delay_is_possible"
        ),
        # Newark to LaGuardia, 17 miles, stands in the data as a cancelled flight of 27 July 2013.
        drop("column_values_to_be_between", column="distance", min_value=50, name="distance_is_a_flight"),
        warn("column_values_to_not_be_null", column="dep_time", mostly=0.9, name="few_are_cancelled"),
        warn("column_values_to_not_be_null", column="tailnum", mostly=0.95, name="planes_are_known"),
    )


def build(settings: FlowSettings) -> TridentTopology:
    """Return the topology: one gate, one table of the flights themselves, three states, two queries."""
    topology = TridentTopology("flights", "Departures from New York City and what they add up to")
    files = JsonFiles(settings.data / "flights", FLIGHTS_SCHEMA, max_files_per_batch=FILES_PER_BATCH)
    flights = topology.new_stream("flights", files, slice_by="date").gate(*accepted(), name="accepted")

    flights.project(KEPT).partition_persist(DeltaState("departures"))
    delay = [Count("flights"), Sum("dep_delay", "dep_delay_sum"), Average("dep_delay", "avg_dep_delay")]
    carriers = flights.group_by("carrier").persistent_aggregate(
        DeltaState("carrier_delay"), [*delay, Max("dep_delay", "max_dep_delay")]
    )
    routes = flights.group_by(["origin", "dest"]).persistent_aggregate(
        DeltaState("route_traffic"), [Count("flights"), Sum("distance", "distance_sum")]
    )
    flights.group_by(["origin", "hour"]).persistent_aggregate(DeltaState("airport_hour"), delay)

    numbers = ["flights", "avg_dep_delay", "max_dep_delay"]
    (
        topology.new_query_stream("delays", "carriers string")
        .each("carriers", Split(), "carrier")
        .state_query(carriers, "carrier", MapGet(), numbers)
        .project(["carrier", *numbers])
    )
    (
        topology.new_query_stream("route", "origin string, dest string")
        .state_query(routes, ["origin", "dest"], MapGet(), ["flights", "distance_sum"])
    )  # fmt: skip
    return topology


FLIGHTS = FlowSpec(
    name="flights",
    description="336,776 flights that left New York City in 2013, one JSON file per day.",
    build=build,
    slices=DailySlices(date(2013, 1, 1), date(2013, 12, 31)),
    queries=(
        QueryAsset(
            "carrier_ranking",
            "The carriers by their average departure delay, asked of the query stream `delays`.",
            reads=("carrier_delay",),
            query="delays",
            args=((CARRIERS,),),
            ranking=Ranking("avg_dep_delay"),
        ),
        QueryAsset(
            "busiest_routes",
            "The ten routes with the most flights.",
            reads=("route_traffic",),
            ranking=Ranking("flights", rows=10),
        ),
    ),
    suites={
        "departures": (
            fail("column_values_to_be_in_set", column="origin", value_set=list(AIRPORTS)),
            fail("column_values_to_not_be_null", column="carrier"),
            warn("column_values_to_be_between", column="air_time", min_value=15, max_value=900),
        ),
        "carrier_delay": (
            fail("column_values_to_be_unique", column="carrier"),
            fail("column_values_to_be_between", column="flights", min_value=1),
            warn("column_values_to_be_between", column="avg_dep_delay", min_value=-30, max_value=60),
        ),
        "route_traffic": (
            fail("compound_columns_to_be_unique", column_list=["origin", "dest"]),
            fail("column_values_to_be_between", column="flights", min_value=1),
        ),
        "airport_hour": (
            fail("compound_columns_to_be_unique", column_list=["origin", "hour"]),
            fail("column_values_to_be_between", column="hour", min_value=0, max_value=23),
        ),
    },
    owners=("team:flights",),
    tags={"domain": "aviation"},
)
