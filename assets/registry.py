"""The registry's version of a flow as an external asset: by it a deployment shows as out of date.

Dagster compares the version of `registry/FLOW`, which the sensor tells, with the version that the last materialization of
`deployments/FLOW` says it has made. A flow that was updated, rolled back or removed from the command line has another one: the
deployment is "unsynced" until somebody materializes it again. What arrives at the flow's sources changes nothing about that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg

from assets.view import FlowView
from resources.dagster_internals import (
    CODE_VERSION_TAG,
    DATA_VERSION_TAG,
    INPUT_DATA_VERSION_TAG_PREFIX,
    INPUT_EVENT_POINTER_TAG_PREFIX,
    NULL_EVENT_POINTER,
)

if TYPE_CHECKING:
    from pipelines.nimbus.status import FlowStatus

NOTHING = "none"
"""The version of a flow that is not deployed."""


def registry_key(flow: str) -> dg.AssetKey:
    """Return the asset of what the registry holds of a flow."""
    return dg.AssetKey(["registry", flow])


def registry_spec(view: FlowView) -> dg.AssetSpec:
    """Return the spec of that asset: nothing makes it, the sensor reports its versions."""
    return dg.AssetSpec(
        registry_key(view.name),
        deps=list(dict.fromkeys(map(view.key_of, view.spouts))),
        description=f"The version of the flow {view.name} in the registry, whoever put it there.",
        **view.labels,
        kinds={"nimbus"},
    )


def version_of(seen: FlowStatus | None) -> str:
    """Return the version of a deployed flow: submission and number."""
    return NOTHING if seen is None else f"{seen.id}/{seen.version}"


def registered(flow: str, seen: FlowStatus | None) -> dg.AssetMaterialization:
    """Report what the registry holds now. Dagster takes the versions of an asset of specs off materializations."""
    metadata: dict[str, Any] = {"deployed": False} if seen is None else {"version": seen.version, "status": seen.status}
    return dg.AssetMaterialization(registry_key(flow), metadata=metadata, tags={DATA_VERSION_TAG: version_of(seen)})


def made_from(seen: FlowStatus) -> Mapping[str, str]:
    """Return tags for a materialization of a deployment: the registry's version is the one that it has made itself.

    Dagster by itself would say the version that was there before.
    """
    key = registry_key(seen.name).to_user_string()
    return {
        f"{INPUT_DATA_VERSION_TAG_PREFIX}/{key}": version_of(seen),
        f"{INPUT_EVENT_POINTER_TAG_PREFIX}/{key}": NULL_EVENT_POINTER,
    }


def told_by_a_job(seen: FlowStatus, code: str) -> Mapping[str, str]:
    """Return tags of a materialization that a job logs: with what Dagster adds where the asset itself is run."""
    return {DATA_VERSION_TAG: version_of(seen), CODE_VERSION_TAG: code, **made_from(seen)}
