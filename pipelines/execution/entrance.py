"""Where tuples enter a batch group: its sources as one Spark query, so that their batches share a txid (rules 3.6, 8).

A group of one source is that source's own stream. Several are one stream of tagged rows: `_source int`, then a struct of
each source's fields (null but for the row's own), `_corrupt` and `_file`; `frames` takes them apart again.
"""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.graph import nodes
from pipelines.sources.base import CORRUPT, FILE
from pipelines.state.schema import struct_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from pipelines.errors import TrideltaError

SOURCE = "_source"

Frames = dict[int, DataFrame]
"""By spout node the rows of its source: its fields, `_corrupt string`, `_file string`."""


class Entrance:
    """The sources of one batch group, in the order of their definition (which is that of Spark's offset log).

    Args:
        spouts: the group's spout nodes, at least one.
    """

    def __init__(self, spouts: tuple[nodes.SpoutNode, ...]) -> None:
        self.spouts = spouts

    @property
    def sliced(self) -> bool:
        """Whether the rows have slices; of several spouts all have, or none."""
        return self.spouts[0].slice_by is not None

    def prepare(self, spark: SparkSession, spool: Path) -> None:
        """Make each source ready and refuse what cannot be read.

        Raises:
            SourceError
        """
        for spout in self.spouts:
            spout.source.prepare(spout.stream, spool / spout.stream)
            spout.source.check(spout.stream, spark)

    def schema(self, spout: nodes.SpoutNode) -> StructType:
        return struct_of(spout.source.schema)

    def stream(self, spark: SparkSession) -> DataFrame:
        """The one streaming frame of the group's query."""
        if len(self.spouts) == 1:
            return self.spouts[0].source.stream(spark)
        parts = [self._tagged(number, spout.source.stream(spark)) for number, spout in enumerate(self.spouts)]
        return reduce(DataFrame.unionByName, parts)

    def _tagged(self, number: int, frame: DataFrame) -> DataFrame:
        structs = []
        for other, spout in enumerate(self.spouts):
            own = F.struct(*(F.col(f"`{name}`") for name in spout.fields))
            kind = self.schema(spout)
            structs.append((own if other == number else F.lit(None)).cast(kind).alias(f"_source{other}"))
        return frame.select(F.lit(number).alias(SOURCE), *structs, CORRUPT, FILE)

    def frames(self, batch: DataFrame, files: frozenset[str]) -> Frames:
        """A stream's batch by spout. Of several sources the batch should be kept first: each part reads all of it."""
        if len(self.spouts) == 1:
            only = self.spouts[0]
            return {only.id: only.source.of_batch(batch, files)}
        found = {}
        for number, spout in enumerate(self.spouts):
            own = [F.col(f"_source{number}.`{name}`").alias(name) for name in spout.fields]
            found[spout.id] = batch.where(F.col(SOURCE) == number).select(*own, CORRUPT, FILE)
        return found

    def bounded(self, spark: SparkSession) -> tuple[Frames, frozenset[str]]:
        """All that the sources hold now, by spout, and its positions."""
        frames, positions = {}, frozenset[str]()
        for spout in self.spouts:
            frames[spout.id], own = spout.source.bounded(spark)
            positions |= own
        return frames, positions

    def positions(self, checkpoint: Path, first: int, last: int) -> frozenset[str]:
        """The positions (as `file_key`) that the stream's batches `first..last` (Spark's ids) took."""
        found = (spout.source.positions(checkpoint, first, last, n) for n, spout in enumerate(self.spouts))
        return frozenset().union(*found)

    def fault(self, error: BaseException) -> TrideltaError | None:
        """What an error of Spark's says about one of the sources; None if it says nothing."""
        for spout in self.spouts:
            ask = getattr(spout.source, "fault", None)
            found: TrideltaError | None = ask(spout.stream, error) if ask else None
            if found is not None:
                return found
        return None

    def __repr__(self) -> str:
        return ", ".join(repr(spout.source) for spout in self.spouts)
