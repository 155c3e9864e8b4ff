"""A flow in daily slices, for the tests of requests; named by TRIDELTA_FLOWS."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from pathlib import Path

from pipelines.catalog.flow import DailySlices, FlowSettings, FlowSpec
from pipelines.quality import fail
from pipelines.sources import JsonFiles
from pipelines.trident import Count, DeltaState, MapGet, Sum, TridentTopology, row_function


@row_function("decimal(11,2)")
def twice(price: Decimal) -> Decimal:
    return price * 2


def days(settings: FlowSettings) -> TridentTopology:
    """Amounts a day."""
    topology = TridentTopology("days", "Amounts a day")
    files = JsonFiles(settings.data / "days", "day string, k string, v bigint")
    rows = topology.new_stream("days", files, slice_by="day").gate(
        fail("column_values_to_be_between", column="v", min_value=0, name="amounts_are_positive"), name="accepted"
    )
    sums = rows.group_by("k").persistent_aggregate(DeltaState("day_sums"), [Count("n"), Sum("v", "total")])
    topology.new_query_stream("of", "k string").state_query(sums, "k", MapGet(), ["n", "total"])
    topology.new_query_stream("echo", "price decimal(10,2), day date, at timestamp, raw binary").each(
        "price", twice, "more"
    )
    return topology


FLOWS = (FlowSpec("days", "Amounts a day.", days, slices=DailySlices(date(2026, 1, 1), date(2026, 1, 9))),)


def write(home: Path, day: str, amounts: list[int]) -> None:
    """The file of one day."""
    folder = home / "data" / "days"
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"day": day, "k": f"k{n % 2}", "v": amount}) for n, amount in enumerate(amounts)]
    (folder / f"{day}.json").write_text("\n".join(lines), "utf-8")
