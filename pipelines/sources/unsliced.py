"""What the sources share whose rows cannot all be read again by position: streams, not stores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.errors import NotSliceableError, TrideltaError
from pipelines.graph.fields import parse_ddl

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


class UnslicedSource:
    """A source that is only streamed: no slice of it can be replaced, and `new_stream(..., slice_by=...)` refuses it.

    Args:
        schema: DDL of the fields.
    """

    max_parallelism: int | None = None
    sliceable: bool = False
    transactional: bool = True
    text: bool = False

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self._columns = parse_ddl(schema)

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self._columns)

    def prepare(self, name: str, spool: Path) -> None:
        """Nothing to make ready."""

    def check(self, name: str, spark: SparkSession) -> None:
        """Nothing that could be wrong."""

    def bounded(self, spark: SparkSession) -> tuple[DataFrame, frozenset[str]]:
        """Refused.

        Raises:
            NotSliceableError
        """
        raise NotSliceableError(repr(self), "a bounded read")

    def of_batch(self, frame: DataFrame, files: frozenset[str]) -> DataFrame:
        """The frame."""
        return frame

    def positions(self, checkpoint: Path, first: int, last: int, index: int = 0) -> frozenset[str]:
        """None: nothing of this source can be claimed."""
        return frozenset()

    def fault(self, name: str, error: BaseException) -> TrideltaError | None:
        """What an error of Spark's says about this source, in words a user can act on; None if it says nothing."""
        return None

    def _with_position(self, frame: DataFrame, corrupt: Column | None, position: Column) -> DataFrame:
        """The fields, then `_corrupt` (none is malformed if None) and `_file`."""
        from pyspark.sql import functions as F

        from pipelines.sources.base import CORRUPT, FILE

        bad = F.lit(None).cast("string") if corrupt is None else corrupt
        return frame.select(*(f"`{field}`" for field in self.fields), bad.alias(CORRUPT), position.alias(FILE))


def offset_of(checkpoint: Path, batch: int, index: int) -> Any:
    """A source's offset after a batch, from Spark's offset log (`v1`, metadata, then a line a source); None for none."""
    file = checkpoint / "offsets" / str(batch)
    lines: Sequence[str] = file.read_text(encoding="utf-8").splitlines() if file.is_file() else ()
    line = lines[2 + index] if len(lines) > 2 + index else "-"
    return None if line == "-" else json.loads(line)


def shown(error: BaseException) -> str:
    """All that an error of Spark's says, its causes' texts included."""
    texts, seen = [], error
    while seen is not None:
        texts.append(str(seen))
        seen = seen.__cause__ or seen.__context__  # type: ignore[assignment]
    return "\n".join(texts)
