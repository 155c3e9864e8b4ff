"""Text that is not UTF-8 does not come into a table: nobody could read that any more."""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pipelines.errors import NotTextError
from pipelines.state.kinds import LOG, MAP, ROWS, TRANSACTIONAL
from pipelines.state.schema import REMOVED
from pipelines.state.texts import check_texts, checked_texts
from tests.state.small_kinds import APP, SmallTable, record


def texts(*values: bytes) -> pa.Array:
    ends = [sum(map(len, values[:n])) for n in range(len(values) + 1)]
    offsets = pa.py_buffer(struct.pack(f"<{len(ends)}i", *ends))
    return pa.StringArray.from_buffers(len(values), offsets, pa.py_buffer(b"".join(values)))


BAD = texts(b"good", b"caf\xe9")


@pytest.mark.parametrize("layout", [LOG, ROWS, MAP])
def test_bytes_that_are_no_text(tmp_path: Path, layout: str) -> None:
    state = SmallTable(tmp_path, layout, TRANSACTIONAL)
    rows = {"word": BAD, "n": [1, 2]} | ({REMOVED: [False, False]} if layout == MAP else {})
    with pytest.raises(NotTextError, match=r'"counts": column word of row 1 holds the bytes caf\\xe9') as caught:
        state.writer.commit_batch(pa.table(rows), record(0), APP, known=False)
    assert (caught.value.table, caught.value.column, caught.value.row) == ("counts", "word", 1)
    state.commit(0, ("good", 1))
    assert state.held() == [("good", 1)]


@pytest.mark.parametrize(
    "values",
    [
        pa.ListArray.from_arrays([0, 0, 2], BAD),
        pa.StructArray.from_arrays([BAD], ["k"]),
        pa.MapArray.from_arrays([0, 1, 2], BAD, BAD),
    ],
    ids=["list", "struct", "map"],
)
def test_bytes_within_a_value(values: pa.Array) -> None:
    with pytest.raises(NotTextError, match="column v of row 1 holds the bytes"):
        check_texts("held", pa.table({"v": values}))


def test_bytes_beside_a_value_that_python_has_not() -> None:
    far = pa.array([0, 10**8], pa.int32()).cast(pa.date32())
    with pytest.raises(NotTextError, match="column v holds bytes that are no text"):
        check_texts("held", pa.table({"v": pa.StructArray.from_arrays([far, BAD], ["d", "k"])}))


def test_text_of_any_kind() -> None:
    check_texts("held", pa.table({"v": ["", "é\0", None, "\U0010ffff"], "b": [b"\xff", None, b"", b"a"]}))


@pytest.mark.slow
@pytest.mark.parametrize("layout", [LOG, pytest.param(MAP, marks=pytest.mark.exhaustive)])
def test_bytes_that_spark_writes(spark: SparkSession, tmp_path: Path, layout: str) -> None:
    state = SmallTable(tmp_path, layout, TRANSACTIONAL)
    frame = spark.sql("SELECT cast(X'636166E9' AS string) AS word, 1L AS n, false AS _removed")
    with pytest.raises(Exception, match='"counts": column word holds bytes that are no text in UTF-8'):
        state.writer.commit_batch(frame if layout == MAP else frame.drop(REMOVED), record(0), APP, known=False)
    assert state.writer.committed(APP) is None


def test_bytes_within_a_value_that_spark_writes(spark: SparkSession) -> None:
    bad = "cast(X'FF' AS string)"
    values = (
        f"array(null, {bad})",
        f"array(array({bad}))",
        f"named_struct('a.b', {bad})",
        f"map('k', {bad})",
        f"map({bad}, 1)",
    )
    good = "array(struct(map('é', null), 'x'), null) AS v, cast(null AS array<string>) AS w, array(X'FF') AS b, array(1) AS n"
    frames = [spark.sql(f"SELECT {value} AS v") for value in values]
    for frame in frames:
        with pytest.raises(Exception, match='"held": column v holds bytes that are no text'):
            checked_texts("held", frame).collect()
    rows = spark.sql(f"SELECT {good}")
    assert checked_texts("held", rows).collect() == rows.collect()
