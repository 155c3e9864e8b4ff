"""The log of a supervisor in the foreground: lines for people on standard error, JSON lines in its file."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def logged(name: str) -> Iterator[None]:
    """Log to both while the block runs.

    Args:
        name: The supervisor's id.
    """
    from pipelines.nimbus.settings import NimbusSettings
    from pipelines.nimbus.telemetry.log_files import configure

    settings = NimbusSettings.from_environment()
    file = settings.supervisor_folder(name) / "supervisor.jsonl"
    take_back = configure(file, settings.log_megabytes, settings.log_files)
    shown = logging.StreamHandler(sys.stderr)
    shown.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger().addHandler(shown)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(shown)
        take_back()
