"""The tables of a deployed flow as their readers find them, and their clustering where it is not what reads ask for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipelines.maintenance.clustering import ClusteringReport
    from pipelines.maintenance.rebalance import TableLoad
    from pipelines.nimbus.registry.records import Flow
    from pipelines.state.lake import Lake


def table_loads(lake: Lake, flow: Flow, states: Iterable[str]) -> tuple[TableLoad, ...]:
    """The tables whose readers ask by some columns (setting `clustering`); those that are not made yet are left out.

    Args:
        lake: Where they are.
        flow: The deployed flow.
        states: Which of its states.

    Raises:
        SubmitError: The setting is not possible.
    """
    from pipelines.nimbus.asked_columns import asked_columns

    asked = asked_columns(flow.name, flow.settings)
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
        lake: Where they are.
        tables: State to columns, most important first.

    Raises:
        FieldError: A state has no such column.
        LockedError: A backfill or a compaction holds the flow for too long.
    """
    if not tables:
        return []
    from pipelines import spark_session
    from pipelines.maintenance.clustering import recluster

    spark = spark_session("tridelta clustering")
    return [recluster(spark, lake, state, columns) for state, columns in tables.items()]


def clustering_line(report: ClusteringReport) -> dict[str, object]:
    """A report as a table's row: what the state lies by, and what that has made of its files and of a read of ten keys."""
    before, after = report.table.before, report.table.after
    return {
        "state": report.state,
        "lay by": ", ".join(report.by_before) or "-",
        "lies by": ", ".join(report.by_after) or "-",
        "files before": before.files,
        "files after": after.files,
        "seconds": round(report.seconds, 1),
    }
