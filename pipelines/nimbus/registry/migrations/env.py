"""Run by Alembic, over the connection that `pipelines.nimbus.registry.store` hands in."""

from __future__ import annotations

from alembic import context

from pipelines.nimbus.registry.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
