"""Tables as Dagster shows them."""

from __future__ import annotations

import dagster as dg
import pyarrow as pa

from assets.events import table_metadata


def test_columns_as_dagsters() -> None:
    schema = pa.schema([pa.field("line", pa.string()), pa.field("n", pa.int32(), nullable=False)])
    (line, n) = table_metadata.column_schema(schema).columns
    assert (line.name, line.type, line.constraints.nullable) == ("line", "string", True)
    assert (n.name, n.type, n.constraints.nullable) == ("n", "int32", False)


def test_lineage_as_dagsters_and_as_a_table() -> None:
    origins = {"n_sum": (("trips", "n"),), "trips": (), "both": (("trips", "a"), ("lines", "b"))}
    keys = {"trips": dg.AssetKey(["sources", "trips"]), "lines": dg.AssetKey("lines")}
    found = table_metadata.column_lineage(origins, keys).deps_by_column
    assert found["n_sum"] == [dg.TableColumnDep(keys["trips"], "n")]
    assert found["trips"] == []
    assert {dep.asset_key for dep in found["both"]} == {keys["trips"], keys["lines"]}
    assert "| trips | (counted) |" in table_metadata.lineage_table(origins)
    assert "| both | trips.a, lines.b |" in table_metadata.lineage_table(origins)
