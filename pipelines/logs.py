"""The engine's logger: structlog's words, Python's own logging underneath."""

from __future__ import annotations

import logging
from typing import Any

import structlog


def logger(name: str) -> Any:
    """A structlog logger of facts (`logger.warning("attempt failed", flow=..., txid=...)`).

    It hands finished lines to Python's logging, which Dagster collects and which goes to standard error otherwise: standard
    output is for results.
    """
    renderer = structlog.processors.KeyValueRenderer(key_order=["event"], sort_keys=True)
    return structlog.wrap_logger(logging.getLogger(name), processors=[renderer])
