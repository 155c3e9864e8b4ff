"""The jobs of an operator: replay quarantine, skip a poison batch, query. Impossible requests are refused before Spark starts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import dagster as dg
from pydantic import Field, create_model

from assets.events import markdown
from assets.events.reporting import plain_failures
from assets.view import FlowView, table_key
from ops.cli import replaying
from ops.jobs.forms import form, one_of, one_step_job
from pipelines import bounds
from pipelines.graph import nodes
from resources import LakeResource, SparkResource

if TYPE_CHECKING:
    from pipelines.execution.replays.report import ReplayReport

# A replay goes through the driver, half a million rows at a time; one that is still there after an hour hangs.
MAX_RUNTIME_SECONDS = 3600
MOST_ROWS = 1000


@dataclass(frozen=True)
class Asked:
    """A run of one of the jobs: the catalog's flows by name, the filled form, and what the run works with."""

    views: Mapping[str, FlowView]
    config: Any
    context: dg.OpExecutionContext
    spark: SparkResource
    lake: LakeResource


Act = Callable[[Asked], dict[str, Any]]

_TXIDS = Field(
    "",
    pattern=r"^(\d+(-\d+)?|backfills)?$",
    description="Only what these batches rejected: 40, or 40-57, or backfills. Empty: all.",
)
_AS_OF: Any = (
    int | None,
    bounds.TXID.field(None, description="Read the states as of this batch; empty: as they are now."),
)
_AT_MOST = (int, Field(50, ge=1, le=MOST_ROWS, description=f"The most rows of the answer, up to {MOST_ROWS}."))
_REPLAYED: dict[str, Any] = {
    "spouts": (
        list[str],
        Field([], description="Only what was rejected at the source of these streams, or in a poison batch of them."),
    ),
    "reasons": (
        list[str],
        Field(
            [],
            description="Only what these checks rejected; also malformed, other_fields, far_time, not_read, no_slice, bad_slice, "
            "no_time, poison, waiting, file_gone. Empty: all.",
        ),
    ),
    "txids": (str, _TXIDS),
    "dry_run": (
        bool,
        Field(False, description="Say what there is and what could be replayed, and change nothing."),
    ),
}
_SKIPPED: dict[str, Any] = {
    "txid": (
        int,
        bounds.TXID.field(..., description="The poison batch: the error that stopped the flow names its txid."),
    ),
    "stream": (str | None, Field(None, description="Its stream, where several streams of the flow are at that txid.")),
}


def operator_jobs(views: Sequence[FlowView], prefix: str = "") -> list[dg.JobDefinition]:
    """Make the jobs, each with a form that offers the flows, gates, queries and states of the catalog.

    Args:
        prefix: Begins the names of jobs and ops.
    """
    by_name = {view.name: view for view in views}
    flow = (one_of(f"{prefix}OperatedFlow", by_name), Field(..., description="The flow."))
    gate: Any = one_of(f"{prefix}Gate", _gates(views))
    return [
        _job(
            prefix + "replay_quarantine",
            "Replay rejected rows through a flow after the flow, its gate or its schema was corrected. What passes now "
            "lands in the states once, however often this runs; what does not stays in quarantine with its new reason.",
            _replay,
            by_name,
            flow=flow,
            gates=(list[gate], Field([], description="Only what these gates rejected. Neither gates nor spouts: all.")),
            **_REPLAYED,
        ),
        _job(
            prefix + "skip_batch",
            "Skip a poison batch, so that its flow continues behind it. Its rows stay in quarantine, from where "
            "replay_quarantine_job brings them back when the cause is fixed.",
            _skip,
            by_name,
            flow=flow,
            **_SKIPPED,
        ),
        _query_job(views, prefix),
    ]


def _query_job(views: Sequence[FlowView], prefix: str) -> dg.JobDefinition:
    return _job(
        prefix + "query",
        "Ask a query stream of a flow, or read a state; the answer is a table in the metadata of the run's step.",
        _query,
        {view.name: view for view in views},
        # The launchpad would open with both forms of a question, of which there may be one.
        example=_example(views),
        ask=(
            _questions(views, prefix),
            Field(
                ...,
                discriminator="kind",
                description="One of two: query: {name: FLOW.QUERY, args: []}, or state: {name: STATE, key: {}}.",
            ),
        ),
        rows=_AT_MOST,
    )


def _job(
    verb: str,
    what: str,
    act: Act,
    views: Mapping[str, FlowView],
    example: Mapping[str, Any] | None = None,
    **fields: Any,
) -> dg.JobDefinition:
    config: Any = form(verb, what, **fields)

    @dg.op(name=f"{verb}_op", description=what, out=dg.Out(dg.Nothing))
    def step(context: dg.OpExecutionContext, config: config, spark: SparkResource, lake: LakeResource) -> None:
        with plain_failures():
            context.add_output_metadata(act(Asked(views, config, context, spark, lake)))

    return one_step_job(verb, what, step, MAX_RUNTIME_SECONDS, example)


# --- forms ----------------------------------------------------------------------------------------------------------


def _gates(views: Sequence[FlowView]) -> list[str]:
    names = [node.gate.name for view in views for node in view.topology.graph if isinstance(node, nodes.GateNode)]
    return sorted(set(names))


