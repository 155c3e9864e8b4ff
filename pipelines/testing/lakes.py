"""The lake of one run of the test kit."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipelines.state.lake import Lake


@contextmanager
def fresh_lake() -> Iterator[Lake]:
    """Yield a lake in a folder that ends with the block."""
    from pipelines.state.lake import Lake

    with tempfile.TemporaryDirectory(prefix="tridelta-test-") as root:
        yield Lake(root)
