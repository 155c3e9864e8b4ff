"""The periodic rebalance: from the figures of deployed flows to what is to change. Applying it is the caller's."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.bounds import own_master
from pipelines.errors import TrideltaError
from pipelines.execution.checkpoint.engine_files import write_json
from pipelines.nimbus.deployed import check_deployed, queries_of
from pipelines.nimbus.errors import RegistryError
from pipelines.nimbus.flow_settings import asked_columns
from pipelines.thresholds import Thresholds

if TYPE_CHECKING:
    from pipelines.maintenance.clustering import ClusteringReport
    from pipelines.maintenance.rebalance import Decision, Figures, TableLoad
    from pipelines.nimbus.nimbus import Nimbus
    from pipelines.nimbus.registry.records import DeployedFlow
    from pipelines.state.lake import Lake


KEPT = 200
"""Looks kept of a query: two days of them, so that a load of yesterday is still known."""

APART_SECONDS = 60.0
"""Two looks that are closer count as one: asking three times in a minute is no patience."""

CHANGES = frozenset({"SUBMIT", "UPDATE", "ROLL_BACK", "ACTIVATE", "DO_REBALANCE", "REPARTITION"})
"""Events after which a query starts again and catches up: until it has settled, its batches are no measure."""


@dataclass(frozen=True)
class Judged:
    """The decision for one flow.

    Attributes:
        decisions: One a query that runs, with the look that it rests on.
        request: What a rebalance is to ask for, as `Nimbus.rebalance` takes it; empty: nothing.
    """

    flow: str
    decisions: tuple[tuple[Decision, Figures], ...] = ()
    request: Mapping[str, Any] = field(default_factory=dict)
    why_not: str = ""

    @property
    def clustering(self) -> dict[str, tuple[str, ...]]:
        """The states whose files are to lie by other columns, and these columns."""
        return {state: columns for decision, _ in self.decisions for state, columns in decision.tables.items()}

    @property
    def sentence(self) -> str:
        """The decisions, for people."""
        return "\n".join(decision.sentence for decision, _ in self.decisions) or f"{self.flow}: none: {self.why_not}"

    def rows(self) -> list[dict[str, Any]]:
        """Return a table's rows."""
        if not self.decisions:
            return [{"query": self.flow, "decision": "none", "why": self.why_not}]
        return [
            {
                "query": decision.query,
                "decision": decision.action,
                "partitions": decision.before
                if decision.before == decision.after
                else f"{decision.before} -> {decision.after}",
                "median batch in s": statistics.median(look.batch_seconds) if look.batch_seconds else None,
                "trigger in s": look.trigger_seconds,
                "waiting": look.backlog[-1] if look.backlog else 0,
                "rows per second": look.rows_per_second,
                "state rows": look.state_rows,
                "skew": None if look.skew is None else round(look.skew, 2),
                "why": "; ".join(decision.reasons),
            }
            for decision, look in self.decisions
        ]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        decisions = [{**decision.to_json(), "figures": asdict(look)} for decision, look in self.decisions]
        return {"flow": self.flow, "decisions": decisions, "request": dict(self.request), "why_not": self.why_not}


def judge(
    nimbus: Nimbus, flows: Sequence[str] | None = None, *, clock: Callable[[], float] = time.time
) -> list[Judged]:
    """Decide what to change, from the figures of deployed flows.

    Args:
        flows: Their names; None: all.
        clock: Seconds since 1970.

    Raises:
        NotAliveError: One that is named is not deployed.
        SubmitError: Its settings (`rebalance` among them) are none that this release can work with. Where all flows are
            looked at, either is the reason why there are no decisions for it.
        RegistryError: The registry does not answer.
    """
    if flows is not None:
        return [_judged(nimbus, nimbus.registry.flow(name), clock()) for name in flows]
    judged = []
    for flow in nimbus.registry.flows():
        try:
            judged.append(_judged(nimbus, flow, clock()))
        except RegistryError:
            raise
        except (TrideltaError, OSError, ValueError) as error:
            # Another release wrote it, a table of it is damaged, it has just been removed: the others are judged.
            judged.append(Judged(flow.name, why_not=str(error)))
    return judged


def _judged(nimbus: Nimbus, flow: DeployedFlow, now: float) -> Judged:
    from pipelines.maintenance.rebalance import decide

    check_deployed(flow)
    limits = Thresholds(**(flow.settings.get("rebalance") or {}))
    looks = look_at(nimbus, flow)
    if flow.status != "ACTIVE" or not looks:
        return Judged(flow.name, why_not=f"it is {flow.status}" if flow.status != "ACTIVE" else "no query of it runs")
    book = LookBook(nimbus.settings.home / "rebalance" / f"{flow.id}.json")
    history = book.add(looks.values(), now)
    last = max((line.at for line in nimbus.history(flow.name) if line.event in CHANGES), default=None)
    decided = {
        group: decide([*history[look.query][:-1], look], limits, last_change_at=last, now=now)
        for group, look in looks.items()
    }
    components = {query.group: query.components for query in queries_of(flow)}
    parallelism = {
        name: decision.after
        for group, decision in decided.items()
        if decision.after != decision.before
        for name in components[group]
    }
    return Judged(
        flow.name,
        tuple((decision, looks[group]) for group, decision in decided.items()),
        {"parallelism": parallelism} if parallelism else {},
    )


