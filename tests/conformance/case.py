"""A conformance case: a topology, its batches, and what every engine must make of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipelines.sources import FixedBatches
from pipelines.trident import DeltaState, Stream, TridentTopology

Rows = list[dict[str, Any]]
Batches = list[list[tuple[Any, ...]]]


@dataclass(frozen=True)
class Case:
    """One conformance case.

    Attributes:
        rule: where it comes from.
        schema: of the one source, `s`; or of several, by stream.
        build: puts operations, states and queries on the streams, which it takes in order.
        batches: of the source, or by stream.
        states: what each state holds afterwards; rows states in commit order, within a commit by value.
        spark: whether the reference engine needs Spark for an expression.
        answers: queries to ask afterwards: name, argument tuples, rows of the answer.
    """

    rule: str
    schema: str | Mapping[str, str]
    build: Callable[..., object]
    batches: Batches | Mapping[str, Batches]
    states: dict[str, Rows]
    spark: bool = False
    answers: tuple[tuple[str, list[tuple[Any, ...]], Rows], ...] = field(default=())

    def topology(self) -> TridentTopology:
        topology = TridentTopology("conformance")
        schemas = {"s": self.schema} if isinstance(self.schema, str) else self.schema
        self.build(*(topology.new_stream(name, FixedBatches(schema, [])) for name, schema in schemas.items()))
        return topology

    def given(self) -> Mapping[str, Batches]:
        """The batches by stream."""
        return {"s": self.batches} if isinstance(self.batches, list) else self.batches


def rows(names: str, *values: tuple[Any, ...]) -> Rows:
    """`rows("a b", (1, 2))` -> `[{"a": 1, "b": 2}]`."""
    return [dict(zip(names.split(), value, strict=True)) for value in values]


def keep(stream: Stream, name: str = "out") -> object:
    """The stream's tuples as a state of rows."""
    return stream.partition_persist(DeltaState(name))


def topology_of(stream: Stream) -> TridentTopology:
    """The topology that a stream is of."""
    return stream._topology
