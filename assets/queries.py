"""Stored answers to questions about a flow's states, each a small table."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg

from assets.events import markdown, table_metadata
from assets.events.reporting import plain_failures
from assets.view import FlowView, state_key
from pipelines.catalog import QueryAsset, Ranking
from resources import LakeResource, SparkResource

if TYPE_CHECKING:
    from pipelines import Lake


@dataclass(frozen=True)
class StoredAnswer:
    """The rows of an answer, and the Delta version of each state that it was read from.

    Attributes:
        exact: Whether these are the versions; else a flow has committed meanwhile, and it may be a later one.
    """

    rows: list[dict[str, Any]]
    versions: dict[str, int]
    exact: bool = True

    @property
    def columns(self) -> list[str]:
        return list(self.rows[0]) if self.rows else []


def ranked(rows: Sequence[dict[str, Any]], ranking: Ranking | None) -> list[dict[str, Any]]:
    """Sort rows by the ranking and cut them to its number; rows without the value, or with NaN, come last."""
    from pipelines.state.far_times import rank

    if ranking is None:
        return list(rows)
    known: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for row in rows:
        value = row.get(ranking.by)
        (others if value is None or value != value else known).append(row)
    known.sort(key=lambda row: rank(row[ranking.by]), reverse=not ranking.ascending)
    return (known + others)[: ranking.rows]


def ask(view: FlowView, question: QueryAsset, lake: LakeResource, spark: SparkResource) -> StoredAnswer:
    """Ask the question. delta-rs reads a state alone; a query stream runs on Spark."""
    from pipelines.state.far_times import shown_rows

    opened: Lake = lake.lake()
    versions = {state: opened.state(state).version() for state in question.reads}
    if question.query is None:
        ((state, version),) = versions.items()
        rows = shown_rows(opened.state(state).scan(version=version))
        return StoredAnswer(ranked(rows, question.ranking), versions)
    rows = lake.runtime(spark).query(view.topology, question.query, list(question.args))
    exact = all(opened.state(state).version() == version for state, version in versions.items())
    return StoredAnswer(ranked(rows, question.ranking), versions, exact)


def answer_metadata(view: FlowView, question: QueryAsset, answer: StoredAnswer) -> dict[str, Any]:
    """Return the answer as Dagster shows it."""
    lineage = (
        view.plan.query_lineage[question.query]
        if question.query
        else {column: ((question.reads[0], column),) for column in answer.columns}
    )
    version_of = "delta_version" if answer.exact else "delta_version_at_least"
    return {
        "answer": dg.MetadataValue.md(markdown.table(answer.columns, answer.rows)),
        "dagster/row_count": len(answer.rows),
        "dagster/column_lineage": table_metadata.column_lineage(lineage, view.keys),
        "lineage": dg.MetadataValue.md(table_metadata.lineage_table(lineage)),
        **{f"{version_of}_{state}": version for state, version in answer.versions.items()},
    }


def query_asset(view: FlowView, question: QueryAsset) -> dg.AssetsDefinition:
    """Make an asset of a question; its answer is the metadata of the materialization."""

    spec = dg.AssetSpec(
        question.name,
        deps=[state_key(state) for state in question.reads],
        description=question.description,
        **view.labels,
        kinds={"spark", "delta"} if question.query else {"delta"},
    )

    # The step of a plain asset has its name; that may be the name of another step (docs/adr/0083).
    @dg.multi_asset(name=f"{question.name}_answer", specs=[spec])
    def answer(context: dg.AssetExecutionContext, spark: SparkResource, lake: LakeResource) -> dg.MaterializeResult:
        with plain_failures():
            reply = ask(view, question, lake, spark)
        return dg.MaterializeResult(metadata=answer_metadata(view, question, reply))

    return answer
