"""The engine's logger: structlog's words, Python's own logging underneath."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

import structlog

FIELDS = "tridelta_fields"
"""The attribute of a `logging.LogRecord` that keeps the facts of a line, `event` among them."""

_as_text = structlog.processors.KeyValueRenderer(key_order=["event"], sort_keys=True)


def logger(name: str) -> Any:
    """Return a structlog logger of facts (`logger.warning("attempt failed", flow=..., txid=...)`).

    It hands finished lines to Python's logging, which Dagster collects and which goes to standard error otherwise: standard
    output is for results. What is bound to the context (`structlog.contextvars`) is part of each line. The facts themselves
    go along with the line, for handlers that write JSON (`pipelines.nimbus.telemetry.log_files`).
    """
    return structlog.wrap_logger(
        logging.getLogger(name), processors=[structlog.contextvars.merge_contextvars, _hand_over]
    )


def _hand_over(wrapped: Any, method: str, facts: MutableMapping[str, Any]) -> tuple[tuple[str], dict[str, Any]]:
    """Return the arguments of Python's logger: the line as text, the facts beside it."""
    exc_info = facts.pop("exc_info", None)
    return (str(_as_text(wrapped, method, dict(facts))),), {"exc_info": exc_info, "extra": {FIELDS: dict(facts)}}
