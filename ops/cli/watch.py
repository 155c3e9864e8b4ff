"""`tridelta watch FOLDER`: the flows of a folder, until a signal."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ops.cli.rendering import PlainLines
from pipelines.errors import MissingPathError

if TYPE_CHECKING:
    from pipelines import Runtime

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def logged() -> Iterator[None]:
    """Write the engine's log lines to standard error, with their time, while the block runs."""
    engine, handler = logging.getLogger("pipelines"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlainLines("%(asctime)s %(levelname)s %(message)s"))
    before = engine.level, engine.propagate
    engine.addHandler(handler)
    engine.setLevel(logging.INFO)
    engine.propagate = False
    try:
        yield
    finally:
        engine.removeHandler(handler)
        engine.setLevel(before[0])
        engine.propagate = before[1]


def refuse_unless_folder(folder: Path) -> None:
    """Check that the folder exists, before Spark starts.

    Raises:
        MissingPathError
    """
    if not folder.is_dir():
        raise MissingPathError("flows", str(folder))


def run(
    runtime: Runtime, folder: Path, *, trigger_seconds: float, once: bool, on_fresh_checkpoint: str = "refuse"
) -> bool:
    """Watch a folder until SIGINT or SIGTERM, or run it once.

    Returns:
        For a single run, whether a file was refused or a flow has failed.
    """
    from pipelines.execution.flow_folder import DIED, REFUSED, FlowFolder

    flows = FlowFolder(
        runtime,
        folder,
        trigger_seconds=trigger_seconds,
        settle_seconds=0.0 if once else 0.5,
        on_fresh_checkpoint=on_fresh_checkpoint,
    )
    if once:
        return any(one.what in (DIED, REFUSED) for one in flows.once())
    ended = threading.Event()
    with _ending(ended):
        flows.watch(ended)
    return False


@contextmanager
def _ending(ended: threading.Event) -> Iterator[None]:
    """Set `ended` on the first signal; a second one does what it did before."""
    before: dict[int, Any] = {}

    def end(number: int, frame: object) -> None:
        ended.set()
        for known, handler in before.items():
            signal.signal(known, handler)

    before = {number: signal.signal(number, end) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
