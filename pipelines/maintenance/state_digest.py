"""A digest of Spark's state of a streaming query: figures that do not depend on how it is dealt over partitions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.places.location import Place

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

PARTITION = "partition_id"


@dataclass(frozen=True)
class Digest:
    """One state variable.

    Attributes:
        rows: entries.
        xor: of the rows' hashes over key and value; `sum` of the same: together they tell two equal rows from none.
        misplaced: rows that lie in a partition where Spark will not look for their key.
        largest: rows of the fullest partition.
    """

    rows: int
    xor: int
    sum: int
    misplaced: int
    largest: int

    def same_as(self, other: Digest) -> bool:
        """Return whether both hold the same rows, wherever they lie."""
        return (self.rows, self.xor, self.sum) == (other.rows, other.xor, other.sum)


@dataclass(frozen=True)
class StateDigest:
    """The state of a query at its last finished batch.

    Attributes:
        partitions: as the state's own metadata has it.
        variables: by `<operator>/<store>/<variable>`.
    """

    partitions: int
    variables: Mapping[str, Digest]

    @property
    def rows(self) -> dict[str, int]:
        return {name: digest.rows for name, digest in self.variables.items()}

    def difference(self, other: StateDigest) -> str | None:
        """Return how a later digest differs, in a sentence; None: it holds the same."""
        if set(self.variables) != set(other.variables):
            lost = set(self.variables) ^ set(other.variables)
            return f"state variables are not the same ones: {', '.join(sorted(lost))}"
        for name, before in self.variables.items():
            after = other.variables[name]
            if not before.same_as(after):
                return f"{name}: {before.rows} rows before, {after.rows} after" + (
                    " with other contents" if before.rows == after.rows else ""
                )
            if after.misplaced:
                return f"{name}: {after.misplaced} of {after.rows} rows lie where Spark will not look for them"
        return None


def state_digest(spark: SparkSession, checkpoint: Place) -> StateDigest:
    """Read all state of a checkpoint (Spark's folder of it) at its last finished batch, in one job."""
    # Spark registers what coordinates its state stores with the first look at the session's streams, and not before.
    spark._jsparkSession.streams()
    stores = spark.read.format("state-metadata").load(str(checkpoint)).collect()
    partitions = max((store["numPartitions"] for store in stores), default=0)
    parts = [
        _digested(name, frame, store["numPartitions"])
        for store in stores
        for name, frame in _variables(spark, checkpoint, store)
    ]
    if not parts:
        return StateDigest(partitions, {})
    rows = reduce(DataFrame.unionByName, parts).collect()
    return StateDigest(
        partitions,
        {
            row["name"]: Digest(row["n"], row["x"] or 0, int(row["s"] or 0), row["misplaced"] or 0, row["largest"] or 0)
            for row in rows
        },
    )


def _variables(spark: SparkSession, checkpoint: Place, store: Row) -> Iterator[tuple[str, DataFrame]]:
    """Yield each column family of a state store, as the processor declared it; a store of another operation is one."""
    place = f"{store['operatorId']}/{store['stateStoreName']}"
    properties = json.loads(store["operatorProperties"] or "{}")
    reader = (
        spark.read.format("statestore")
        .option("operatorId", store["operatorId"])
        .option("storeName", store["stateStoreName"])
    )
    if "stateVariables" not in properties:
        yield place, reader.load(str(checkpoint))
        return
    for variable in properties["stateVariables"]:
        name = variable["stateName"]
        yield f"{place}/{name}", reader.option("stateVarName", name).load(str(checkpoint))
    if properties.get("timeMode", "NoTime") != "NoTime":
        plain = spark.read.format("statestore").option("operatorId", store["operatorId"])
        yield f"{place}/timers", plain.option("readRegisteredTimers", "true").load(str(checkpoint))


def _digested(name: str, frame: DataFrame, partitions: int) -> DataFrame:
    """Return one row of figures: hashes of the rows, first by partition."""
    contents = [column for column in frame.columns if column != PARTITION]
    hashed = F.xxhash64(*contents)
    # Keyed by Spark's own hash of the grouping columns, as its shuffle deals them; other stores have keys of their own kinds.
    away = F.col(PARTITION) != F.pmod(F.hash("key.*"), F.lit(partitions)) if _keyed(name, frame) else F.lit(False)
    by_partition = frame.select(PARTITION, hashed.alias("h"), away.alias("away")).groupBy(PARTITION)
    figures = by_partition.agg(
        F.count(F.lit(1)).alias("n"),
        F.bit_xor("h").alias("x"),
        F.sum(F.col("h").cast("decimal(20,0)")).alias("s"),
        F.count_if("away").alias("misplaced"),
    )
    return figures.agg(
        F.lit(name).alias("name"),
        F.coalesce(F.sum("n"), F.lit(0)).alias("n"),
        F.bit_xor("x").alias("x"),
        F.sum("s").alias("s"),
        F.sum("misplaced").alias("misplaced"),
        F.max("n").alias("largest"),
    )


def _keyed(name: str, frame: DataFrame) -> bool:
    return name.count("/") == 2 and not name.endswith("/timers") and "key" in frame.columns
