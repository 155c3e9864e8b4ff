"""Rows at a steady rate, for trials and benchmarks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.bounds import ROWS, TASKS, required
from pipelines.errors import DefinitionError
from pipelines.places.location import Place
from pipelines.sources.base import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Rate(Source):
    """Numbered rows at a steady rate.

    Gives: `timestamp timestamp, value bigint`; the values count from 0 without gaps.
    Positions: one, `rate`; it has no slices.
    Transactional: a replayed batch has the same values and times, for both follow from the offsets.

    Args:
        rows_per_second: so many rows for each second since the start; a batch is what has become due. The first second
            is empty.
        rows_per_batch: so many rows in each batch, whenever it runs; `catch_up` runs one batch.
        partitions: in how many Spark partitions a batch comes; None: as many as there are cores.

    Raises:
        DefinitionError: unless exactly one of the two rates is given, as a positive number.
    """

    transactional: bool = True

    def __init__(
        self, *, rows_per_second: int | None = None, rows_per_batch: int | None = None, partitions: int | None = None
    ) -> None:
        super().__init__("timestamp timestamp, value bigint")
        if (rows_per_second is None) == (rows_per_batch is None):
            raise DefinitionError("Rate: give either rows_per_second or rows_per_batch")
        if (rows_per_second or rows_per_batch or 0) <= 0 or (partitions is not None and partitions <= 0):
            raise DefinitionError("Rate: the rate and the number of partitions must be positive")
        for name, given in (("rows_per_second", rows_per_second), ("rows_per_batch", rows_per_batch)):
            required(f"Rate: {name}", ROWS, given)
        required("Rate: partitions", TASKS, partitions)
        self.rows_per_second, self.rows_per_batch, self.partitions = rows_per_second, rows_per_batch, partitions

    def __repr__(self) -> str:
        if self.rows_per_batch is not None:
            return f"Rate(rows_per_batch={self.rows_per_batch})"
        return f"Rate(rows_per_second={self.rows_per_second})"

    def stream(self, spark: SparkSession) -> DataFrame:
        from pyspark.sql import functions as F

        if self.rows_per_batch is not None:
            reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", self.rows_per_batch)
        else:
            reader = spark.readStream.format("rate").option("rowsPerSecond", self.rows_per_second or 1)
        if self.partitions is not None:
            reader = reader.option("numPartitions", self.partitions)
        return self._with_position(reader.load(), F.lit("rate"))

    def positions(self, checkpoint: Place, first: int, last: int, index: int = 0) -> frozenset[str]:
        return frozenset({"rate"}) if first <= last else frozenset()
