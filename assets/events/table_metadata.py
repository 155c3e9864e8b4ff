"""The metadata of a table: its columns, where they come from, what wrote it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg

from assets.events import markdown
from pipelines.places.location import Place

if TYPE_CHECKING:
    import pyarrow as pa

Origins = Mapping[str, tuple[tuple[str, str], ...]]
"""The origins of each column: (stream or state, column)."""


def column_schema(schema: pa.Schema) -> dg.TableSchema:
    """Return an Arrow schema as Dagster's."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(field.name, str(field.type), constraints=dg.TableColumnConstraints(nullable=field.nullable))
            for field in schema
        ]
    )


def column_lineage(origins: Origins, keys: Mapping[str, dg.AssetKey]) -> dg.TableColumnLineage:
    """Return the graph's lineage as Dagster's; `keys` gives the asset of each stream and state."""
    return dg.TableColumnLineage(
        {
            column: [dg.TableColumnDep(keys[origin], field) for origin, field in sources if origin in keys]
            for column, sources in origins.items()
        }
    )


def lineage_table(origins: Origins) -> str:
    """Return the lineage as markdown: the open-source UI keeps column lineage but has no view of it."""
    return markdown.table(
        ["column", "comes from"],
        [
            {"column": column, "comes from": ", ".join(f"{origin}.{field}" for origin, field in sources) or "(counted)"}
            for column, sources in origins.items()
        ],
    )


def plan_metadata(svg: str) -> dg.MarkdownMetadataValue:
    """Return a plan as a picture: Dagster's UI draws no Mermaid."""
    return dg.MetadataValue.md(f"![plan](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})")


def definition_metadata(name: str, path: Place, origins: Origins, plan: dg.MarkdownMetadataValue) -> dict[str, Any]:
    """Return the facts about a state's table that are known before anything ran."""
    return {
        "dagster/table_name": f"lake.{name}",
        "path": dg.MetadataValue.path(str(path)),
        "lineage": dg.MetadataValue.md(lineage_table(origins)),
        "plan": plan,
    }