def look_at(nimbus: Nimbus, flow: DeployedFlow) -> dict[str, Figures]:
    """Return the figures of a flow's queries that run, by group."""
    from pipelines.maintenance.rebalance import look_of_beat

    beats, looks = nimbus.places.beats(flow), {}
    for query in queries_of(flow):
        figures: Mapping[str, Any] = beats[query.task].figures if query.task in beats else {}
        if figures.get("state") != "running":
            continue
        asked = query.partitions or max((flow.parallelism.get(name, 1) for name in query.components), default=1)
        partitions = figures.get("partitions") or asked
        tables = table_loads(nimbus.lake, flow, query.components)
        looks[query.group] = look_of_beat(
            f"{flow.name}/{query.group}", {**figures, "partitions": partitions}, cores=_cores(flow), tables=tables
        )
    return looks


class LookBook:
    """The looks at a flow's queries, kept in a file.

    Args:
        file: JSON: query to looks, each with its time. One that cannot be read counts as none: looks come again.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def add(self, looks: Any, now: float) -> dict[str, list[Figures]]:
        """Add a look at each query; return all that are kept, by query, the oldest first."""
        from pipelines.maintenance.rebalance import Figures

        kept = self._read()
        for look in looks:
            earlier = [entry for entry in kept.get(look.query, ()) if entry["at"] <= now]
            if earlier and now - earlier[-1]["at"] < APART_SECONDS:
                earlier.pop()
            kept[look.query] = [*earlier, {"at": now, **asdict(look)}][-KEPT:]
        write_json(self._file, kept)
        return {query: [_look(Figures, entry) for entry in entries] for query, entries in kept.items()}

    def _read(self) -> dict[str, list[dict[str, Any]]]:
        try:
            content = json.loads(self._file.read_text("utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        looks = content if isinstance(content, dict) else {}
        whole = all(
            isinstance(kept, list)
            and all(isinstance(entry, dict) and isinstance(entry.get("at"), int | float) for entry in kept)
            for kept in looks.values()
        )
        return looks if whole else {}


def _look(made: Any, kept: Mapping[str, Any]) -> Any:
    """Return a kept look, without what an older release kept beside it, and without tables: only the last look's count."""
    known = made.__dataclass_fields__.keys() - {"tables"}
    return made(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in kept.items() if name in known}
    )


def _cores(flow: DeployedFlow) -> int:
    """Return the cores of the flow's application. A cluster gives as many as are asked for."""
    from pipelines.spark.session import cores, is_local
    from pipelines.windows import BUCKETS

    master = str(flow.settings.get("master") or own_master())
    return cores(master) if is_local(master) else BUCKETS


def table_loads(lake: Lake, flow: DeployedFlow, states: Iterable[str]) -> tuple[TableLoad, ...]:
    """Return the tables whose readers ask by some columns (setting `clustering`); those that are not made yet are left out.

    Args:
        states: Which of its states.
    """
    asked = asked_columns(flow.settings)
    there = set(lake.states())
    return tuple(_load(lake, name, asked[name]) for name in states if name in asked and name in there)


def _load(lake: Lake, state: str, asked: Sequence[str]) -> TableLoad:
    import pyarrow as pa
    from deltalake import DeltaTable

    from pipelines.maintenance.clustering import clustering_of
    from pipelines.maintenance.rebalance import TableLoad

    table = lake.state(state)
    sizes = pa.table(DeltaTable(str(table.path)).get_add_actions())["size_bytes"].to_pylist()
    return TableLoad(state, sum(sizes), clustering_of(table), tuple(asked))


def recluster_all(lake: Lake, tables: Mapping[str, Sequence[str]]) -> list[ClusteringReport]:
    """Sort the closed files of states by the columns that reads ask by, one state after the other.

    Starts Spark: a table that is worth it has 64 MB at least.

    Args:
        tables: State to columns, most important first.
    """
    if not tables:
        return []
    from pipelines import spark_session
    from pipelines.maintenance.clustering import recluster

    spark = spark_session("tridelta clustering")
    return [recluster(spark, lake, state, columns) for state, columns in tables.items()]


def clustering_line(report: ClusteringReport) -> dict[str, object]:
    """Return a report as a table's row: what the state lies by, and what that has made of its files and of a read of ten keys."""
    before, after = report.table.before, report.table.after
    return {
        "state": report.state,
        "lay by": ", ".join(report.by_before) or "-",
        "lies by": ", ".join(report.by_after) or "-",
        "files before": before.files,
        "files after": after.files,
        "seconds": round(report.seconds, 1),
    }
