"""The log of a Delta table, read by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from pipelines.state.delta_log import adds


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85", "\r"])
def test_a_value_with_an_end_of_a_line_that_is_none_of_json(character: str, tmp_path: Path) -> None:
    """Delta writes most of them as they are, in the slice and in a file's least and greatest values."""
    value = f"a{character}b"
    write_deltalake(tmp_path, pa.table({"day": [value], "k": [value]}), partition_by=["day"])
    (added,) = adds(tmp_path, 0)
    assert (added["partitionValues"]["day"], json.loads(added["stats"])["minValues"]["k"]) == (value, value)
