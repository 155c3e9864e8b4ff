"""Sources: where tuples enter. Names load on first use, so a flow pays for its own source alone."""

from typing import TYPE_CHECKING

from pipelines.lazy import lazy

if TYPE_CHECKING:
    from pipelines.sources.base import Source as Source
    from pipelines.sources.change_feed import DeltaChangeFeed as DeltaChangeFeed
    from pipelines.sources.delta import DeltaTableSource as DeltaTableSource
    from pipelines.sources.files import CsvFiles as CsvFiles
    from pipelines.sources.files import JsonFiles as JsonFiles
    from pipelines.sources.files import ParquetFiles as ParquetFiles
    from pipelines.sources.files import TextFiles as TextFiles
    from pipelines.sources.fixed import FixedBatches as FixedBatches
    from pipelines.sources.folder import FileSource as FileSource
    from pipelines.sources.kafka import Kafka as Kafka
    from pipelines.sources.python import PythonSource as PythonSource
    from pipelines.sources.rate import Rate as Rate

__getattr__, __all__ = lazy(__name__, __file__)
