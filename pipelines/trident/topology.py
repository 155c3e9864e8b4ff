"""TridentTopology: where a topology begins."""

from __future__ import annotations

from typing import Any

from pipelines.errors import BadNameError, DefinitionError
from pipelines.graph import nodes
from pipelines.graph.expressions import fields_of_sql
from pipelines.graph.fields import added, checked_name, parse_ddl, require
from pipelines.trident.stream import Stream


class TridentTopology:
    """A directed graph of spouts, operations and states.

    Args:
        name: the flow's name, `[a-z][a-z0-9_]*`; checkpoints, quarantine and Dagster assets carry it.
        description: one sentence for people.

    Raises:
        BadNameError: if the name is not legal.
    """

    def __init__(self, name: str, description: str = "") -> None:
        self.name = checked_name("topology", name)
        self.description = description
        self.graph = nodes.Graph()
        self._streams: set[str] = set()
        self._states: set[str] = set()
        self._gates: set[str] = set()

    def new_stream(self, name: str, source: Any, *, slice_by: str | None = None) -> Stream:
        """A stream of the batches of a source.

        Args:
            name: the stream's name, unique in the topology (Storm let two spouts share one).
            source: one of `pipelines.sources`, or anything with `fields` and the methods of `Source`.
            slice_by: SQL over the source's fields that gives each row's slice (usually a date); it makes the states
                of this stream backfillable slice by slice.

        Raises:
            BadNameError: for a name that is not legal or is taken.
            FieldError: if `slice_by` names a field that the source does not have.
        """
        fields = added("new_stream", tuple(source.fields), ())
        if slice_by is not None:
            require(f"new_stream {name} slice_by", fields_of_sql("slice_by", slice_by), fields)
        return self._spout(nodes.SpoutNode, name, fields, source=source, slice_by=slice_by)

    def new_query_stream(self, name: str, schema: str = "args string") -> Stream:
        """A stream that queries enter (the DRPC use): each query is a batch of its own, its arguments are the fields.

        Args:
            name: the query's name, for `Runtime.query` and `tridelta query`.
            schema: the arguments as DDL, e.g. `"args string"`.
        """
        fields = tuple(column for column, _ in parse_ddl(schema))
        return self._spout(nodes.QuerySpoutNode, name, fields, schema=schema)

    def _spout(
        self, kind: type[nodes.SpoutNode] | type[nodes.QuerySpoutNode], name: str, fields: tuple[str, ...], **more: Any
    ) -> Stream:
        checked_name("stream", name)
        if name in self._streams:
            raise BadNameError("stream", name, "is taken by another stream of this topology")
        self._streams.add(name)
        node = kind(
            id=self.graph.next_id(),
            parents=(),
            fields=fields,
            name=name,
            at=nodes.CodeLocation.of_caller(),
            stream=name,
            **more,
        )
        return Stream(self, self.graph.add(node).id)

    def claim_state(self, name: str) -> None:
        """A state has one writer: two would mix their txids."""
        if name in self._states:
            raise BadNameError("state", name, "is written by another operation of this topology")
        self._states.add(name)

    def claim_gate(self, name: str) -> None:
        checked_name("gate", name)
        if name in self._gates:
            raise BadNameError("gate", name, "is taken by another gate of this topology")
        self._gates.add(name)

    def next_gate_name(self) -> str:
        """`gate<n>` with the next number that is free."""
        number = len(self._gates) + 1
        while f"gate{number}" in self._gates:
            number += 1
        return f"gate{number}"

    @property
    def spouts(self) -> tuple[nodes.SpoutNode, ...]:
        return tuple(node for node in self.graph if isinstance(node, nodes.SpoutNode))

    @property
    def queries(self) -> dict[str, nodes.QuerySpoutNode]:
        """Query streams by name."""
        return {node.stream: node for node in self.graph if isinstance(node, nodes.QuerySpoutNode)}

    @property
    def persists(self) -> tuple[nodes.PersistNode, ...]:
        return tuple(node for node in self.graph if isinstance(node, nodes.PersistNode))

    def spout_of(self, node_id: int) -> nodes.Node:
        """The spout that leads to a node."""
        found = [n for n in self.graph.ancestors(node_id) if isinstance(n, nodes.SpoutNode | nodes.QuerySpoutNode)]
        if len(found) != 1:
            raise DefinitionError(f"node {node_id} of {self.name} has {len(found)} sources; expected one")
        return found[0]

    def build(self) -> Any:
        """The plan of this topology: bolts, spouts, batch groups, lineage, `to_mermaid()`.

        Raises:
            DefinitionError: if the topology has no stream.
        """
        from pipelines.planner import TopologyPlan

        return TopologyPlan.of(self)
