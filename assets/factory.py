"""The assets and checks of a flow of the catalog. Its tables, states and channels, are one multi-asset, made slice by slice."""

import shlex
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from zlib import crc32

import dagster as dg

from assets.deployment import deployment_asset, registry_spec
from assets.events.failed_rows import quarantine_spec
from assets.events.liveness import liveness_check
from assets.events.reporting import Reporter, plain_failures
from assets.events.verdicts import check_specs
from assets.queries import query_asset
from assets.sources import source_asset
from assets.suites import check_name, suite_checks
from assets.upstream import Upstream
from assets.view import FlowView, state_key, table_key
from pipelines.errors import DefinitionError
from pipelines.execution.report import SliceReport
from pipelines.graph import nodes
from resources import LakeResource, SparkResource
from resources.dagster_internals import SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION, BaseAssetGraph, CheckError

# Dagster gives one materialization to every partition of a run, all alike, when an asset's output is there. Ours are
# reported when each slice is committed, with facts of their own, and the slice that failed must have none. An output
# that carries this key makes no event and lets what comes after it run. It is not a public name of Dagster's, which is
# held below 1.14 for that; tests/assets/test_backfill.py counts the events.
ALREADY_REPORTED = {SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION: True}
# Every flow has something to read each day; a day and a half without is worth a look even after a night's backfill.
FRESH = dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=36), warn_window=timedelta(hours=25))


# More days than anyone fills in a backfill: a century and more.
WHOLE = 50_000


def state_assets(view: FlowView) -> dg.AssetsDefinition:
    """Make the tables that a flow writes. A batch or slice is committed to all of them, so they are made together."""

    @dg.multi_asset(
        name=f"{view.name}_states",
        specs=[_spec(view, name) for name in view.writers],
        check_specs=check_specs(view),
        backfill_policy=backfill_policy(view),
        op_tags={"flow": view.name},
        pool=view.pool,
    )
    def states(context: dg.AssetExecutionContext, spark: SparkResource, lake: LakeResource) -> Iterator[Any]:
        with Reporter(context, view, lake.lake()) as reporter, plain_failures(reporter):
            failed: tuple[SliceReport, ...] = ()
            if view.partitions is None:
                lake.runtime(spark, context.log).catch_up(view.topology, progress=reporter.batch)
            else:
                failed = _without_source(context, view, lake)
                for report in failed:
                    reporter.slice(report)
                able = sorted(set(context.partition_keys) - {slice_report.slice for slice_report in failed})
                if able:
                    runtime = lake.runtime(spark, context.log)
                    failed += runtime.backfill(view.topology, able, progress=reporter.slice).failed
        if failed:
            reporter.log_checks()
            raise failure(view, failed, len(context.partition_keys))
        yield from reporter.check_results()
        for node in view.writers.values():
            yield dg.MaterializeResult(asset_key=table_key(node), metadata=ALREADY_REPORTED)

    return states


def backfill_policy(view: FlowView) -> dg.BackfillPolicy | None:
    """Return how a backfill is cut into runs: all days in one, unless the catalog says how many go in each.

    Dagster puts tables of two flows into one run where their policies are alike, and then one day that fails keeps all
    days of what comes after from being made. So a flow that reads another's slices has a policy of its own: runs of
    so many days that it makes no difference.
    """
    if view.spec.slices is None:
        return None
    if view.spec.slices.days_a_run is not None:
        return dg.BackfillPolicy.multi_run(max_partitions_per_run=view.spec.slices.days_a_run)
    if view.by_slices:
        return dg.BackfillPolicy.multi_run(max_partitions_per_run=WHOLE + crc32(view.name.encode()) % WHOLE)
    return dg.BackfillPolicy.single_run()


def _without_source(context: dg.AssetExecutionContext, view: FlowView, lake: LakeResource) -> tuple[SliceReport, ...]:
    """Return the slices that cannot be made, since their sources were not; after the runs that make those now."""
    if not view.by_slices:
        return ()
    upstream = Upstream(view, _graph(context), context.instance, lake.lake())
    upstream.wait(context.partition_keys, context)
    return upstream.reports(context.partition_keys)


