"""What a state updater made of a batch, taken apart: the changes to commit, and the rows that it emitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.planner.updaters import EMIT, OP, REMOVE
from pipelines.state.schema import REMOVED

if TYPE_CHECKING:
    from pipelines.graph import nodes


def changes_and_emitted(rows: pa.Table, node: nodes.PersistNode) -> tuple[pa.Table, pa.Table]:
    """The updater's frame (`pipelines.planner.updaters`) as rows for the commit and rows for new values.

    Returns:
        Keys, values and `_removed boolean`; and the emitted rows with all their columns.
    """
    emits = pc.equal(rows[OP], EMIT)
    changed = rows.filter(pc.invert(emits))
    changes = changed.select(list(node.fields)).append_column(REMOVED, pc.equal(changed[OP], REMOVE))
    return changes, rows.filter(emits)
