"""The assets and checks of a flow of the catalog."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import dagster as dg

from assets.deployment import deployment_asset
from assets.events.failed_rows import quarantine_spec
from assets.events.liveness import liveness_check
from assets.queries import query_asset
from assets.registry import registry_spec
from assets.sources import source_asset
from assets.states import state_assets
from assets.suites import suite_checks
from assets.view import FlowView
from pipelines.errors import DefinitionError

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
    """Make the assets of a flow: what arrives, its states, the answers that it keeps, its deployment; and their checks."""
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


def assets_of(flows: Sequence[FlowAssets]) -> list[FlowAsset]:
    """Return the assets of all flows. Streams of one name that read the same are one asset, whichever flows they lead to.

    Raises:
        DefinitionError: if two flows name different sources alike.
    """
    read: dict[str, tuple[str, str]] = {}
    assets: list[FlowAsset] = []
    for flow in flows:
        for spout, asset in zip(flow.view.arriving, flow.sources, strict=True):
            source = spout.source.inner
            seen = (flow.view.name, f"{source!r} of {source.schema}")
            first = read.setdefault(spout.stream, seen)
            if first is seen:
                assets.append(asset)
            elif first[1] != seen[1]:
                raise DefinitionError(
                    f'the streams "{spout.stream}" of the flows {first[0]} and {seen[0]} read different sources',
                    hint="give one of them another name: each source is one asset",
                )
        assets += flow.own
    return assets
