"""What persists commit and state queries give on Spark, over states of a small lake."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from pyspark.errors import ArithmeticException
from pyspark.sql import SparkSession
from pyspark.sql.types import DecimalType

from pipelines.aggregators import Average, CombinerAggregator, Count, Max, ReducerAggregator, Sum
from pipelines.errors import FieldError, FunctionError
from pipelines.graph import nodes
from pipelines.sources import FixedBatches
from pipelines.state.views import StateView
from pipelines.trident import DeltaState, FixedState, MapGet, SnapshotGet, Stream, TridentState, TridentTopology
from pipelines.trident.user_code import QueryFunction, StateUpdater, TupleCollectionGet
from tests.planner.plans import Run, frame_of, rows_of, source

SCHEMA = "k string, n bigint"
ROWS: list[tuple[Any, ...]] = [("a", 1), ("b", 2), ("a", 3), (None, 4), (None, 5), ("c", 6)]
TOTAL = CombinerAggregator(lambda n: n, lambda a, b: a + b, lambda: 0)
JOINED = ReducerAggregator(lambda: "", lambda text, n: f"{text}{n}", returns="string")


class Held:
    """A state's table as the plan needs it: rows in memory."""

    layout = "map"

    def __init__(self, spark: SparkSession, schema: str, keys: int, rows: list[tuple[Any, ...]]) -> None:
        self._frame = source(spark, schema, rows)
        self._rows, self._keys = rows, keys
        self.declared = self

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self._frame.columns[: self._keys])

    def exists(self) -> bool:
        return True

    def frame(self, spark: SparkSession, version: int | None = None) -> Any:
        return self._frame

    def view(self, version: int | None = None) -> StateView:
        return StateView.of_rows(self.keys, self._frame.columns[self._keys :], self._rows)


class Missing:
    def exists(self) -> bool:
        return False


def stream() -> Stream:
    return TridentTopology("t").new_stream("s", FixedBatches(SCHEMA, []))


def committed(
    spark: SparkSession, state: TridentState, held: Any = None, slices: list[str] | None = None
) -> list[tuple[Any, ...]]:
    """What the persist's frame holds."""
    run = Run(("x", "y") if slices else None, **{state.name: (held or Missing(), None)})
    frames = {"s": source(spark, SCHEMA, ROWS, slices=slices)}
    return rows_of(Stream(state.source._topology, state.node), frames, run)


@pytest.mark.slow
def test_map_states_take_new_values(spark: SparkSession) -> None:
    held = Held(spark, "k string, v bigint", 1, [("a", 10), (None, 20), ("z", 5), ("b", None)])
    text = Held(spark, "k string, v string", 1, [("a", "x"), (None, "y"), ("z", "q")])
    state = DeltaState("m", layout="map")
    for aggregator in (TOTAL, Sum()):
        fresh = committed(spark, stream().group_by("k").persistent_aggregate(state, "n", aggregator, "v"))
        assert fresh == [("a", 4), ("b", 2), ("c", 6), (None, 9)]
        grown = committed(spark, stream().group_by("k").persistent_aggregate(state, "n", aggregator, "v"), held)
        assert grown == [("a", 14), ("b", 2), ("c", 6), (None, 29)]
    reduced = stream().group_by("k").persistent_aggregate(state, "n", JOINED, "v")
    assert committed(spark, reduced, text) == [("a", "x13"), ("b", "2"), ("c", "6"), (None, "y45")]
    several = Held(spark, "k string, c bigint, high bigint", 1, [("a", 1, 100), ("b", 1, None)])
    both = stream().group_by("k").persistent_aggregate(state, [Count("c"), Max("n", "high")])
    assert committed(spark, both, several) == [("a", 3, 100), ("b", 2, 2), ("c", 1, 6), (None, 2, 5)]
    with pytest.raises(FunctionError, match="layout map"):
        committed(spark, stream().group_by("k").persistent_aggregate(state, "n", Average(), "v"))


def test_a_total_of_decimals_keeps_its_type(spark: SparkSession) -> None:
    """Spark's sum has ten digits more than what is summed: with each batch another type than the table's."""
    rows, most = [("a", Decimal("1.25")), ("b", Decimal("-0.50"))], Decimal("9" * 18 + ".99")
    schema = "k string, n decimal(10,2)"
    s = TridentTopology("t").new_stream("s", FixedBatches(schema, []))
    state = s.group_by("k").persistent_aggregate(DeltaState("m", layout="map"), "n", Sum(), "v")
    total = Stream(s._topology, state.node)

    def grown(a: Decimal) -> Any:
        held = Held(spark, "k string, v decimal(20,2)", 1, [("a", a)])
        return frame_of(total, {"s": source(spark, schema, rows)}, Run(m=(held, None)))

    frame = grown(most - Decimal("1.25"))
    assert frame.schema["v"].dataType == DecimalType(20, 2)
    assert sorted(map(tuple, frame.collect())) == [("a", most), ("b", Decimal("-0.50"))]
    with pytest.raises(ArithmeticException):
        grown(most).collect()


