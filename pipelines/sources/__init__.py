"""Sources: where tuples enter. Names load on first use, so a flow pays for its own source alone."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelines.sources.base import Source
    from pipelines.sources.change_feed import DeltaChangeFeed
    from pipelines.sources.delta import DeltaTableSource
    from pipelines.sources.files import CsvFiles, FileSource, JsonFiles, ParquetFiles, TextFiles
    from pipelines.sources.fixed import FixedBatches
    from pipelines.sources.kafka import Kafka
    from pipelines.sources.python import PythonSource
    from pipelines.sources.rate import Rate

__all__ = [
    "CsvFiles",
    "DeltaChangeFeed",
    "DeltaTableSource",
    "FileSource",
    "FixedBatches",
    "JsonFiles",
    "Kafka",
    "ParquetFiles",
    "PythonSource",
    "Rate",
    "Source",
    "TextFiles",
]

_LAZY = {
    "CsvFiles": "files",
    "DeltaChangeFeed": "change_feed",
    "DeltaTableSource": "delta",
    "FileSource": "files",
    "FixedBatches": "fixed",
    "JsonFiles": "files",
    "Kafka": "kafka",
    "ParquetFiles": "files",
    "PythonSource": "python",
    "Rate": "rate",
    "Source": "base",
    "TextFiles": "files",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"pipelines.sources.{_LAZY[name]}"), name)
