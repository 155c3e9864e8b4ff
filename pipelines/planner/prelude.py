"""The context of the part of a plan that runs in a stream itself, before there are batches: functions and windows alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.errors import DefinitionError
from pipelines.graph import events
from pipelines.windows.signature import signature

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from pipelines.graph import nodes
    from pipelines.state.table import StateTable


class StreamContext:
    """Refuses what needs a batch; who builds the graph puts a channel before it."""

    slices: tuple[str, ...] | None = None

    def __init__(self) -> None:
        self.taken: dict[str, dict[str, str]] = {}

    def takes(self, node: nodes.WindowNode, types: Mapping[str, str]) -> None:
        """Keep what a window takes in: fields and types, by its signature and the stream that it belongs to."""
        of = signature(node.operation, node.context.partition, node.context.prefix).hex()
        self.taken[of] = {name: kind for name, kind in types.items() if name not in events.COLUMNS}

    def gate(self, node: nodes.GateNode, frame: DataFrame) -> DataFrame:
        raise DefinitionError(f"{node.label} at {node.at} cannot stand before windows of the same query")

    def shared(self, node: nodes.Node, frame: DataFrame) -> DataFrame:
        return frame

    def state(self, name: str, behind: bool = True) -> tuple[StateTable, int | None]:
        raise DefinitionError(f'state "{name}" cannot be queried before windows of the same query')
