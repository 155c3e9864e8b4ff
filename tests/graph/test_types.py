"""Types of fields that the definition says: `known_types`."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from pipelines.errors import FunctionError
from pipelines.graph.arrow_types import arrow_type
from pipelines.graph.types import known_types, parts_of, same_type
from pipelines.sources import FixedBatches
from pipelines.trident import (
    Aggregator,
    Count,
    DeltaState,
    FixedState,
    MapGet,
    Max,
    MultiReducer,
    QueryFunction,
    StateUpdater,
    Stream,
    TridentTopology,
    row_function,
)


def stream(topology: TridentTopology, name: str = "s", schema: str = "a string, b bigint") -> Stream:
    return topology.new_stream(name, FixedBatches(schema, []))


def types(made: Any) -> dict[str, str | None]:
    return known_types(made._topology.graph, made.node)


@row_function(["double", "int"])
def two(*values: Any) -> Iterator[Any]:
    yield 1.0, 1


class Adds(StateUpdater):
    keys, values = "a string", "total decimal(10,2)"

    def update_state(self, state: Any, tuples: list[tuple[Any, ...]]) -> None: ...


class Asks(QueryFunction):
    def batch_retrieve(self, state: Any, arguments: list[tuple[Any, ...]]) -> list[Any]:
        return [None] * len(arguments)


def test_types_pass_through() -> None:
    source = stream(TridentTopology("t"))
    assert types(source.filter("b > 0").shuffle().project(["b", "a"]).min_by("b")) == {"b": "bigint", "a": "string"}


def test_functions_say_their_types_and_columns_do_not() -> None:
    source = stream(TridentTopology("t"))
    assert types(source.each("a", two, ["x", "y"])) == {"a": "string", "b": "bigint", "x": "double", "y": "int"}
    assert types(source.map(two, ["x", "y"])) == {"x": "double", "y": "int"}
    assert types(source.map(lambda a, b: (a, b))) == {"a": None, "b": None}


def test_aggregators_in_python_say_their_types_and_built_in_ones_do_not() -> None:
    general = Aggregator(list, lambda state, *values: None, lambda state: state, returns=["bigint", "string"])
    grouped = stream(TridentTopology("t")).group_by("a").chained_agg()
    chain = grouped.aggregate("b", general, ["x", "y"]).aggregate(Count(), "n").chain_end()
    assert types(chain) == {"a": "string", "x": "bigint", "y": "string", "n": None}


def test_streams_that_come_together() -> None:
    topology = TridentTopology("t")
    left, right = stream(topology), stream(topology, "o", "c string, d int")
    assert types(topology.merge(left, right)) == {"a": "string", "b": None}
    assert types(topology.join(left, "a", right, "c", ["k", "x", "y"])) == {"k": "string", "x": "bigint", "y": "int"}
    kept = topology.join(left, "a", right, "c", ["p", "q", "r", "s"], mode="preserve")
    assert types(kept) == {"p": "string", "q": "bigint", "r": "string", "s": "int"}
    reducer = MultiReducer(list, lambda state, n, *values: None, lambda state: state)
    assert types(topology.multi_reduce([left, right], None, reducer, "n bigint")) == {"n": "bigint"}


def test_states() -> None:
    topology = TridentTopology("t")
    source = stream(topology)
    counts = source.group_by("a").persistent_aggregate(DeltaState("counts"), Count(), "n")
    assert types(counts.new_values_stream()) == {"a": "string", "n": None}
    updated = source.partition_persist(DeltaState("u"), ["a", "b"], Adds(), "seen date")
    assert types(updated.new_values_stream()) == {"seen": "date"}
    assert known_types(topology.graph, updated.node)["total"] == "decimal(10, 2)"
    fixed = topology.new_static_state(FixedState("fixed", "who string, n int", "who"))
    assert known_types(topology.graph, fixed.node) == {"who": "string", "n": "int"}
    asked = topology.new_query_stream("ask", "w string").state_query(counts, "w", MapGet(), "n")
    assert types(asked) == {"w": "string", "n": None}
    own = topology.new_query_stream("own", "w string").state_query(counts, "w", Asks(), "x double")
    assert types(own) == {"w": "string", "x": "double"}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("bigint", "bigint", True),
        ("decimal(10, 2)", "decimal(10,2)", True),
        ("struct<a: INT>", "struct<a:int>", True),
        (None, "int", True),
        ("int", None, True),
        ("int", "bigint", False),
        ("long", "bigint", True),
        ("integer", "int", True),
        ("struct<a int>", "struct<a:int>", True),
        ("struct<`a`: int not null>", "struct<a:int>", True),
        ("struct<decimal: int>", "struct<decimal(10,0): int>", False),
        ("map<string, decimal>", "map<string,decimal(10,0)>", True),
        ("dec(12)", "decimal(12,0)", True),
        ("decimal", "decimal(11,0)", False),
        ("timestamp_ltz", "timestamp", True),
        ("timestamp_ntz", "timestamp", False),
        ("void", "VOID", True),
        ("struct<a: int>", "struct<A: int>", False),
        ("map<string, struct<a: int>>", "map<string, struct<A: int>>", False),
        ("struct<`a b`: int>", "struct<ab: int>", False),
        ("struct<`a``b`: int>", "struct<ab: int>", False),
        ("struct<`A b`: INT>", "struct<`A b`:int>", True),
        ("struct<`not null`: int>", "struct<``: int>", False),
        ("struct<decimal decimal, time timestamp_ltz>", "struct<decimal: decimal(10,0), time: timestamp>", True),
        ("struct<a: int comment 'x: `y', B: int>", "struct<a: int, B: int not null comment 'z'>", True),
        # As Spark writes them: names that need quotes have none.
        ("struct<`a b`: int, c: decimal>", "struct<a b:int,c:decimal(10,0)>", True),
        ("struct<`a b`: int>", "struct<ab:int>", False),
        ("struct<`a b`: int>", "struct<A b:int>", False),
        ("array<struct<`x-y`: array<int>>>", "array<struct<x-y:array<int>>>", True),
    ],
)
def test_same_type(one: str | None, other: str | None, same: bool) -> None:
    assert same_type(one, other) is same


@row_function("long")
def long(value: Any) -> Iterator[Any]:
    yield value


@row_function(["integer", "struct<a int>", "timestamp_ltz"])
def spelled(value: Any) -> Iterator[Any]:
    yield 1, (1,), None


def test_a_written_type_may_be_spelled_otherwise() -> None:
    source = stream(TridentTopology("t"), schema="a string, b bigint, d decimal")
    source.each("b", long, "m bigint").each("b", spelled, "x int, y struct<a:int>, z timestamp")
    source.aggregate("d", Max(), "m decimal(10,0)")
    with pytest.raises(FunctionError, match='gives "m'):
        source.each("b", long, "m int")


@pytest.mark.parametrize(
    "kind",
    [
        "struct<a: string comment 'x, y'>",
        "struct<>",
        "decimal(40,2)",
    ],
)
def test_a_type_that_is_not_understood_is_left_to_spark(kind: str) -> None:
    assert arrow_type(kind) is None


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("struct<`a,b`: int, c: string>", (("a,b", "int"), ("c", "string"))),
        ("struct<`a<b`: int, c: map<string, int>>", (("a<b", "int"), ("c", "map<string, int>"))),
        ("struct<`a``b`: int>", (("a`b", "int"),)),
        ("struct<`a)`:array<int>,`,`:int>", (("a)", "array<int>"), (",", "int"))),
    ],
)
def test_quoted_names_in_structs_hold_anything(kind: str, fields: tuple[tuple[str, str], ...]) -> None:
    assert parts_of(kind) == ("struct", fields)
    assert arrow_type(kind) == pa.struct([(name, arrow_type(inner)) for name, inner in fields])