def test_map_states_without_keys(spark: SparkSession) -> None:
    held = Held(spark, "v bigint", 0, [(100,)])
    for aggregator in (TOTAL, Sum()):
        state = stream().persistent_aggregate(DeltaState("m", layout="map"), "n", aggregator, "v")
        assert committed(spark, state) == [(21,)]
        assert committed(spark, state, held) == [(121,)]
        empty = stream().filter("n > 9").persistent_aggregate(DeltaState("m", layout="map"), "n", aggregator, "v")
        assert committed(spark, empty, held) == [], "an empty batch touches nothing"
    sliced = committed(
        spark, stream().persistent_aggregate(DeltaState("m"), "n", TOTAL, "v"), held, ["x", "y", "x", "y", "x", "y"]
    )
    assert sliced == [(109, "x"), (112, "y")]


class Keeper(StateUpdater):
    """Adds the numbers of each key, forgets the key "z" and key "b", and says what was there before."""

    keys, values = "k string", "n bigint"

    def update_state(self, state: Any, tuples: list[tuple[Any, ...]]) -> Iterator[tuple[str, int]]:
        for k, n in tuples:
            if k == "b":
                state.multi_remove([("b",), ("z",)])
            else:
                [before] = state.multi_get([(k,)])
                state.multi_put([(k,)], [(before or 0) + n])
                yield k, before


def test_updaters(spark: SparkSession) -> None:
    state = stream().partition_persist(DeltaState("u"), updater=Keeper(), outputs="k string, n bigint")
    held = Held(spark, "k string, n bigint", 1, [("a", 10), ("z", 5)])
    run = Run(u=(held, None))
    frames = {"s": source(spark, SCHEMA, ROWS)}
    frame = frame_of(Stream(state.source._topology, state.node), frames, run)
    assert frame.columns == ["_op", "k", "n", "_out_k", "_out_n"]
    assert sorted(map(tuple, frame.collect()), key=repr) == sorted(
        [
            *[("put", "a", 14, None, None), ("put", None, 9, None, None), ("put", "c", 6, None, None)],
            *[("remove", "b", None, None, None), ("remove", "z", None, None, None)],
            *[("emit", None, None, "a", 10), ("emit", None, None, "a", 11), ("emit", None, None, None, None)],
            *[("emit", None, None, None, 4), ("emit", None, None, "c", None)],
        ],
        key=repr,
    )
    assert rows_of(state.new_values_stream(), frames, run) == [
        ("a", 10),
        ("a", 11),
        ("c", None),
        (None, 4),
        (None, None),
    ]


def test_new_values(spark: SparkSession) -> None:
    held = Held(spark, "k string, v bigint", 1, [("a", 14), (None, 29), ("z", 5), ("b", 2), ("c", 6)])
    run, frames = Run(m=(held, 3)), {"s": source(spark, SCHEMA, ROWS)}
    grouped = stream().group_by("k").persistent_aggregate(DeltaState("m"), "n", Sum(), "v")
    assert rows_of(grouped.new_values_stream(), frames, run) == [("a", 14), ("b", 2), ("c", 6), (None, 29)]
    whole = stream().persistent_aggregate(DeltaState("m"), "n", Sum(), "v")
    one = Run(m=(Held(spark, "v bigint", 0, [(121,)]), 3))
    assert rows_of(whole.new_values_stream(), frames, one) == [(121,)]
    assert rows_of(whole.new_values_stream(), {"s": frames["s"].where("n > 9")}, one) == []
    kept = stream().partition_persist(DeltaState("m"), "n")
    assert rows_of(kept.new_values_stream(), frames, run) == [(n,) for _, n in ROWS]


def test_a_state_of_another_flow_that_does_not_fit(spark: SparkSession) -> None:
    run, frames = Run(q=(Held(spark, "k string, v int", 1, [("a", 1)]), None)), {"s": source(spark, SCHEMA, ROWS)}
    with pytest.raises(FunctionError, match=r"has the keys \['k'\]; got the fields \['k', 'n'\]"):
        rows_of(stream().state_query("q", ["k", "n"], MapGet(), "out"), frames, run)
    with pytest.raises(FunctionError, match=r"has the values \['v'\]; got the outputs \['x', 'y'\]"):
        rows_of(stream().state_query("q", "k", MapGet(), ["x", "y"]), frames, run)
    with pytest.raises(FunctionError, match='"n bigint" meets "k string"'):
        rows_of(stream().state_query("q", "n", MapGet(), "out"), frames, run)
    two = Run(q=(Held(spark, "k string, v int, w int", 1, [("a", 1, 2)]), None))
    with pytest.raises(FieldError, match=r'"wrong"\): no such field; state "q" has: v, w'):
        rows_of(stream().state_query("q", "k", MapGet(), ["w", "wrong"]), frames, two)
    whole = Run(q=(Held(spark, "v int", 0, [(1,)]), None))
    with pytest.raises(FunctionError, match="has the keys"):
        rows_of(stream().state_query("q", "k", MapGet(), "out"), frames, whole)


