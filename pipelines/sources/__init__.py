"""Sources: where tuples enter. Names load on first use, so a flow pays for its own source alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.lazy import lazy

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

__getattr__ = lazy(
    __name__,
    {
        ".base": ("Source",),
        ".change_feed": ("DeltaChangeFeed",),
        ".delta": ("DeltaTableSource",),
        ".files": ("CsvFiles", "FileSource", "JsonFiles", "ParquetFiles", "TextFiles"),
        ".fixed": ("FixedBatches",),
        ".kafka": ("Kafka",),
        ".python": ("PythonSource",),
        ".rate": ("Rate",),
    },
)
