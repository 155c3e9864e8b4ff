"""The flow that somebody names: one of the catalog, a YAML file, or one that was deployed from such a file."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.catalog import flow
from pipelines.errors import DefinitionError, UnknownFlowError

if TYPE_CHECKING:
    from pipelines.catalog import DailySlices
    from pipelines.nimbus.registry.records import DeployedFlow
    from pipelines.trident import TridentTopology


def topology_of(named: str) -> TridentTopology:
    """Return the flow of this name, or of this YAML file.

    A deployed file need not be there any more: its text is in the registry. The catalog comes first, as when a flow is submitted.
    """
    if named.endswith((".yaml", ".yml")):
        from pipelines.nimbus.deployed import from_file

        return from_file(Path(named))[0]
    try:
        spec = flow(named)
    except (DefinitionError, UnknownFlowError):
        from pipelines.nimbus.settings import registry_url

        found = deployed_files(registry_url()).get(named)
        if found is None:
            raise
        return as_deployed(found)
    return spec.topology()


def days_of(named: str) -> DailySlices | None:
    """Return the days that the catalog gives a flow's slices; None for one from a file, or without days."""
    if named.endswith((".yaml", ".yml")):
        return None
    try:
        return flow(named).slices
    except (DefinitionError, UnknownFlowError):
        return None


def deployed_files(registry: str) -> dict[str, DeployedFlow]:
    """Return the deployed flows that come from a file, by name, as `deployed_flows`."""
    return {name: one for name, one in deployed_flows(registry).items() if is_file(one)}


def is_file(deployed: DeployedFlow) -> bool:
    """Return whether a flow was deployed from a file."""
    from pipelines.nimbus.deployed import YAML

    return deployed.version.content.definition.get("kind") == YAML


def deployed_flows(registry: str) -> dict[str, DeployedFlow]:
    """Return the deployed flows by name; none where the registry was never made.

    Args:
        registry: The URL of its database.
    """
    from pipelines.nimbus.settings import registry_exists

    if not registry_exists(registry):
        return {}
    from pipelines.nimbus.errors import NoTablesError
    from pipelines.nimbus.registry.registry import Registry
    from pipelines.nimbus.registry.store import Store

    try:
        # Whoever only looks makes no tables: a restore may be at work.
        with closing(Store(registry)) as store:
            return {one.name: one for one in Registry(store).flows()}
    except NoTablesError:
        return {}


def as_deployed(deployed: DeployedFlow) -> TridentTopology:
    """Return a flow as its current version says."""
    from pipelines.nimbus.deployed import load
    from pipelines.nimbus.settings import NimbusSettings

    return load(deployed, NimbusSettings.from_environment().home / "flows")