def _graph(context: dg.AssetExecutionContext) -> BaseAssetGraph[Any]:
    """Return all assets of the code location; in a test's run, which has none, those of its job and beside it."""
    try:
        return context.repository_def.asset_graph
    except CheckError:
        return context.op_execution_context.job_def.asset_layer.asset_graph


def failure(view: FlowView, failed: tuple[SliceReport, ...], asked: int) -> dg.Failure:
    """Return the failure of a run whose slices failed: which ones, why, and how to get them."""
    shown = "\n".join(f"  {report.slice}: {(report.error or '').splitlines()[0]}" for report in failed)
    days = ", ".join(report.slice for report in failed)
    first, last = min(report.slice for report in failed), max(report.slice for report in failed)
    return dg.Failure(
        description=f'flow "{view.name}": {len(failed)} of {asked} slices failed; the others are committed\n{shown}\n'
        f"  Next: correct the data or the flow, then materialize these partitions again, or: "
        f"tridelta backfill {view.name} --from {shlex.quote(first)} --to {shlex.quote(last)}",
        metadata={"failed_slices": days, "committed_slices": asked - len(failed)},
    )


def _spec(view: FlowView, name: str) -> dg.AssetSpec:
    writer = view.writers[name]
    return dg.AssetSpec(
        table_key(writer),
        deps=view.sources_of(name),
        description=f"{_what(view, writer)} Fields: {', '.join(writer.fields)}.\n\n{view.description}".rstrip(),
        metadata={**view.table_metadata(name), **_written_at(writer)},
        **view.labels,
        kinds={"spark", "delta", "channel"} if isinstance(writer, nodes.ChannelNode) else {"spark", "delta"},
        partitions_def=view.partitions,
        freshness_policy=FRESH,
    )


