"""The supervisors that the leader leaves out, because their hosts have failed again and again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Go to this revision."""
    op.add_column("supervisors", sa.Column("blacklisted", sa.Boolean))


def downgrade() -> None:
    """Go back to the one before."""
    op.drop_column("supervisors", "blacklisted")
