"""Details of what happened to a flow, and why it has no place."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Go to this revision."""
    op.add_column("events", sa.Column("detail", sa.JSON))
    op.add_column("flows", sa.Column("problem", sa.Text))


def downgrade() -> None:
    """Go back to the one before."""
    op.drop_column("flows", "problem")
    op.drop_column("events", "detail")
