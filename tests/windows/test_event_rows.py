"""Events as rows of Arrow: what does not fit is named."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pipelines.windows.arrays import as_type
from pipelines.windows.event import Event
from pipelines.windows.event_rows import rows_of


@pytest.mark.parametrize(
    ("field", "kind", "value"),
    [
        ("sum", pa.int64(), 2**63),
        ("sum", pa.int64(), "x"),
        ("sum", pa.int64(), 0.5),
        ("last", pa.list_(pa.int32()), [1, 2**40]),
        ("last", pa.list_(pa.int32()), [1, 0.5]),
    ],
)
def test_a_value_that_its_field_cannot_hold_is_named_with_its_field_and_key(field: str, kind: Any, value: Any) -> None:
    schema = pa.schema([("k", pa.string()), (field, kind)])
    good, bad = Event({"k": "a", field: 1}, "e-1", 0), Event({"k": "b", field: value}, "e-2", 0)
    assert rows_of([(good, 0, "0")], schema).num_rows == 1
    with pytest.raises(ValueError, match=rf'"{field}" ') as caught:
        rows_of([(good, 0, "0"), (bad, 0, "1")], schema)
    assert repr(value) in str(caught.value)
    assert "'k': 'b'" in str(caught.value)


def test_windows_in_arrays_refuse_the_same_value() -> None:
    assert as_type([1, 2.0, None], pa.int64()).to_pylist() == [1, 2, None]
    with pytest.raises(ValueError, match=r"0\.5 \(float\), which is no bigint"):
        as_type([1, 0.5], pa.int64())
