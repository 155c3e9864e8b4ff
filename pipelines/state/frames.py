"""Large states as Spark frames, read by Spark's own Delta reader."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.state.kinds import LOG, MAP
from pipelines.state.reading import Reader
from pipelines.state.schema import PREVIOUS, TXID

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def read_by_spark(spark: SparkSession, path: Path, reader: Reader) -> DataFrame:
    """Build what `reader.scan()` gives as a frame over the table's files."""
    from pyspark.sql import functions as F

    declared = reader.declared
    stored = (
        spark.read.format("delta").option("versionAsOf", reader.snapshot.version).load(str(path)).where(reader.where)
    )
    # Columns that the state got after this version.
    later = {name: kind for name, kind in declared.columns if name not in reader.snapshot.types}
    stored = stored.withColumns({name: F.lit(None).cast(kind) for name, kind in later.items()})
    if declared.layout == LOG:
        return _folded(stored, reader)
    if declared.layout == MAP and reader.before is not None:
        return stored.select(*_before(reader))
    return stored.select(*(_column(name) for name in declared.names))


def _before(reader: Reader) -> list[Column]:
    from pyspark.sql import functions as F

    replayed = F.col(TXID) == F.lit(reader.before)
    return [
        _column(name)
        if name in reader.keys or name not in reader.snapshot.types
        else F.when(replayed, _column(PREVIOUS)[name]).otherwise(_column(name)).alias(name)
        for name in reader.declared.names
    ]


def _folded(stored: DataFrame, reader: Reader) -> DataFrame:
    from pyspark.sql import functions as F

    declared = reader.declared
    made = [(value.name, value.make()) for value in declared.values]
    folded = stored.groupBy(*(_column(name) for name in declared.keys)).agg(
        *(aggregator.fold(_column(name)).alias(name) for name, aggregator in made)
    )
    # As text, which is without the `NOT NULL` that fields of a stored struct may carry.
    types = {f.name: f.dataType.simpleString() for f in stored.schema}
    results = {name: aggregator.result(_column(name).cast(types[name])).alias(name) for name, aggregator in made}
    for name, zero in reader.zero().items():
        if zero is not None and not isinstance(zero, dict | tuple):
            results[name] = F.coalesce(results[name], F.lit(zero)).alias(name)
    return folded.select(*(results.get(name, _column(name)) for name in declared.names))


def _column(name: str) -> Column:
    from pyspark.sql import functions as F

    return F.col(f"`{name}`")
