"""The plain interpreter by itself: tables, tasks, and what it leaves to Spark."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from pipelines.errors import FieldError, FunctionError, NeedsSparkError, StateAccessError
from pipelines.graph import nodes
from pipelines.graph.plain_values import plain_list
from pipelines.planner.plain import Evaluated, PlainContext, Table, needs_spark, read, step
from pipelines.planner.plain.partitions import by_hash, entered
from pipelines.quality import warn
from pipelines.sources import FixedBatches
from pipelines.state.kinds import ROWS, TRANSACTIONAL
from pipelines.state.views import StateView
from pipelines.trident import (
    INNER,
    OUTER,
    ArrowFunction,
    Count,
    Equals,
    FirstN,
    MapGet,
    MultiReducer,
    Not,
    QueryFunction,
    RowFunction,
    SnapshotGet,
    Split,
    Stream,
    TridentTopology,
    TupleCollectionGet,
)
from tests.state.small_kinds import SmallTable


def stream() -> Stream:
    return TridentTopology("t").new_stream("s", FixedBatches("word string, n bigint", []))


def node_of(found: Any) -> nodes.Node:
    return found._topology.graph[found.node]


def table(*rows: tuple[Any, ...], tasks: tuple[int, ...] | None = None) -> Table:
    return Table(("word", "n"), ("string", "bigint"), rows, tasks)


LEFT_TO_SPARK: dict[str, Callable[[Stream], Any]] = {
    "SQL": lambda s: s.filter("n > 1"),
    "a filter over columns": lambda s: s.filter(lambda word, n: n > 1),
    "a function over columns": lambda s: s.each("n", lambda n: n + 1, "m"),
    "a map over columns": lambda s: s.map(lambda word, n: (word, n)),
    "a partition over columns": lambda s: s.partition(lambda word, n: n).parallelism_hint(2),
    "a gate": lambda s: s.gate(warn("column_values_to_not_be_null", column="n")),
    "a negated filter over columns": lambda s: s.filter(Not(lambda word, n: n > 1)),
}


def test_keys_of_maps_that_are_lists_or_dicts_become_tuples() -> None:
    rows = [({(1, 2): 3},), (None,)]
    assert read("m map<array<int>, int>", rows).rows == tuple(rows)
    at = datetime(2024, 1, 1)
    key = pa.struct([("a", pa.int32()), ("at", pa.list_(pa.timestamp("us", "UTC")))])
    maps = pa.array([[({"a": 1, "at": [at]}, {"b": [2]})]], pa.map_(key, pa.struct([("b", pa.list_(pa.int32()))])))
    assert plain_list(maps) == [{(1, (at,)): {"b": [2]}}]


@pytest.mark.parametrize("case", LEFT_TO_SPARK)
def test_what_only_spark_can_evaluate(case: str) -> None:
    node = node_of(LEFT_TO_SPARK[case](stream()))
    assert needs_spark([node])
    with pytest.raises(NeedsSparkError, match="Spark is needed to evaluate"):
        step(node, [table(("a", 1))], PlainContext(tasks={node.id: 2}))


PLAIN: dict[str, Callable[[Stream], Any]] = {
    "a built-in with a plain form": lambda s: s.each("word", Split(), "w"),
    "a built-in filter": lambda s: s.filter("n", Equals()),
    "a negated built-in filter": lambda s: s.filter("n", Not(Equals())),
    "a row function": lambda s: s.filter(RowFunction(lambda word, n: True)),
    "an aggregate": lambda s: s.group_by("word").aggregate(Count(), "c"),
    "a repartition": lambda s: s.partition_by("word"),
    "a partition by a row function": lambda s: s.partition(RowFunction(lambda word, n: n, ("int",))),
}


@pytest.mark.parametrize("case", PLAIN)
def test_what_needs_no_spark(case: str) -> None:
    node = node_of(PLAIN[case](stream()))
    assert not needs_spark([node])
    assert step(node, [table(("a", 1))], PlainContext()).fields == node.fields


def test_spark_is_not_asked_about_nothing() -> None:
    node = node_of(stream().filter("n > 1"))
    assert step(node, [table()], PlainContext()).rows == ()


def test_what_spark_gives_is_taken() -> None:
    def evaluate(given: Table, expression: Any, names: tuple[str, ...], label: str) -> Evaluated:
        assert (given.fields, names) == (("n",), ("m",))
        return Evaluated([[(10,), (11,)], []], ("bigint",))

    node = node_of(stream().each("n", lambda n: n, "m"))
    found = step(node, [table(("a", 1), ("b", 2), tasks=(1, 0))], PlainContext(evaluate=evaluate))
    assert (found.rows, found.types, found.tasks) == (
        (("a", 1, 10), ("a", 1, 11)),
        ("string", "bigint", "bigint"),
        (1, 1),
    )


def test_rows_stay_in_their_tasks() -> None:
    given = table(("a b", 1), ("", 2), ("c", 3), tasks=(2, 1, 0))
    split = step(node_of(stream().each("word", Split(), "w")), [given], PlainContext())
    assert split.tasks == (2, 2, 0)
    kept = step(node_of(stream().filter(RowFunction(lambda word, n: n > 1))), [given], PlainContext())
    assert (kept.rows, kept.tasks) == ((("", 2), ("c", 3)), (1, 0))
    assert [part.rows for part in given.by_task(3)] == [(("c", 3),), (("", 2),), (("a b", 1),)]


def test_tuples_enter_in_tasks_by_their_hash() -> None:
    read_ = read("word string, n bigint", [("a", n) for n in range(50)], tasks=3)
    assert set(read_.tasks or ()) == {0, 1, 2}
    assert read_.tasks == by_hash(read_, ("word", "n"), 3).tasks == entered(read_, 3).tasks
    assert read("word string, n bigint", [("a", 1)]).tasks is None


def test_maps_do_not_count_for_a_hash() -> None:
    given = Table(("m", "n"), ("map<string,int>", "int"), (({"a": 1}, 1), ({"b": 2}, 1)))
    assert len(set(by_hash(given, given.fields, 8).tasks or ())) == 1
    nested = Table(("p", "n"), ("struct<x:int,m:map<string,int>>", "int"), (({"x": 1, "m": {}}, 1), ({"x": 2}, 1)))
    assert len(set(by_hash(nested, nested.fields, 8).tasks or ())) == 1
    assert by_hash(given, ["m"], 5).tasks == (0, 0)


def test_batch_global_is_the_task_of_the_txid() -> None:
    node = node_of(stream().batch_global())
    for txid, task in ((0, 0), (4, 1), (5, 2)):
        found = step(node, [table(("a", 1), ("b", 2))], PlainContext(batch=txid, tasks={node.id: 3}))
        assert found.tasks == (task, task)


def test_a_task_that_is_not_chosen() -> None:
    node = node_of(stream().partition(RowFunction(lambda word, n: None if n else [], ("int",))))
    context = PlainContext(tasks={node.id: 2})
    assert step(node, [table(("a", 1))], context).tasks == (0,)
    with pytest.raises(FunctionError, match="must give one task per tuple"):
        step(node, [table(("a", 0))], context)


def test_queries_ask_a_view() -> None:
    view = StateView.of_rows(["word"], ["n", "m"], [("a", 1, 2), ("b", 3, 4)])
    context = PlainContext(view=lambda name: view, state_types=lambda name: {"m": "int", "n": "bigint"})
    topology = TridentTopology("q")
    asked = topology.new_query_stream("ask")
    given = Table(("args",), ("string",), (("b",), ("z",)))
    found = step(node_of(asked.state_query("others", "args", MapGet(), ["m", "n"])), [given], context)
    assert (found.rows, found.types) == ((("b", 4, 3), ("z", None, None)), ("string", "int", "bigint"))
    by_place = step(node_of(asked.state_query("others", "args", MapGet(), ["x", "y"])), [given], context)
    assert (by_place.rows[0], by_place.types) == (("b", 3, 4), ("string", "bigint", "int"))
    every = step(node_of(asked.state_query("others", None, TupleCollectionGet(), ["x", "y", "z"])), [given], context)
    assert every.types == ("string", None, "bigint", "int")
    assert len(every.rows) == 4
    assert every.rows[0] == ("b", "a", 1, 2)
    two, pairs = (
        topology.new_query_stream("two", "a string, b string"),
        Table(("a", "b"), ("string",) * 2, (("b", "z"),)),
    )
    with pytest.raises(FunctionError, match=r"has the keys \['word'\]; got the fields \['a', 'b'\]"):
        step(node_of(two.state_query("others", ["a", "b"], MapGet(), "n")), [pairs], context)


def test_a_query_of_another_flows_state_is_checked_when_it_is_read(tmp_path: Path) -> None:
    """As on Spark (`test_a_state_of_another_flow_that_does_not_fit`)."""
    topology = TridentTopology("q")
    asked, given = topology.new_query_stream("ask"), Table(("args",), ("string",), (("b",),))
    by_key: StateView = StateView.of_rows(["word"], ["n"], [("a", 1)])
    for function, fields, outputs, view in (
        (MapGet(), "args", ["n", "zz"], by_key),
        (TupleCollectionGet(), None, ["x", "y", "z"], by_key),
        (SnapshotGet(), None, ["n"], by_key),
    ):
        query = node_of(asked.state_query("others", fields, function, outputs))
        with pytest.raises(FunctionError, match=r"test_plain_steps.py:\d+: state \"others\" has the (keys|values)"):
            step(query, [given], PlainContext(view=lambda name, view=view: view))
    priced = StateView.of_rows(["item"], ["price", "qty"], [("b", 5, 70)])
    for function, outputs, wrong in (
        (MapGet(), ["qty", "prce"], "prce"),
        (TupleCollectionGet(), ["price", "itm", "qty"], "itm"),
        (TupleCollectionGet(), ["item", "prce"], "prce"),
    ):
        query = node_of(asked.state_query("others", "args" if type(function) is MapGet else None, function, outputs))
        with pytest.raises(
            FieldError, match=rf'state_query\("{wrong}"\): no such field; state "others" has: .*price, qty'
        ):
            step(query, [given], PlainContext(view=lambda name: priced))
    # By position, where a name is meant for its own column.
    query = node_of(asked.state_query("others", "args", MapGet(), ["last_price", "qty"]))
    assert step(query, [given], PlainContext(view=lambda name: priced)).rows == (("b", 5, 70),)
    # So does one that knew the first values, before the other flow added one.
    query = node_of(asked.state_query("others", "args", MapGet(), ["last_price"]))
    assert step(query, [given], PlainContext(view=lambda name: priced)).rows == (("b", 5),)
    query = node_of(asked.state_query("others", "args", MapGet(), ["n"]))
    with pytest.raises(FunctionError, match=r'"args string" meets "word bigint"'):
        step(query, [given], PlainContext(view=lambda name: by_key, state_types=lambda name: {"word": "bigint"}))
    state = SmallTable(tmp_path, ROWS, TRANSACTIONAL, T.StructType([T.StructField("n", T.LongType())]))
    state.commit(0, (1,), (2,))
    rows = state.table.view()
    query = node_of(asked.state_query("others", None, SnapshotGet(), "n"))
    with pytest.raises(FunctionError, match="keeps rows and has no values by key"):
        step(query, [given], PlainContext(view=lambda name: rows))
    with pytest.raises(StateAccessError, match=r"keeps rows and has no one value; use tuples\(\)"):
        rows.get()  # an own function is given no row by chance
    assert sorted(rows.tuples()) == [(1,), (2,)]


class Numbered(QueryFunction):
    """How many tuples a call answers, and the place of each."""

    returns = ("bigint", "bigint")

    def batch_retrieve(self, state: Any, arguments: list[tuple[Any, ...]]) -> list[Any]:
        return [(len(arguments), place) for place, _ in enumerate(arguments)]


def test_a_query_function_is_called_once_a_task() -> None:
    view = StateView.of_rows(["word"], ["n"], [])
    query = node_of(TridentTopology("q").new_query_stream("ask").state_query("others", "args", Numbered(), ["n", "at"]))
    context = PlainContext(tasks={query.id: 4}, view=lambda name: view)
    given = Table(("args",), ("string",), tuple((word,) for word in "abc"), (2, 0, 2))
    found = step(query, [given], context)
    assert found.rows == (("a", 2, 0), ("b", 1, 0), ("c", 2, 1))
    assert found.tasks == (2, 0, 2)


def test_all_tuples_behind_a_broadcast_come_once() -> None:
    view = StateView.of_rows(["word"], ["n"], [(f"w{n}", n) for n in range(20)])
    asked = TridentTopology("q").new_query_stream("ask").broadcast()
    query = node_of(asked.state_query("others", None, TupleCollectionGet(), ["w", "n"]))
    context = PlainContext(tasks={asked.node: 3, query.id: 3}, view=lambda name: view)
    copies = step(node_of(asked), [Table(("args",), ("string",), (("x",),))], context)
    found = step(query, [copies], context)
    assert sorted(row[2] for row in found.rows) == list(range(20))


def test_a_state_that_nobody_gives() -> None:
    query = node_of(TridentTopology("q").new_query_stream("ask").state_query("others", "args", MapGet(), "n"))
    with pytest.raises(NotImplementedError):
        step(query, [Table(("args",), ("string",), (("x",),))], PlainContext())
    with pytest.raises(NotImplementedError):
        step(node_of(stream()), [], PlainContext())


def narrow_and_wide(build: Callable[[TridentTopology, Stream, Stream], Stream]) -> Table:
    """The result of two streams whose `k` are an int and a bigint, in 16 tasks."""
    topology = TridentTopology("t")
    sides = (topology.new_stream(name, FixedBatches(f"k {name}, v string", [])) for name in ("int", "bigint"))
    node = node_of(build(topology, *sides))
    tables = [Table(("k", "v"), (kind, "string"), tuple((n, "x") for n in range(9))) for kind in ("int", "bigint")]
    return step(node, tables, PlainContext(tasks={node.id: 16}))


# As Spark: a union and a full outer join widen, in other joins the keys are those of the first side that must be there.
MEETINGS: dict[str, tuple[Callable[[TridentTopology, Stream, Stream], Stream], str]] = {
    "merge": (lambda t, a, b: t.merge(a, b), "bigint"),
    "inner join": (lambda t, a, b: t.join(a, "k", b, "k", ["k", "va", "vb"]), "int"),
    "right join": (lambda t, a, b: t.join(a, "k", b, "k", ["k", "va", "vb"], kind=(OUTER, INNER)), "bigint"),
    "full join": (lambda t, a, b: t.join(a, "k", b, "k", ["k", "va", "vb"], kind=OUTER), "bigint"),
}


@pytest.mark.parametrize("case", MEETINGS)
def test_whole_numbers_of_two_widths_meet(case: str) -> None:
    build, kind = MEETINGS[case]
    found = narrow_and_wide(build)
    assert found.type_of("k") == kind
    if case != "merge":
        assert found.tasks == by_hash(found, ("k",), 16).tasks


def test_groups_of_two_widths_are_dealt_as_the_wider() -> None:
    reducer = MultiReducer(lambda k: k, lambda k, *_: k, lambda k, _: k, returns="bigint")
    found = narrow_and_wide(lambda t, a, b: t.multi_reduce([a.group_by("k"), b.group_by("k")], None, reducer, "k"))
    assert found.tasks == by_hash(found, ("k",), 16).tasks


def test_first_n_keeps_the_types_of_its_inputs() -> None:
    node = node_of(stream().aggregate(["n", "word"], FirstN(1, "n"), ["least", "its"]))
    found = step(node, [table(("a", 2), ("b", 1))], PlainContext())
    assert (found.rows, found.types) == (((1, "b"),), ("bigint", "string"))


TYPED = "m map<string,int>, d decimal(10,2), l array<int>, s struct<a: int>, at timestamp, naive timestamp_ntz"


@pytest.mark.parametrize("empty", [False, True])
def test_arrow_functions_get_arrays_of_their_inputs_types(empty: bool) -> None:
    """As on Spark, whatever the values are, also where all are null."""
    seen: list[pa.DataType] = []

    def noted(*arrays: pa.Array) -> pa.Array:
        seen.extend(array.type for array in arrays)
        return arrays[0]

    rows = [({"a": 1}, Decimal("1.5"), [1], {"a": 1}, datetime(2024, 5, 1), datetime(2024, 5, 1))]
    given = read(TYPED, [(None,) * 6] if empty else rows)
    s = TridentTopology("t").new_stream("s", FixedBatches(TYPED, []))
    found = step(
        node_of(s.each(list(given.fields), ArrowFunction(noted, ("map<string,int>",)), "o")), [given], PlainContext()
    )
    assert list(map(str, seen)) == [
        "map<string, int32>",
        "decimal128(10, 2)",
        "list<item: int32>",
        "struct<a: int32>",
        "timestamp[us, tz=UTC]",
        "timestamp[us]",
    ]
    assert found.column("o") == given.column("m")


def of_array(array: pa.Array, kind: str) -> list[Any]:
    """What an Arrow function that gives an array leads to, declared as a type."""
    node = node_of(stream().each("n", ArrowFunction(lambda n: array, (kind,)), "o"))
    return step(node, [table(("a", 1))], PlainContext()).column("o")


def test_what_arrow_functions_give_are_plain_values_of_their_declared_types() -> None:
    noon = datetime(2024, 5, 1, 12)
    assert of_array(pa.array([noon], pa.timestamp("us", "Asia/Tokyo")), "timestamp") == [noon]
    assert of_array(pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())), "map<string,int>") == [{"a": 1}]
    (whole,) = of_array(pa.array([1.0]), "bigint")
    assert (whole, type(whole)) == (1, int)
    assert of_array(pa.array([noon]), "string") == [str(noon) + ".000000"]
    assert of_array(pa.array(["x"]), "varchar(5)") == ["x"]
    with pytest.raises(FunctionError, match="truncated"):
        of_array(pa.array([1.5]), "bigint")


def test_decimals_of_more_digits_than_their_type_go_to_arrow_functions_as_they_are() -> None:
    s = TridentTopology("t").new_stream("s", FixedBatches("d decimal(10,2)", []))
    node = node_of(s.each("d", ArrowFunction(lambda d: d, ("decimal(10,3)",)), "o"))
    given = Table(("d",), ("decimal(10,2)",), ((Decimal("1.555"),),))
    assert step(node, [given], PlainContext()).column("o") == [Decimal("1.555")]
