"""Nimbus as a Dagster resource: deployed flows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

if TYPE_CHECKING:
    from pipelines.nimbus.nimbus import Nimbus
    from pipelines.nimbus.status import FlowStatus


class NimbusResource(dg.ConfigurableResource):
    """The deployed flows of one registry. Nothing is opened before it is used."""

    store_url: str = ""
    """The registry's database; empty: TRIDELTA_REGISTRY, else a SQLite file. Give a URL with a password as `dg.EnvVar`."""
    root: str = ""
    """The lake; empty: that of TRIDELTA_HOME."""

    def nimbus(self) -> Nimbus:
        """Nimbus, open; to be closed, best by `with`.

        Raises:
            RegistryError: The registry cannot be opened.
        """
        from pipelines import Lake
        from pipelines.catalog import FlowSettings
        from pipelines.nimbus.nimbus import Nimbus
        from pipelines.nimbus.settings import registry_url

        root = self.root or str(FlowSettings.from_environment().lake)
        return Nimbus(self.store_url or registry_url(), Lake(root))

    def deployed(self) -> dict[str, FlowStatus]:
        """Return the deployed flows by name; without a registry there are none, and no registry is made.

        Raises:
            RegistryError: The registry does not answer.
        """
        from pipelines.nimbus.settings import registry_exists, registry_url

        if not registry_exists(self.store_url or registry_url()):
            return {}
        with self.nimbus() as nimbus:
            return {flow.name: flow for flow in nimbus.cluster().flows}
