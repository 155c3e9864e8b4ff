"""The registry's first form: flows, versions, events, assignments, beats, attempts, leases."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_TABLES = ("leases", "attempts", "beats", "supervisors", "workers", "assignments", "events", "versions", "flows")


def _flow(table: str) -> list[sa.Column[int] | sa.ForeignKeyConstraint]:
    fk = sa.ForeignKeyConstraint(["flow"], ["flows.serial"], name=f"fk_{table}_flow", ondelete="CASCADE")
    return [sa.Column("flow", sa.Integer, nullable=False), fk]


def upgrade() -> None:
    """Create the tables."""
    _create_flows()
    _create_events()
    _create_places()
    _create_beats()
    op.create_table(
        "attempts",
        sa.Column("batch_group", sa.Text, nullable=False),
        sa.Column("txid", sa.BigInteger, nullable=False),
        sa.Column("record", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("batch_group", "txid", name="pk_attempts"),
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("holder", sa.Text),
        sa.Column("taken_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("held", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )


def downgrade() -> None:
    """Go back to an empty database."""
    for table in _TABLES:
        op.drop_table(table)


def _create_flows() -> None:
    op.create_table(
        "flows",
        sa.Column("serial", sa.Integer, autoincrement=True, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("submitted_at", sa.Double, nullable=False),
        sa.Column("removed_at", sa.Double),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("previous_status", sa.Text),
        sa.Column("wait_seconds", sa.Double),
        sa.Column("due_event", sa.Text),
        sa.Column("due_at", sa.Double),
        sa.Column("request", sa.JSON),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("scale", sa.JSON, nullable=False),
        sa.Column("scratch", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("serial", name="pk_flows"),
        sqlite_autoincrement=True,
    )
    alive = sa.text("removed_at IS NULL")
    op.create_index("ux_flows_alive", "flows", ["name"], unique=True, sqlite_where=alive, postgresql_where=alive)
    op.create_table(
        "versions",
        *_flow("versions"),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("definition", sa.JSON, nullable=False),
        sa.Column("settings", sa.JSON, nullable=False),
        sa.Column("components", sa.JSON, nullable=False),
        sa.Column("workers", sa.Integer, nullable=False),
        sa.Column("before", sa.Integer),
        sa.Column("copy_of", sa.Integer),
        sa.PrimaryKeyConstraint("flow", "number", name="pk_versions"),
    )


def _create_events() -> None:
    op.create_table(
        "events",
        sa.Column("serial", sa.Integer, autoincrement=True, nullable=False),
        *_flow("events"),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("event", sa.Text, nullable=False),
        sa.Column("from_status", sa.Text),
        sa.Column("to_status", sa.Text),
        sa.Column("version", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("serial", name="pk_events"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_flow", "events", ["flow"])


def _create_places() -> None:
    op.create_table(
        "assignments",
        *_flow("assignments"),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("made_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("flow", name="pk_assignments"),
    )
    op.create_table(
        "workers",
        *_flow("workers"),
        sa.Column("supervisor", sa.Text, nullable=False),
        sa.Column("port", sa.Integer, nullable=False),
        sa.Column("tasks", sa.JSON, nullable=False),
        sa.Column("started_at", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("flow", "supervisor", "port", name="pk_workers"),
    )


def _create_beats() -> None:
    op.create_table(
        "supervisors",
        sa.Column("supervisor", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("ports", sa.JSON, nullable=False),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("beat_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("supervisor", name="pk_supervisors"),
    )
    op.create_table(
        "beats",
        *_flow("beats"),
        sa.Column("task", sa.Integer, nullable=False),
        sa.Column("supervisor", sa.Text, nullable=False),
        sa.Column("port", sa.Integer, nullable=False),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("beat_at", sa.Double, nullable=False),
        sa.Column("figures", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("flow", "task", name="pk_beats"),
    )
