"""The job of a flow's slices: what a backfill and the nightly schedule run."""

from __future__ import annotations

import dagster as dg

from assets.factory import FlowAssets
from resources.dagster_internals import UnresolvedAssetJobDefinition

# A year of daily slices takes less than half an hour on two cores; a run of this length hangs.
MAX_RUNTIME_SECONDS = 6 * 3600


def slices_job(flow: FlowAssets) -> UnresolvedAssetJobDefinition:
    """Make a flow's states for the chosen days, their checks, and the answers."""
    return dg.define_asset_job(
        f"{flow.view.name}_slices_job",
        selection=flow.selection,
        description=f"Make days of {flow.view.name} again: each is replaced in a commit of its own.",
        tags={"dagster/max_runtime": str(MAX_RUNTIME_SECONDS)},
    )
