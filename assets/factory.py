"""From a flow of the catalog to its assets and checks."""

from __future__ import annotations

from dataclasses import dataclass

import dagster as dg

from assets.queries import query_asset
from assets.sources import source_asset
from assets.states import state_assets
from assets.suites import suite_checks
from assets.view import FlowView


@dataclass(frozen=True)
class FlowAssets:
    """The assets and checks of one flow."""

    view: FlowView
    sources: tuple[dg.AssetsDefinition | dg.SourceAsset, ...]
    states: dg.AssetsDefinition
    queries: tuple[dg.AssetsDefinition, ...]
    suites: tuple[dg.AssetChecksDefinition, ...]

    @property
    def assets(self) -> list[dg.AssetsDefinition | dg.SourceAsset]:
        return [*self.sources, self.states, *self.queries]

    @property
    def selection(self) -> dg.AssetSelection:
        """What a backfill runs: states, their checks, the answers."""
        return dg.AssetSelection.assets(self.states, *self.queries)


def flow_assets(view: FlowView) -> FlowAssets:
    """The assets of a flow: what arrives, its states, the answers that it keeps; and their checks."""
    return FlowAssets(
        view,
        sources=tuple(source_asset(view, spout) for spout in view.spouts),
        states=state_assets(view),
        queries=tuple(query_asset(view, one) for one in view.spec.queries),
        suites=tuple(suite_checks(view, state) for state in view.suites),
    )