def _questions(views: Sequence[FlowView], prefix: str) -> Any:
    """Return the two forms of a question: `{query: {...}}` or `{state: {...}}`, never both."""
    queries = [f"{view.name}.{query}" for view in views for query in view.topology.queries]
    tables = [name for view in views for name in view.writers]
    query_fields: dict[str, Any] = {
        "kind": (Literal["query"], "query"),
        "name": (one_of(f"{prefix}Query", queries), Field(..., description="The query, as FLOW.QUERY.")),
        "args": (list[str], Field([], description="Its arguments, in order, as text.")),
        "txid": _AS_OF,
    }
    state_fields: dict[str, Any] = {
        "kind": (Literal["state"], "state"),
        "name": (one_of(f"{prefix}State", tables), Field(..., description="The state, or the channel.")),
        "key": (dict[str, str], Field({}, description="A key, e.g. {carrier: AA}; empty: all rows, from the first.")),
        "txid": _AS_OF,
    }
    query: Any = create_model(f"{prefix}AskQuery", __base__=dg.Config, **query_fields)
    state: Any = create_model(f"{prefix}ReadState", __base__=dg.Config, **state_fields)
    return query | state


def _example(views: Sequence[FlowView]) -> dict[str, Any] | None:
    """Return a question that can be launched as it is: the catalog's first state, its first rows. None without flows."""
    first = next((name for view in views for name in view.writers), None)
    return None if first is None else {"ask": {"state": {"name": first, "key": {}}}, "rows": 50}


# --- what they do ---------------------------------------------------------------------------------------------------


def _replay(asked: Asked) -> dict[str, Any]:
    from pipelines.execution.replays.runner import look, planned, unfinished

    config, context = asked.config, asked.context
    view, opened = asked.views[config.flow.value], asked.lake.lake()
    gates = [gate.value for gate in config.gates]
    selection = replaying.selected(gates, config.spouts, config.reasons, config.txids)
    if config.dry_run:
        return _logged(context, look(opened, view.topology, selection))
    report = planned(opened, view.topology, selection)
    if report.lots or unfinished(opened, view.topology):
        from pipelines import Runtime

        runtime = Runtime(asked.spark.session(), opened)
        report = runtime.replay_quarantine(
            view.topology,
            selection,
            progress=lambda lot: context.log.info(f"{lot.stage}: {lot.selected:,} rows, {lot.landed:,} landed"),
        )
        _observe(context, view, report)
    return _logged(context, report)


def _logged(context: dg.OpExecutionContext, report: "ReplayReport") -> dict[str, Any]:
    rows_shown = replaying.lines(report)
    table = (
        markdown.table(list(rows_shown[0]), rows_shown) if rows_shown else "nothing that was asked for is in quarantine"
    )
    context.log.info(table)
    for lot in report.lots:
        for why, rows in lot.left.items():
            context.log.warning(f"{rows:,} rows rejected by {lot.stage} are left: {why}\n  Next: {lot.hint}")
    counts = {"rows": report.selected, "landed": report.landed, "rejected again": report.refused, "left": report.left}
    return {"replay": dg.MetadataValue.md(table), **({} if report.dry_run else counts)}


def _observe(context: dg.OpExecutionContext, view: FlowView, report: "ReplayReport") -> None:
    """Log what the states got, at their assets."""
    for lot in report.lots:
        for commit in lot.commits:
            context.log_event(
                dg.AssetObservation(
                    table_key(view.writers[commit.state]),
                    description=f"replay {lot.number}: {lot.landed:,} quarantined rows have landed",
                    metadata={"delta_version": commit.version, "rows": commit.rows, "replay": lot.number or 0},
                )
            )


def _skip(asked: Asked) -> dict[str, Any]:
    from pipelines.execution.batch.poison import skip

    config, view = asked.config, asked.views[asked.config.flow.value]
    group = skip(asked.lake.lake(), view.topology, config.txid, stream=config.stream)
    asked.context.log.info(
        f"batch {config.txid} of {group} in {view.name} is left out; the flow goes on behind it with its next run"
    )
    return {"skipped": config.txid, "its rows": "in quarantine; replay_quarantine_job brings them back"}


def _query(asked: Asked) -> dict[str, Any]:
    from pipelines.state.lookup import look_up, named_table

    config, question = asked.config, asked.config.ask
    name = question.name.value
    if question.kind == "state":
        rows = look_up(named_table(asked.lake.lake(), name), question.key, config.rows + 1, question.txid)
    else:
        rows = _answer(asked, *name.split("."))
    shown = rows[: config.rows]
    table = markdown.table(list(shown[0]), shown) if shown else "no rows"
    asked.context.log.info(f"{name}\n{table}")
    more = len(rows) > len(shown)
    return {
        "answer": dg.MetadataValue.md(table),
        "rows": len(shown),
        "cut": f"at {config.rows} rows; there are more" if more else "not cut",
    }


def _answer(asked: Asked, flow: str, query: str) -> list[dict[str, Any]]:
    """Answer without Spark where the query needs none; else by a worker that is up, or a Spark of the run's own."""
    from pipelines.execution.runners.queries import QueryRunner

    opened, topology, question = asked.lake.lake(), asked.views[flow].topology, asked.config.ask
    runner = QueryRunner(opened, topology, query, asked.spark.session, question.txid)
    arguments = runner.arguments(question.args)
    for node in topology.graph.descendants(topology.queries[query].id):
        static = isinstance(node, nodes.StateQueryNode) and isinstance(
            topology.graph[node.state_node] if node.state_node is not None else None, nodes.StaticStateNode
        )
        if isinstance(node, nodes.StateQueryNode) and not static:
            opened.state(node.state)
    if not runner.needs_spark:
        return runner.ask([arguments])
    runtime = asked.lake.runtime(asked.spark, asked.context.log)
    return runtime.query(topology, query, [arguments], txid=question.txid)
