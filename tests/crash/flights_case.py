"""The flights flow on real files: laid out, spoiled, and recomputed with pandas by the same rules."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines import Lake
from pipelines.catalog import FlowSettings, flow
from pipelines.catalog import flights as flights_module
from pipelines.catalog.flights_data import FLIGHTS_SCHEMA, lay_out
from pipelines.trident import TridentTopology
from tests.lakes import lake_place

if TYPE_CHECKING:
    # Not at run time: the processes that are killed import this module too.
    import pandas as pd
    import pyarrow as pa

STATES = ("departures", "carrier_delay", "route_traffic", "airport_hour")
TYPES = dict(field.rsplit(" ", 1) for field in FLIGHTS_SCHEMA.split(", "))
NUMBERS = [name for name, kind in TYPES.items() if kind == "int"]
TORN = '{"date":"2013-01-03","year":2013,"carrier":"AA","fli'
Rows = list[tuple[Any, ...]]


def topology(settings: FlowSettings, *, files_per_batch: int | None = None) -> TridentTopology:
    """The flights flow of the catalog, perhaps with batches of another size."""
    usual = flights_module.FILES_PER_BATCH
    flights_module.FILES_PER_BATCH = files_per_batch or usual
    try:
        return flow("flights").topology(settings)
    finally:
        flights_module.FILES_PER_BATCH = usual


def settings_of(home: Path) -> FlowSettings:
    """The settings of a home whose lake is where the lakes of this run are."""
    return FlowSettings(home, str(lake_place(home / "lake")))


def arrive(home: Path, days: int | None, *, spoiled: bool = True) -> FlowSettings:
    """The first days of flights as files under `home`; some with lines that no flow can take."""
    settings = settings_of(home)
    lay_out(settings.data, days=days)
    if spoiled:
        files = flight_files(settings)
        spoil(files[2], torn_in_the_middle=True)
        for file in files[5::11]:
            spoil(file)
    return settings


def flight_files(settings: FlowSettings) -> list[Path]:
    """The files of flights, in the order in which they arrived."""
    return sorted((settings.data / "flights").glob("*.json"))


def spoil(file: Path, *, torn_in_the_middle: bool = False) -> None:
    """Add a torn line, a wrong type, a row without a date and two that the gate drops; the file's time stays."""
    lines, times = file.read_text(encoding="utf-8").splitlines(), file.stat()
    good = json.loads(lines[0])
    wrong = ({"distance": "far"}, {"date": None}, {"carrier": None}, {"dep_delay": 99_999})
    lines[1:1] = [TORN] if torn_in_the_middle else []
    lines += [json.dumps({**good, **one}) for one in wrong]
    file.write_text("\n".join(lines) + "\n" + ("" if torn_in_the_middle else TORN), encoding="utf-8")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


# --- what must come out ---------------------------------------------------------------------------------------------


