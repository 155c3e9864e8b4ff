"""Sources: where tuples enter."""

from pipelines.sources.base import FileSource, Source
from pipelines.sources.delta import DeltaTableSource
from pipelines.sources.files import CsvFiles, JsonFiles, ParquetFiles
from pipelines.sources.fixed import FixedBatches

__all__ = ["CsvFiles", "DeltaTableSource", "FileSource", "FixedBatches", "JsonFiles", "ParquetFiles", "Source"]