def test_a_value_that_another_flow_adds_stops_no_asker(spark: SparkSession) -> None:
    by_position = stream().state_query("q", "k", MapGet(), "p")
    every = stream().state_query("q", None, TupleCollectionGet(), ["own", "p"])
    partly = stream().project("n").state_query("q", None, TupleCollectionGet(), ["k", "p"])
    frames = {"s": source(spark, SCHEMA, [("a", 1)])}
    held = Run(q=(Held(spark, "k string, v int", 1, [("a", 1)]), None))
    evolved = Run(q=(Held(spark, "k string, v int, w int", 1, [("a", 1, 2)]), None))
    for run in (held, evolved):
        assert rows_of(by_position, frames, run) == [("a", 1, 1)]
        assert rows_of(every, frames, run) == [("a", 1, "a", 1)]
    # Of names among others the start's plan alone makes sure, not each batch.
    assert rows_of(partly, frames, held) == [(1, "a", 1)]
    with pytest.raises(FieldError):
        rows_of(partly, frames, evolved)
    evolved.checked = True  # type: ignore[attr-defined]
    assert rows_of(partly, frames, evolved) == [(1, "a", 1)]


class Twice(QueryFunction):
    """A row for each of the state's value, twice where it is even, none where there is nothing."""

    returns = "bigint"

    def batch_retrieve(self, state: Any, arguments: list[tuple[Any, ...]]) -> list[Any]:
        return [(found, len(arguments)) for found in state.multi_get(arguments)]

    def execute(self, arguments: tuple[Any, ...], result: Any) -> Iterator[tuple[Any, ...]]:
        found, count = result
        if found is not None:
            yield from [(found * 100 + count,)] * (2 - found % 2)


@pytest.mark.parametrize("kind", ["table", "rows in code"])
def test_state_queries(spark: SparkSession, kind: str) -> None:
    rows = [("a", 1), (None, 2)]
    run = Run(q=(Held(spark, "key string, v int", 1, rows), None))
    frames = {"s": source(spark, SCHEMA, ROWS[:4])}

    def queried(fields: Any, function: Any, outputs: Any) -> list[tuple[Any, ...]]:
        s = stream()
        state: Any = "q"
        if kind != "table":
            state = s._topology.new_static_state(FixedState("q", "key string, v int", "key", rows))
        return rows_of(s.state_query(state, fields, function, outputs), frames, run)

    assert queried("k", MapGet(), "out") == [("a", 1, 1), ("a", 3, 1), ("b", 2, None), (None, 4, 2)]
    assert queried("k", Twice(), "out bigint") == [("a", 1, 104), ("a", 3, 104), (None, 4, 204), (None, 4, 204)]
    assert len(queried(None, TupleCollectionGet(), ["key", "v"])) == 8
    assert queried(None, TupleCollectionGet(), ["x", "y"])[:2] == [("a", 1, "a", 1), ("a", 1, None, 2)]


def test_all_of_a_state_by_position_are_its_keys_first(spark: SparkSession) -> None:
    s, frames = stream(), {"s": source(spark, SCHEMA, ROWS[:1])}
    state = s._topology.new_static_state(FixedState("q", "v int, key string", "key", [(1, "a")]))
    assert rows_of(s.state_query(state, None, TupleCollectionGet(), ["x", "y"]), frames) == [("a", 1, "a", 1)]


def test_queries_of_one_value_and_by_slice(spark: SparkSession) -> None:
    s = stream()
    one = s._topology.new_static_state(FixedState("one", "v int", (), [(7,)]))
    frames = {"s": source(spark, SCHEMA, ROWS, slices=["x", "y"] * 3)}
    assert rows_of(s.state_query(one, None, SnapshotGet(), "v").project("v"), frames, Run(("x", "y"))) == [
        *[(7, "x")] * 3,
        *[(7, "y")] * 3,
    ]
    some = s._topology.new_static_state(FixedState("some", "k string, v int", "k", [("a", 1), ("c", 3)]))
    asked = s.group_by("k").state_query(some, "k", Twice(), "out")
    assert rows_of(asked.parallelism_hint(1), frames, Run(("x", "y"))) == [
        ("a", 1, 103, "x"),
        ("a", 3, 103, "x"),
        ("c", 6, 303, "y"),
    ], "each slice asks by itself"
    assert isinstance(s._topology.graph[asked.node], nodes.StateQueryNode)
