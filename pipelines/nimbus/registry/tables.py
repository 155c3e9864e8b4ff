"""The registry's tables. Times are seconds since 1970; what only Nimbus' own code reads inside is JSON.

A change here needs a migration in `migrations/versions`; a test holds the two together.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    }
)


def _flow() -> Column[int]:
    return Column("flow", Integer, ForeignKey("flows.serial", ondelete="CASCADE"), primary_key=True)


# One row a submission. A removed flow stays for its history and its last assignment, until `forget` takes it.
flows = Table(
    "flows",
    metadata,
    Column("serial", Integer, primary_key=True, autoincrement=True),
    Column("name", Text, nullable=False),
    Column("submitted_at", Double, nullable=False),
    Column("removed_at", Double),
    Column("status", Text, nullable=False),
    Column("previous_status", Text),
    Column("wait_seconds", Double),
    Column("due_event", Text),
    Column("due_at", Double),
    Column("request", JSON(none_as_null=True)),
    Column("version", Integer, nullable=False),
    # What rebalances have set on top of the version: workers, parallelism, settings.
    Column("scale", JSON, nullable=False),
    # Its next assignment is made from scratch (REBALANCE), not by MONITOR.
    Column("scratch", Boolean, nullable=False),
    # Why it has no place, in a sentence.
    Column("problem", Text),
    # A serial is part of an id: one that was used never comes again, whatever was deleted.
    sqlite_autoincrement=True,
)
Index(
    "ux_flows_alive",
    flows.c.name,
    unique=True,
    sqlite_where=text("removed_at IS NULL"),
    postgresql_where=text("removed_at IS NULL"),
)

versions = Table(
    "versions",
    metadata,
    _flow(),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("created_at", Double, nullable=False),
    Column("definition", JSON, nullable=False),
    Column("settings", JSON, nullable=False),
    Column("components", JSON, nullable=False),
    Column("workers", Integer, nullable=False),
    # The version that a roll back from this one returns to, and the one whose content a roll back brought back.
    Column("before", Integer),
    Column("copy_of", Integer),
)

events = Table(
    "events",
    metadata,
    Column("serial", Integer, primary_key=True, autoincrement=True),
    Column("flow", Integer, ForeignKey("flows.serial", ondelete="CASCADE"), nullable=False, index=True),
    Column("at", Double, nullable=False),
    Column("event", Text, nullable=False),
    Column("from_status", Text),
    Column("to_status", Text),
    Column("version", Integer, nullable=False),
    Column("detail", JSON(none_as_null=True)),
    sqlite_autoincrement=True,
)

assignments = Table(
    "assignments",
    metadata,
    _flow(),
    Column("revision", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("made_at", Double, nullable=False),
)

# Two flows may share a slot (small queries are packed into one application), but one flow has it once.
workers = Table(
    "workers",
    metadata,
    _flow(),
    Column("supervisor", Text, primary_key=True),
    Column("port", Integer, primary_key=True, autoincrement=False),
    Column("tasks", JSON, nullable=False),
    Column("started_at", JSON, nullable=False),
)

supervisors = Table(
    "supervisors",
    metadata,
    Column("supervisor", Text, primary_key=True),
    Column("host", Text, nullable=False),
    Column("ports", JSON, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("beat_at", Double, nullable=False),
    # The leader's word: its host has failed again and again.
    Column("blacklisted", Boolean),
)

beats = Table(
    "beats",
    metadata,
    _flow(),
    Column("task", Integer, primary_key=True, autoincrement=False),
    Column("supervisor", Text, nullable=False),
    Column("port", Integer, nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("beat_at", Double, nullable=False),
    Column("figures", JSON, nullable=False),
)

# Nothing reads it. Workers of an earlier release write here and fail without it, and they outlive the supervisor that migrates.
attempts = Table(
    "attempts",
    metadata,
    Column("batch_group", Text, primary_key=True),
    Column("txid", BigInteger, primary_key=True, autoincrement=False),
    Column("record", JSON, nullable=False),
)

# The token of a name must not start over while somebody may still hold an old one: where a row is pruned, another keeps it.
leases = Table(
    "leases",
    metadata,
    Column("name", Text, primary_key=True),
    Column("token", BigInteger, nullable=False),
    Column("holder", Text),
    Column("taken_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("held", Boolean, nullable=False),
)
