"""`direct` takes whole numbers: another type is refused at its line, or in the batch where nobody declared it."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pipelines.errors import FunctionError
from pipelines.sources import FixedBatches
from pipelines.testing import run_topology
from pipelines.trident import ColumnFunction, Count, DeltaState, Stream, TridentTopology
from tests.planner.plans import rows_of, source

TAKEN = ("bigint", "INTEGER", "short", "tinyint", "decimal(38, 0)", "dec(10)")
REFUSED = ("string", "date", "timestamp", "array<bigint>", "double", "float", "decimal(10,2)", "boolean", "binary")


def stream(kind: str) -> Stream:
    return TridentTopology("t").new_stream("s", FixedBatches(f"k string, x {kind}", []))


@pytest.mark.parametrize("kind", TAKEN)
def test_whole_numbers_are_taken(kind: str) -> None:
    assert stream(kind).direct("x").output_fields == ("k", "x")


@pytest.mark.parametrize("kind", REFUSED)
def test_another_type_is_refused_at_its_line(kind: str) -> None:
    with pytest.raises(FunctionError, match='direct: takes a field of whole numbers; got "x') as caught:
        stream(kind).direct("x")
    assert "bigint" in caught.value.hint


def untold(*values: Any, as_column: Any = None) -> tuple[Stream, list[tuple[Any, ...]]]:
    """Return tuples behind a `direct` on a field of a type that only the batch tells, and the rows of the batch."""

    class Untold(ColumnFunction):
        rows = staticmethod(lambda x: [values[int(x)]])

    made = stream("string").each("x", Untold(as_column), "n")
    kept = made.direct("n").partition_aggregate(Count(), "c").parallelism_hint(3)
    return kept, [("a", str(number)) for number in range(len(values))]


def counts(*values: Any) -> list[int]:
    kept, rows = untold(*values)
    kept.partition_persist(DeltaState("out"))
    return [row["c"] for row in run_topology(kept._topology, {"s": [rows]})["out"]]


@pytest.mark.parametrize("value", ["a", "1", 1.5, [1], True, Decimal("1.5"), Decimal("NaN"), 2**63], ids=repr)
def test_the_reference_engine_refuses_a_value_that_is_none(value: Any) -> None:
    with pytest.raises(FunctionError, match=r'direct.*"n'):
        counts(0, value)


def test_the_reference_engine_takes_whole_numbers_and_none() -> None:
    assert counts(0, 1, 4, None, Decimal(1)) == [0, 2, 3]


def test_spark_refuses_the_type_before_the_batch(spark: SparkSession) -> None:
    for column in (F.lit("1"), F.lit(1.5), F.array(F.lit(1)), F.current_date()):
        kept, rows = untold(1, as_column=lambda _, column=column: column)
        with pytest.raises(FunctionError, match="direct n: takes a field of whole numbers"):
            rows_of(kept, {"s": source(spark, "k string, x string", rows)})
    kept, rows = untold(1, 2, as_column=lambda x: x.cast("int"))
    assert sorted(row[0] for row in rows_of(kept, {"s": source(spark, "k string, x string", rows)})) == [0, 1, 1]
