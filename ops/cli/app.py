"""`tridelta`: the verbs of the engine on the flows of the catalog."""

from __future__ import annotations

import importlib
import pkgutil
from contextlib import ExitStack
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops import cli
from ops.cli import deployed, rendering
from ops.cli.last_resort import PlainGroup
from ops.cli.parts import (
    AsJson,
    ChangedWindows,
    KnownFlow,
    OnFresh,
    answer,
    bounded,
    emit,
    engine,
    errors,
    opened_lake,
    pairs,
    tell_plainly,
    verb,
)
from ops.known_flows import days_of, topology_of
from pipelines import bounds
from pipelines.catalog import DailySlices, check_states, found
from pipelines.errors import DefinitionError, TrideltaError, UnknownFlowError
from pipelines.graph.nodes import ChannelNode

if TYPE_CHECKING:
    from pipelines import Lake
    from pipelines.trident import TridentTopology

app = typer.Typer(
    name="tridelta",
    cls=PlainGroup,
    help="Trident topologies on Spark, committed to Delta. Flows and states are those of the catalog and the lake.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def add_commands(to: typer.Typer) -> None:
    """Add the commands of the modules beside this one: each module with a Typer `app` has some."""
    for module in pkgutil.iter_modules(cli.__path__, f"{cli.__name__}."):
        # By its name: run by `python -m`, this module is `__main__`, and would be imported once more.
        if module.name != "ops.cli.app":
            commands = getattr(importlib.import_module(module.name), "app", None)
            if isinstance(commands, typer.Typer):
                to.add_typer(commands)


@verb(app, "list")
def list_flows(as_json: AsJson = False) -> None:
    """List the flows of the catalog, their states and the channels between their queries, and what is deployed.

    Exit code 1 if a flow, or a module of them, cannot be loaded, or a table cannot be read: the others are listed.
    """
    lake, running = opened_lake(), deployed.running()
    listed: list[dict[str, Any]] = []
    specs, faults = found()
    problems: list[TrideltaError] = [*faults]
    for spec in specs:
        try:
            topology = spec.topology()
        except TrideltaError as error:
            problems.append(error)
            listed.append(_without_tables(spec.name, spec.description, running.pop(spec.name, None)))
            continue
        txids, faults_of = _last_txids(lake, topology)
        problems += faults_of.values()
        channels = [node.state.name for node in topology.persists if isinstance(node, ChannelNode)]
        listed.append(
            {
                "flow": spec.name,
                "description": spec.description,
                "states": {name: txid for name, txid in txids.items() if name not in channels},
                "channels": {name: txids[name] for name in channels},
                "queries": list(topology.queries),
                "deployed": running.pop(spec.name, None),
                "unread": {name: str(fault) for name, fault in faults_of.items()},
            }
        )
    # Flows that were deployed from files, or that the catalog has lost.
    listed += [_without_tables(name, "", status) for name, status in running.items()]
    answer(as_json, listed, lambda: rendering.flows(listed))
    for problem in problems:
        tell_plainly(problem)
    if problems:
        raise typer.Exit(1)


def _without_tables(name: str, description: str, status: dict[str, Any] | None) -> dict[str, Any]:
    empty: dict[str, Any] = {"states": {}, "channels": {}, "queries": []}
    return {"flow": name, "description": description, **empty, "deployed": status, "unread": {}}


def _last_txids(lake: Lake, topology: TridentTopology) -> tuple[dict[str, int | None], dict[str, TrideltaError]]:
    """Return the last batch of each table of a flow, and by table why it cannot be read."""
    txids: dict[str, int | None] = {}
    unread: dict[str, TrideltaError] = {}
    for node in topology.persists:
        name = node.state.name
        try:
            table = lake.written_by(node)
            txids[name] = table.last_txid() if table.exists() else None
        except TrideltaError as error:
            txids[name], unread[name] = None, error
    return txids, unread


@verb(app)
def plan(
    name: KnownFlow,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print the plan as a Mermaid flowchart instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what would change against what is deployed. Needs no Spark; exit code 1 if the flow would be refused."""
    from pipelines.execution.checkpoint.changeover import Changeover
    from pipelines.planner.changes import plan_changes

    topology = topology_of(name)
    check_states(topology)
    lake = opened_lake()
    changes = plan_changes(topology, lake, Changeover(lake, topology).refusals())
    if mermaid:
        print(changes.mermaid, end="")
    else:
        answer(as_json, changes.to_json(), lambda: rendering.plan(changes))
    if changes.refused:
        raise typer.Exit(1)


@verb(app)
def run(
    name: KnownFlow,
    max_batches: Annotated[
        int | None, typer.Option(parser=bounded(bounds.ROWS), help="Stop after this number of batches.")
    ] = None,
    on_fresh_checkpoint: OnFresh = "refuse",
    changed_windows: ChangedWindows = "refuse",
    as_json: AsJson = False,
) -> None:
    """Run what the sources hold now, then stop."""
    topology = topology_of(name)
    with engine(as_json) as runtime, rendering.bar(f"{topology.name}: batches", None, as_json) as advance:
        report = runtime.catch_up(
            topology,
            on_fresh_checkpoint=on_fresh_checkpoint,
            changed_windows=changed_windows,
            max_batches=max_batches,
            progress=lambda batch: advance(f"batch {batch.txid}, {batch.received:,} rows in {batch.seconds:.1f} s"),
        )
    answer(as_json, report.to_json(), lambda: rendering.run(report))


@verb(app)
def backfill(
    name: KnownFlow,
    first: Annotated[str | None, typer.Option("--from", help="The first slice (day).")] = None,
    last: Annotated[str | None, typer.Option("--to", help="The last slice (day), included.")] = None,
    single: Annotated[
        list[str] | None, typer.Option("--slice", metavar="VALUE", help="A slice, as text; repeat it for each.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Recompute slices: days from --from to --to, or each --slice; each is replaced in one commit per state."""
    topology = topology_of(name)
    slices = _slices(name, topology, (first, last), single or [])
    name = topology.name
    with engine(as_json) as runtime, rendering.bar(f"{name}: slices", len(slices), as_json) as advance:
        report = runtime.backfill(
            topology,
            slices,
            progress=lambda made: advance(f"{made.slice}, {made.received:,} rows in {made.seconds:.1f} s"),
        )
    answer(as_json, report.to_json(), lambda: rendering.backfill(report))
    if report.failed:
        days = ", ".join(made.slice for made in report.failed)
        raise TrideltaError(
            f'flow "{name}": {len(report.failed)} of {len(slices)} slices failed: {days}; the others are committed',
            hint="correct the data or the flow and run the command again for these days",
        )


def _slices(name: str, topology: TridentTopology, days: tuple[str | None, str | None], single: list[str]) -> list[str]:
    """Return the slices that are asked for. Of a flow that the catalog gives no days, any day or text may be one."""
    if all(spout.slice_by is None for spout in topology.spouts):
        problem = f'flow "{topology.name}" is not sliced, so no part of it can be replaced'
        raise DefinitionError(problem, hint=f"use: tridelta run {name}")
    first, last = days
    if bool(single) == any(days) or (first is None) != (last is None):
        problem = "name slices by --from and --to, the first and the last day, or one by one by --slice"
        raise DefinitionError(
            problem, hint="for instance --from 2026-01-01 --to 2026-01-31, or --slice EMEA --slice APAC"
        )
    known = days_of(name)
    if first is not None and last is not None:
        return (known or DailySlices(date(1000, 1, 1), date.max)).between(first, last)
    return [day for text in single for day in known.between(text, text)] if known else single


@verb(app)
def query(
    name: KnownFlow,
    question: Annotated[str, typer.Argument(metavar="QUERY", help="A query stream of the flow.")],
    args: Annotated[list[str] | None, typer.Argument(help="Its arguments, in order.")] = None,
    txid: Annotated[
        int | None, typer.Option(parser=bounded(bounds.TXID), help="Ask the states as of this batch.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Ask a query stream of a flow. Spark starts only if the query has SQL text, functions of Columns or gates."""
    from pipelines.execution.runners.queries import QueryRunner

    topology = topology_of(name)
    with ExitStack() as stack:
        runner = QueryRunner(
            opened_lake(), topology, question, lambda: stack.enter_context(engine(as_json)).spark, txid
        )
        rows = runner.ask([runner.arguments(args or [])])
    answer(as_json, rows, lambda: rendering.rows(f"{topology.name}.{question}({', '.join(args or ())})", rows))


@verb(app)
def state(
    name: Annotated[str, typer.Argument(metavar="STATE", help="A state of the lake, or a channel.")],
    key: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="One field of the key; repeat it for each field.")
    ] = None,
    txid: Annotated[int | None, typer.Option(parser=bounded(bounds.TXID), help="Read it as of this batch.")] = None,
    limit: Annotated[int, typer.Option(parser=bounded(bounds.ROWS), help="Show at most this number of rows.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show a state: one key, or all of it. Needs no Spark."""
    from pipelines.state.lookup import look_up, named_table

    table = named_table(opened_lake(), name)
    # Once: a batch that comes meanwhile makes another one.
    version = table.version_of(txid)
    rows = look_up(table, pairs(key or []), limit + 1, version=version)
    shown = rows[:limit]
    title = f"{name}, version {version}" + (f", as of txid {txid}" if txid is not None else "")
    answer(as_json, shown, lambda: rendering.rows(title, shown))
    if len(rows) > limit:
        errors.print(f"There are more than these {limit:,} rows: --limit N shows more.", style="dim")


@verb(app)
def history(
    name: Annotated[str, typer.Argument(metavar="STATE", help="A state of the lake, or a channel.")],
    limit: Annotated[
        int, typer.Option(parser=bounded(bounds.ROWS), help="Show this number of commits, the last ones.")
    ] = 20,
    as_json: AsJson = False,
) -> None:
    """Show a state's commits. Needs no Spark."""
    names = ("version", "kind", "txid", "attempt", "epoch", "slice", "rows", "time", "flow")
    from pipelines.state.lookup import named_table

    commits = named_table(opened_lake(), name).history()[-limit:]
    listed = [{field: getattr(commit, field) for field in names} for commit in commits]
    if as_json:
        emit(listed)
    else:
        for row in listed:
            row["time"] = f"{row['time']:%Y-%m-%d %H:%M:%S}"
            del row["flow"]
        rendering.rows(f"{name}: the last {len(listed)} commits (times in UTC)", listed)


@verb(app)
def verify(name: KnownFlow, as_json: AsJson = False) -> None:
    """Prove that the tables of a flow still hold what its batches committed. Exit code 1 if one does not."""
    from pipelines.execution.verify import verify as verify_flow

    topology = topology_of(name)
    with engine(as_json) as runtime, rendering.waiting("Reading the commits", as_json):
        report = verify_flow(runtime.spark, runtime.lake, topology)
    answer(as_json, report.to_json(), lambda: rendering.verified(report))
    if report.differing or report.faults:
        raise typer.Exit(1)


@verb(app)
def skip(
    name: KnownFlow,
    txid: Annotated[int, typer.Argument(parser=bounded(bounds.TXID), help="The poison batch.")],
    stream: Annotated[
        str | None, typer.Option(help="Its stream, where several streams of the flow are at that txid.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Skip a batch that stopped the flow; its rows stay in quarantine. Needs no Spark."""
    from pipelines.execution.batch.poison import skip as leave_out

    topology = topology_of(name)
    file, name = (name if name != topology.name else None), topology.name
    group = leave_out(opened_lake(), topology, txid, stream=stream)
    if as_json:
        emit({"flow": name, "stream": group, "skipped": txid})
    else:
        rendering.say(f"Batch {txid} of {group} in {name} is left out. {_goes_on(name, file)}")
        rendering.say(
            "Once the cause is corrected, see which of its rows can be replayed: "
            f"tridelta replay-quarantine {file or name} --dry-run"
        )


def _goes_on(name: str, file: str | None) -> str:
    """Return how a flow goes on behind a batch that was left out; one of a file alone has nothing but that."""
    known = deployed.running().get(name)
    if known is None:
        return f"Go on with: tridelta {f'submit {file}' if file else f'run {name}'}"
    if known["status"] == "INACTIVE":
        return f"It is deployed and inactive; go on with: tridelta activate {name}"
    if known["status"] == "KILLED":
        return f"It is being removed; go on afterwards with: tridelta submit {file or name}"
    return "It is deployed and goes on by itself."


@verb(app)
def adopt(name: KnownFlow, as_json: AsJson = False) -> None:
    """Continue with a checkpoint and tables that do not belong together: rows may be missing or doubled."""
    from pipelines.execution.checkpoint.belonging import adopt as take_over

    topology = topology_of(name)
    name = topology.name
    taken = take_over(opened_lake(), topology)
    if as_json:
        emit({"flow": name, "adopted": {query: error.problem for query, error in taken.items()}})
    elif not taken:
        rendering.say(f"Nothing to do: the checkpoints of {name} and its tables belong together.")
    for query, error in taken.items() if not as_json else ():
        rendering.say(f"Query {query} goes on as it is, with {error.state}: {error.problem}")


@verb(app)
def compact(
    name: KnownFlow,
    retention_hours: Annotated[
        float | None,
        typer.Option(
            parser=bounded(bounds.HOURS),
            help="How far back states stay readable; default: TRIDELTA_KEEP_STATE_HOURS, else a week.",
        ),
    ] = None,
    channel_retention_hours: Annotated[
        float | None,
        typer.Option(
            parser=bounded(bounds.HOURS),
            help="How long channels keep rows that all readers have; default: TRIDELTA_KEEP_CHANNEL_HOURS, else the same.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fold closed generations, join small files, vacuum. Of a flow that is gone the lake's tables alone are needed."""
    flow = _flow_or_its_tables(name)
    from pipelines.maintenance import compaction

    keep = compaction.kept_here(retention_hours, channel_retention_hours)
    with engine(as_json) as runtime:
        report = compaction.compact(runtime.spark, runtime.lake, flow, keep)
    answer(as_json, rendering.flat_tables(report), lambda: rendering.compacted(report))


def _flow_or_its_tables(name: str) -> TridentTopology | str:
    """Return the flow that is named, or the name where nobody knows it any more and the lake has tables of it."""
    try:
        return topology_of(name)
    except UnknownFlowError:
        from pipelines.maintenance.housekeeping import flows_in

        if name not in flows_in(opened_lake()):
            raise
        errors.print(f"Nobody knows the flow {name} here; its tables are compacted, and its channels keep their rows.")
        return name


add_commands(app)


def main() -> None:
    """Run the console script."""
    app()


if __name__ == "__main__":
    main()
