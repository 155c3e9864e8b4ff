"""The plain interpreter deals tuples to tasks by the same hash as Spark (Trident rules 1.5)."""

from __future__ import annotations

import datetime
import math
import random
import struct
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from pipelines.planner.plain.murmur import hashable, spark_hash, task_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RANDOM = random.Random(7)


def text() -> str:
    return "".join(RANDOM.choice("abz é漢😀\0") for _ in range(RANDOM.randrange(12)))


def long() -> int:
    return RANDOM.choice([0, -1, 2**63 - 1, -(2**63), RANDOM.randrange(-(2**63), 2**63), RANDOM.randrange(-9, 9)])


def double() -> float:
    return RANDOM.choice([0.0, -0.0, math.nan, math.inf, -math.inf, RANDOM.gauss(0, 1e10), 0.1])


def moment() -> datetime.datetime:
    return datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=RANDOM.randrange(-(10**15), 10**15))


def decimal(digits: int, scale: int) -> Decimal:
    return Decimal(RANDOM.choice([0, -1, 127, 128, -128, RANDOM.randrange(-(10**digits) + 1, 10**digits)])).scaleb(
        -scale
    )


KINDS: dict[str, Any] = {
    "tinyint": lambda: RANDOM.randrange(-128, 128),
    "smallint": lambda: RANDOM.randrange(-(2**15), 2**15),
    "int": lambda: RANDOM.choice([0, -1, 2**31 - 1, -(2**31), RANDOM.randrange(-(2**31), 2**31)]),
    "bigint": long,
    "string": text,
    "double": double,
    "float": lambda: RANDOM.choice([0.0, -0.0, math.nan, struct.unpack("<f", struct.pack("<f", RANDOM.random()))[0]]),
    "boolean": lambda: RANDOM.random() < 0.5,
    "date": lambda: moment().date(),
    "timestamp": moment,
    "decimal(10,2)": lambda: decimal(10, 2),
    "decimal(30,5)": lambda: decimal(30, 5),
    "binary": lambda: RANDOM.randbytes(RANDOM.randrange(9)),
    "array<int>": lambda: [RANDOM.choice([None, 1, -5]) for _ in range(RANDOM.randrange(4))],
    "struct<a: int, `b c`: string, d: decimal(20,1)>": lambda: {"a": 1, "b c": text(), "d": decimal(19, 1)},
    "array<struct<x:bigint,y:array<string>>>": lambda: [{"x": long(), "y": [text(), None]}],
}


def test_values_of_every_type(spark: SparkSession) -> None:
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    types = tuple(KINDS)
    rows = [tuple(None if RANDOM.random() < 0.1 else make() for make in KINDS.values()) for _ in range(400)]
    schema = StructType.fromDDL(", ".join(f"c{n} {kind}" for n, kind in enumerate(types)))
    named = [{f"c{n}": value for n, value in enumerate(row)} for row in rows]
    frame: Any = pa.Table.from_pylist(named, schema=to_arrow_schema(schema, timezone="UTC"))
    columns = [F.hash(F.col(name)) for name in frame.column_names]
    found = spark.createDataFrame(frame, schema).select(*columns, F.hash("*")).collect()
    for row, hashes in zip(rows, found, strict=True):
        for n, (value, kind) in enumerate(zip(row, types, strict=True)):
            assert spark_hash([value], [kind]) == hashes[n], (kind, value)
        assert spark_hash(row, types) == hashes[len(types)]


@pytest.mark.parametrize(
    ("value", "kind", "found"),
    [(None, "string", 42), ("", "string", 142593372), ("Spark", "string", 228093765), (0, "int", 933211791)],
)
def test_known_hashes(value: Any, kind: str, found: int) -> None:
    assert spark_hash([value], [kind]) == found


def test_a_task_is_never_negative() -> None:
    assert {task_of([n], ["bigint"], 3) for n in range(100)} == {0, 1, 2}


def test_maps_and_variants_have_no_hash() -> None:
    """Nor what holds them: Spark refuses the whole field."""
    assert all(map(hashable, KINDS))
    nested = ("map<string,int>", "variant", "array<map<string, int>>", "struct<x: int, `m`: array<variant>>")
    assert not any(map(hashable, nested))