class Expected:
    """What the files hold, by the gate's rules, computed without Spark.

    Attributes:
        received: rows in the files, good or not.
        states: rows of each state, as `contents` gives them.
        refused: quarantined rows by rule.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        import pandas as pd

        self.refused: Counter[str] = Counter()
        kept = self._gate(pd.DataFrame(self._parsed(files), columns=list(TYPES), dtype=object))
        self.states = {
            "departures": _rows(kept[flights_module.KEPT]),
            "carrier_delay": _aggregated(kept, ["carrier"], delay=True, worst=True),
            "route_traffic": _aggregated(kept, ["origin", "dest"], distance=True),
            "airport_hour": _aggregated(kept, ["origin", "hour"], delay=True),
        }
        self.received = len(kept) + sum(self.refused.values())

    def _parsed(self, files: Iterable[Path]) -> Iterable[tuple[Any, ...]]:
        for file in files:
            rows, refused = _parsed_file(file, file.stat().st_size)
            self.refused.update(refused)
            yield from rows

    def _gate(self, rows: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        delay, distance = pd.to_numeric(rows["dep_delay"]), pd.to_numeric(rows["distance"])
        failed = {
            "carrier_is_there": rows["carrier"].isna(),
            "dest_is_there": rows["dest"].isna(),
            "origin_is_there": rows["origin"].isna(),
            "origin_is_new_york": rows["origin"].notna() & ~rows["origin"].isin(flights_module.AIRPORTS),
            "delay_is_possible": (delay < -120) | (delay > 1800),
            "distance_is_a_flight": distance < 50,
        }
        table = pd.DataFrame(failed)
        for names in table[table.any(axis=1)].apply(lambda row: ", ".join(row.index[row]), axis=1):
            self.refused[names] += 1
        return rows[~table.any(axis=1)]


@cache
def _parsed_file(file: Path, _size: int) -> tuple[Rows, Counter[str]]:
    """The rows of a file that the source lets pass, and how many it does not, by rule."""
    refused: Counter[str] = Counter()
    rows = []
    for line in file.read_text(encoding="utf-8").splitlines():
        row = _fitting(line)
        if row is None:
            refused["malformed"] += 1
        elif row[0] is None:
            refused["no_slice"] += 1
        else:
            rows.append(row)
    return rows, refused


def _fitting(line: str) -> tuple[Any, ...] | None:
    """The values of a line, the date first, if it parses as the declared schema."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    if any(row[name] is not None and not isinstance(row[name], int) for name in NUMBERS):
        return None
    return tuple(row[name] for name in TYPES)


def _aggregated(
    rows: pd.DataFrame, keys: list[str], *, delay: bool = False, worst: bool = False, distance: bool = False
) -> Rows:
    made = []
    for key, group in rows.groupby(keys, sort=False):
        delays = [int(value) for value in group["dep_delay"] if value is not None]
        values: list[Any] = [len(group)]
        if delay:
            values += [sum(delays) if delays else None, sum(delays) / len(delays) if delays else None]
        if worst:
            values += [max(delays, default=None)]
        if distance:
            values += [int(group["distance"].sum())]
        made.append((*key, *values))
    return sorted(made, key=repr)


def _rows(frame: pd.DataFrame) -> Rows:
    return sorted(zip(*(frame[name].tolist() for name in frame.columns), strict=True), key=repr)


# --- what did come out ----------------------------------------------------------------------------------------------


def table_rows(table: pa.Table) -> Rows:
    """The rows of an Arrow table in one order for all equal tables."""
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True), key=repr)


def contents(lake: Lake, *, txid: int | None = None) -> dict[str, Rows]:
    """The rows of each state."""
    return {name: table_rows(lake.state(name).scan(txid=txid)) for name in STATES}


def refused(lake: Lake) -> Counter[str]:
    """Quarantined rows by rule."""
    return Counter(lake.quarantine("flights").scan()["rule"].to_pylist())


def refused_rows(lake: Lake) -> Rows:
    """Quarantined rows, whole."""
    return table_rows(lake.quarantine("flights").scan())


def assert_equal(found: Mapping[str, Rows], expected: Mapping[str, Rows]) -> None:
    """States equal row by row; says which is not, and by what, without printing all of it."""
    for name in STATES:
        missing = sorted(set(expected[name]) - set(found[name]), key=repr)
        extra = sorted(set(found[name]) - set(expected[name]), key=repr)
        assert not missing, f"{name} lacks {len(missing)} of {len(expected[name])} rows, e.g. {missing[:2]}"
        assert not extra, f"{name} has {len(extra)} rows too many, e.g. {extra[:2]}"
        assert found[name] == expected[name], f"{name} holds some of its rows more than once"


def batch_txids(lake: Lake, names: Sequence[str] = STATES) -> dict[str, list[int]]:
    """The txids of each state's batch commits, in the order of the table's history."""
    return {
        name: [c.txid for c in lake.state(name).history() if c.kind == "batch" and c.txid is not None] for name in names
    }
