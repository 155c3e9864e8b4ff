"""A window's state as bytes."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.windows.blob import dumps, loads

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.dates()
    | st.datetimes()
    | st.timedeltas()
    | st.datetimes(timezones=st.just(dt.UTC)),
    lambda inside: (
        st.lists(inside)
        | st.lists(inside).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.just("$"), inside)
        | st.sets(st.integers() | st.text())
    ),
    max_leaves=20,
)


def types(value: Any) -> Any:
    if isinstance(value, dict):
        return [(types(name), types(item)) for name, item in value.items()]
    return type(value), [types(item) for item in value] if isinstance(value, list | tuple) else None


@given(plain)
def test_plain_data_come_back_with_their_types(state: Any) -> None:
    again = loads(dumps(state))
    assert again == state
    assert types(again) == types(state)


def test_nan_and_lone_surrogates() -> None:
    assert math.isnan(loads(dumps([math.nan]))[0])
    assert loads(dumps("\ud800")) == "\ud800"


@pytest.mark.parametrize("bad", [b"", b"\x07abc"])
def test_another_version_is_refused(bad: bytes) -> None:
    with pytest.raises(ValueError, match="version"):
        loads(bad)


def test_what_is_no_plain_data_is_refused() -> None:
    with pytest.raises(TypeError, match="no plain data"):
        dumps({"x": Decimal})
    assert dumps([1] * 1000) == dumps([1] * 1000)
    assert len(dumps([1] * 1000)) < 100