def _written_at(writer: nodes.PersistNode) -> dict[str, Any]:
    """Return the line of code that defines the table's operation: a link in the asset's page."""
    if not Path(writer.at.file).is_file():
        return {}
    with warnings.catch_warnings():
        # Beta in Dagster 1.13; the dependency is held below 1.14.
        warnings.simplefilter("ignore", dg.BetaWarning)
        line = dg.LocalFileCodeReference(file_path=str(Path(writer.at.file).absolute()), line_number=writer.at.line)
        return {"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=[line])}


def _what(view: FlowView, writer: nodes.PersistNode) -> str:
    if isinstance(writer, nodes.ChannelNode):
        return f"Channel of the flow {view.name}: events on their way from one query to the next."
    if isinstance(writer, nodes.LatePersistNode):
        return f"Late events of the flow {view.name}: behind the watermark, as the source gave them."
    keyed = f"one row per {', '.join(writer.group)}" if writer.group else "the rows themselves"
    return f"State of the flow {view.name}: {keyed}."


FlowAsset = dg.AssetsDefinition | dg.SourceAsset | dg.AssetSpec


@dataclass(frozen=True)
class FlowAssets:
    """The assets and checks of one flow."""

    view: FlowView
    sources: tuple[dg.AssetsDefinition | dg.SourceAsset, ...]
    states: dg.AssetsDefinition
    queries: tuple[dg.AssetsDefinition, ...]
    suites: tuple[dg.AssetChecksDefinition, ...]
    deployment: dg.AssetsDefinition
    registry: dg.AssetSpec
    quarantine: dg.AssetSpec
    liveness: dg.AssetChecksDefinition
    is_deployable: bool = True
    """Whether the registry can deploy the flow: it knows flows by the catalog."""

    @property
    def own(self) -> tuple[FlowAsset, ...]:
        """Return all assets of the flow but its sources, which it may share with others."""
        deployed = (self.registry, self.deployment) if self.is_deployable else ()
        return (self.states, *self.queries, self.quarantine, *deployed)

    @property
    def checks(self) -> tuple[dg.AssetChecksDefinition, ...]:
        """Return the checks beside the assets; those of gates belong to the states."""
        return (*self.suites, self.liveness) if self.is_deployable else self.suites

    @property
    def selection(self) -> dg.AssetSelection:
        """Select what a backfill runs: states, their checks, the answers."""
        return dg.AssetSelection.assets(self.states, *self.queries)


def flow_assets(view: FlowView, *, is_deployable: bool = True) -> FlowAssets:
    """Make the assets of a flow: what arrives, its states, the answers that it keeps, its deployment; and their checks.

    Raises:
        DefinitionError: Two checks have one name.
    """
    _check_names(view)
    return FlowAssets(
        view,
        sources=tuple(source_asset(view, spout) for spout in view.arriving),
        states=state_assets(view),
        queries=tuple(query_asset(view, question) for question in view.spec.queries),
        suites=tuple(suite_checks(view, state) for state in view.suites),
        deployment=deployment_asset(view),
        registry=registry_spec(view),
        quarantine=quarantine_spec(view),
        liveness=liveness_check(view),
        is_deployable=is_deployable,
    )


def _check_names(view: FlowView) -> None:
    """See that each check has a name of its own at its table, where the name of its gate, or `suite`, begins it."""
    keys = [one.key for one in view.gate_checks] + [
        dg.AssetCheckKey(state_key(state), check_name(view, state, check))
        for state, suite in view.suites.items()
        for check in suite.checks
    ]
    for key, times in Counter(keys).items():
        if times > 1:
            raise DefinitionError(
                f'flow "{view.name}": two checks of {key.asset_key.to_user_string()} would be named "{key.name}"',
                hint="give the gate, or one of the checks, another name",
            )


def _names_of(flow: FlowAssets) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield the names of a flow's assets and of the steps of jobs, and what they are."""
    view = flow.view
    yield ("step", f"{view.name}_states"), "the step of the states"
    if view.partitions is not None:
        # Dagster wants the jobs' own names to differ from those of steps, too.
        yield ("step", f"{view.name}_slices_job"), "the job of the slices"
    for verb in ("catch_up", "check", "answer", "compact"):
        yield ("step", f"{verb}_{view.name}"), "a step of the jobs"
    # Dagster names the step of an asset, or of a check, by its key.
    for step in (f"deployments__{view.name}", f"deployments__{view.name}_alive") if flow.is_deployable else ():
        yield ("step", step), "the step of the deployment"
    for state in view.states:
        yield ("asset", state), f'the state "{state}"'
    for state in view.suites:
        yield ("step", f"{state}_suite"), f'the suite of "{state}"'
    for question in view.spec.queries:
        yield ("asset", question.name), (what := f'the query asset "{question.name}"')
        yield ("step", f"{question.name}_answer"), f"the step of {what}"


TakenNames = dict[tuple[str, str], tuple[str, str]]
"""The flow (empty: all), and what of it, that has a name, by the kind of the name (`asset`, `step`, `stream`) and the name."""


def take_names(flow: FlowAssets, taken: TakenNames) -> None:
    """Note what a flow names; nothing of one that is refused.

    Raises:
        DefinitionError: if another flow names a different source alike, or a state or an answer is of a name that is taken.
    """
    own: TakenNames = {}
    for key, what in _names_of(flow):
        if other := own.get(key) or taken.get(key):
            raise DefinitionError(
                f"{what} of flow {flow.view.name} has the name of {other[1]}" + f" of flow {other[0]}" * bool(other[0]),
                hint="give one of them another name",
            )
        own[key] = flow.view.name, what
    for spout in flow.view.arriving:
        source = spout.source.inner
        key, seen = ("stream", spout.stream), (flow.view.name, f"{source!r} of {source.schema}")
        first = own.setdefault(key, taken.get(key, seen))
        if first[1] != seen[1]:
            raise DefinitionError(
                f'the streams "{spout.stream}" of the flows {first[0]} and {seen[0]} read different sources',
                hint="give one of them another name: each source is one asset",
            )
    taken |= own


def assets_of(flows: Sequence[FlowAssets]) -> list[FlowAsset]:
    """Return the assets of all flows. Streams of one name that read the same are one asset, whichever flows they lead to.

    Raises:
        DefinitionError: if two flows name different sources alike, or states or answers are of one name.
    """
    taken: TakenNames = {}
    sources: dict[str, FlowAsset] = {}
    own: list[FlowAsset] = []
    for flow in flows:
        take_names(flow, taken)
        for spout, asset in zip(flow.view.arriving, flow.sources, strict=True):
            sources.setdefault(spout.stream, asset)
        own += flow.own
    return [*sources.values(), *own]
