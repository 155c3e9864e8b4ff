"""Text that is not UTF-8: Spark keeps any bytes in a string, and a table that holds such can no longer be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from pipelines import spark_functions as F
from pipelines.errors import NotTextError
from pipelines.graph.dialects import SPARK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def check_texts(table: str, rows: pa.Table) -> None:
    """Refuse rows that are to be committed, if one of their texts is none.

    Raises:
        NotTextError
    """
    for name in rows.column_names:
        try:
            rows[name].validate(full=True)
        except pa.ArrowInvalid as invalid:
            for row, value in enumerate(rows[name]):
                try:
                    value.as_py()
                except UnicodeDecodeError as error:
                    raise NotTextError(table, name, row, error.object) from None
                except (OverflowError, ValueError):  # a far date beside it
                    continue
            if "UTF8" in str(invalid):
                raise NotTextError(table, name) from invalid
            raise


def checked_texts(table: str, frame: DataFrame) -> DataFrame:
    """Return the rows; the job fails at a text that is none. Those within another value are not looked at."""
    kept = {}
    for name in (name for name, kind in frame.dtypes if kind == "string"):
        text, refusal = F.col(SPARK.name(name)), F.raise_error(F.lit(str(NotTextError(table, name))))
        kept[name] = F.when(~F.is_valid_utf8(text), refusal).otherwise(text)
    return frame.withColumns(kept) if kept else frame
