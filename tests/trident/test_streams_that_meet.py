"""Definition of merge, join, multi_reduce, states and queries: what is refused at its line (Trident rules 1, 2, 8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from pipelines.errors import (
    BadNameError,
    DefinitionError,
    DuplicateFieldError,
    FieldError,
    FunctionError,
    MixedSpoutsError,
)
from pipelines.graph import nodes
from pipelines.sources import FixedBatches
from pipelines.trident import (
    INNER,
    LOG,
    MAP,
    NON_TRANSACTIONAL,
    OPAQUE,
    OUTER,
    PRESERVE,
    ROWS,
    Average,
    ColumnFunction,
    CombinerAggregator,
    Count,
    DeltaState,
    Equals,
    FixedState,
    MapGet,
    MultiReducer,
    Not,
    QueryFunction,
    ReducerAggregator,
    StateUpdater,
    Stream,
    Sum,
    TridentTopology,
    TupleCollectionGet,
    mixed,
)


class Streams:
    """A topology with two sources' streams and a query's."""

    def __init__(self) -> None:
        self.topology = TridentTopology("t")
        self.left = self.topology.new_stream("left", FixedBatches("k string, v bigint", []))
        self.right = self.topology.new_stream("right", FixedBatches("x string, v bigint", []))
        self.query = self.topology.new_query_stream("ask", "k string, v bigint")

    def join(self, *args: Any, **how: Any) -> Stream:
        return self.topology.join(self.left, "k", self.right, "x", *args, **how)

    def counts(self, **how: Any) -> Any:
        return self.left.group_by("k").persistent_aggregate(DeltaState("counts", **how), Count(), "n")


def reducer(returns: Any = "bigint") -> MultiReducer:
    return MultiReducer(lambda: 0, lambda state, stream, *values: state, lambda state: state, returns=returns)


class Idle(StateUpdater):
    keys, values = "k string", "v bigint"


class Latest(Idle):
    def update_state(self, state: Any, tuples: list[tuple[Any, ...]]) -> None: ...


class Bare(StateUpdater):
    def update_state(self, state: Any, tuples: list[tuple[Any, ...]]) -> None: ...


class OwnSum(Sum):
    pass


class OwnAverage(Average):
    pass


class Doubled(CombinerAggregator):
    def finish(self, value: int) -> int:
        return 2 * value


class NoCall(ColumnFunction):
    pass


class Mute(QueryFunction):
    returns = "bigint"


class Ask(Mute):
    returns = None

    def batch_retrieve(self, state: Any, arguments: list[tuple[Any, ...]]) -> list[Any]:
        return [None] * len(arguments)


WRONG: dict[str, Callable[[Streams], Any]] = {
    "merge of nothing": lambda s: s.topology.merge(),
    "merge of other numbers of fields": lambda s: s.topology.merge(s.left, s.right.project("x")),
    "merge, other number of names": lambda s: s.topology.merge(s.left, s.right, outputs="k"),
    "merge of no stream": lambda s: s.topology.merge(s.left, "right"),
    "merge of grouped streams": lambda s: s.topology.merge(s.left.group_by("k"), s.right),
    "merge of another topology's": lambda s: s.topology.merge(s.left, Streams().right),
    "join of one": lambda s: s.topology.join([s.left], ["k"], ["k", "v"]),
    "join, too few outputs": lambda s: s.join(["k", "a"]),
    "join, outputs of the other mode": lambda s: s.join(["k", "a", "b"], mode=PRESERVE),
    "join, no such mode": lambda s: s.join(["k", "a", "b"], mode="wide"),
    "join, no such kind": lambda s: s.join(["k", "a", "b"], kind="left"),
    "join, too few kinds": lambda s: s.join(["k", "a", "b"], kind=[INNER]),
    "join, too many kinds": lambda s: s.join(["k", "a", "b"], kind=mixed(INNER, OUTER, OUTER)),
    "join on different numbers of fields": lambda s: s.topology.join(s.left, ["k", "v"], s.right, "x", ["k", "a", "b"]),
    "join on nothing": lambda s: s.topology.join(s.left, [], s.right, [], ["a", "b", "c", "d"]),
    "join without fields": lambda s: s.topology.join([s.left, s.right], ["k"], ["k", "a", "b"]),
    "join of two arguments": lambda s: s.topology.join(s.left, s.right),
    "join of something named": lambda s: s.join(["k", "a", "b"], how="inner"),
    "multi_reduce of no reducer": lambda s: s.topology.multi_reduce([s.left, s.right], None, Count(), "n"),
    "multi_reduce of a reducer without parts": lambda s: MultiReducer(lambda: 0),
    "multi_reduce of both sorts": lambda s: s.topology.multi_reduce(
        [s.left.group_by("k"), s.right], None, reducer(), "n"
    ),
    "multi_reduce, inputs of one": lambda s: s.topology.multi_reduce([s.left, s.right], ["v"], reducer(), "n"),
    "multi_reduce, other groups": lambda s: s.topology.multi_reduce(
        [s.left.group_by("k"), s.right.group_by(["x", "v"])], None, reducer(), "n"
    ),
    "multi_reduce of untold types": lambda s: s.topology.multi_reduce([s.left], None, reducer(None), "n"),
    "multi_reduce without outputs": lambda s: s.topology.multi_reduce([s.left], None, reducer(), []),
    "static state of a name": lambda s: s.topology.new_static_state(cast(Any, "prices")),
    "new values of a static state": lambda s: s.topology.new_static_state(DeltaState("x")).new_values_stream(),
    "new values of an updater without outputs": lambda s: s.left.partition_persist(
        DeltaState("x"), None, Latest()
    ).new_values_stream(),
    "persist of a query": lambda s: s.query.group_by("k").persistent_aggregate(DeltaState("x"), Count(), "n"),
    "persist of a query's tuples": lambda s: s.query.filter("v > 1").partition_persist(DeltaState("x")),
    "persist of a query by an updater": lambda s: s.query.partition_persist(DeltaState("x"), None, Latest()),
    "persist of no field": lambda s: s.left.project([]).partition_persist(DeltaState("x")),
    "persist into a fixed state": lambda s: s.left.partition_persist(cast(Any, FixedState("x", "k string"))),
    "updater without columns": lambda s: s.left.partition_persist(DeltaState("x"), None, Bare()),
    "updater of untold types": lambda s: s.left.partition_persist(DeltaState("x"), None, Latest(), "n"),
    "outputs without an updater": lambda s: s.left.partition_persist(DeltaState("x"), None, None, "n bigint"),
    "updater into rows": lambda s: s.left.partition_persist(DeltaState("x", layout=ROWS), None, Latest()),
    "updater into a log": lambda s: s.left.partition_persist(DeltaState("x", layout=LOG), None, Latest()),
    "rows into a map": lambda s: s.left.partition_persist(DeltaState("x", layout=MAP)),
    "aggregate into rows": lambda s: s.counts(layout=ROWS),
    "reducer into a log": lambda s: s.left.persistent_aggregate(
        DeltaState("x", layout=LOG), "v", ReducerAggregator(int, max), "n"
    ),
    "combiner in Python into a log": lambda s: s.left.persistent_aggregate(
        DeltaState("x", layout=LOG), "v", CombinerAggregator(int, max, int), "n"
    ),
    "average into a map": lambda s: s.left.persistent_aggregate(DeltaState("x", layout=MAP), "v", Average(), "n"),
    "average beside a reducer": lambda s: s.left.persistent_aggregate(
        DeltaState("x"), [Average("v", "a"), ReducerAggregator(int, max, field="v", output="m")]
    ),
    "a user's kind of sum into a log": lambda s: s.left.persistent_aggregate(
        DeltaState("x", layout=LOG), "v", OwnSum(), "n"
    ),
    "a user's kind of average": lambda s: s.left.persistent_aggregate(DeltaState("x"), "v", OwnAverage(), "n"),
    "a combiner that finishes its values": lambda s: s.left.persistent_aggregate(
        DeltaState("x"), "v", Doubled(int, max, int), "n"
    ),
    "function that does nothing": lambda s: s.left.each("k", NoCall(), "n"),
    "query that answers nothing": lambda s: s.left.state_query(s.counts(), "k", Mute(), "n"),
    "query of the base class": lambda s: s.left.state_query("others", "k", QueryFunction(), "n bigint"),
    "updater that updates nothing": lambda s: s.left.partition_persist(DeltaState("x"), None, Idle()),
    "query of untold types": lambda s: s.left.state_query(s.counts(), "k", Ask(), "n"),
    "query without outputs": lambda s: s.left.state_query(s.counts(), "k", Ask(), []),
    "a source that is none": lambda s: s.topology.new_stream("more", [("a",)]),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_used_there(case: str) -> None:
    with pytest.raises(FunctionError):
        WRONG[case](Streams())


FOREIGN: dict[str, tuple[Callable[[Streams], Any], str]] = {
    "join": (lambda s: s.topology.join(s.left, "k", s.right, "v", ["k", "a", "b"]), '"k string" meets "v bigint"'),
    "merge": (lambda s: s.topology.merge(s.left, s.right.project(["v", "x"])), '"k string" meets "v bigint"'),
    "multi_reduce": (
        lambda s: s.topology.multi_reduce([s.left.group_by("k"), s.right.group_by("v")], None, reducer(), "n"),
        '"k string" meets "v bigint"',
    ),
    "filter": (lambda s: s.left.filter(["k", "v"], Equals()), '"k string" meets "v bigint"'),
    "negated filter": (lambda s: s.left.filter(Not(Not(Equals()))), '"k string" meets "v bigint"'),
    "query": (lambda s: s.left.state_query(s.counts(), "v", MapGet(), "n"), '"v bigint" meets "k string"'),
    "query of a fixed state": (
        lambda s: s.query.state_query(
            s.topology.new_static_state(FixedState("f", "at date, w int", "at")), "v", MapGet(), "w"
        ),
        '"v bigint" meets "at date"',
    ),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_values_that_can_never_be_equal(case: str) -> None:
    build, message = FOREIGN[case]
    with pytest.raises(FunctionError, match=message):
        build(Streams())


def test_types_that_may_meet() -> None:
    wide = "i int, d decimal(9,2), at timestamp, day date, x double, a array<string>"
    stream = TridentTopology("t").new_stream("s", FixedBatches(wide, []))
    for one, other in (("i", "x"), ("d", "i"), ("at", "day"), ("a", "i")):
        stream._topology.join(stream.project(one), one, stream.project(other), other, "k")


MISSING: dict[str, Callable[[Streams], Any]] = {
    "join": lambda s: s.topology.join(s.left, "k", s.right, "k", ["k", "a", "b"]),
    "multi_reduce": lambda s: s.topology.multi_reduce([s.left, s.right], ["v", "k"], reducer(), "n"),
    "partition_persist": lambda s: s.left.partition_persist(DeltaState("x"), ["k", "w"], Latest()),
    "query of some tuples": lambda s: s.left.state_query(s.counts(), None, TupleCollectionGet(), ["w"]),
    "query in Python": lambda s: s.left.state_query(s.counts(), "w", Ask(), "n bigint"),
    "fixed state's keys": lambda s: FixedState("x", "k string", "w"),
    "fixed state's values": lambda s: s.left.state_query(
        s.topology.new_static_state(FixedState("x", "a string, b string, c string", "a")), "k", MapGet(), ["d"]
    ),
}


@pytest.mark.parametrize("case", MISSING)
def test_a_field_that_is_not_there(case: str) -> None:
    with pytest.raises(FieldError):
        MISSING[case](Streams())


TAKEN: dict[str, Callable[[Streams], Any]] = {
    "join": lambda s: s.join(["k", "a", "a"]),
    "join fields": lambda s: s.topology.join(s.left, ["k", "k"], s.right, ["x", "v"], ["k", "j", "v"]),
    "merge": lambda s: s.topology.merge(s.left, s.right, outputs=["a", "a"]),
    "multi_reduce": lambda s: s.topology.multi_reduce([s.left], None, reducer(["int", "int"]), ["a", "a"]),
    "updater": lambda s: s.left.partition_persist(DeltaState("x"), None, Latest(), "n bigint, n bigint"),
    "query of all tuples": lambda s: s.left.state_query(s.counts(), None, TupleCollectionGet(), ["k", "n"]),
}


@pytest.mark.parametrize("case", TAKEN)
def test_a_field_that_is_there_already(case: str) -> None:
    with pytest.raises(DuplicateFieldError):
        TAKEN[case](Streams())


@pytest.mark.parametrize(
    "meet",
    [
        lambda s: s.topology.merge(s.left, s.query),
        lambda s: s.topology.join(s.query, "k", s.left, "k", ["k", "a", "b"]),
        lambda s: s.topology.multi_reduce([s.left, s.query], None, reducer(), "n"),
        lambda s: s.topology.merge(s.query, s.topology.new_query_stream("other", "k string, v bigint")),
        lambda s: s.topology.merge(s.topology.merge(s.left, s.right), s.query),
    ],
)
def test_a_query_stream_meets_no_other_spouts(meet: Callable[[Streams], Any]) -> None:
    with pytest.raises(MixedSpoutsError):
        meet(Streams())


def in_a_circle(s: Streams) -> Stream:
    of_left, of_right = (one.tumbling_window(2, "v", Sum(), "v") for one in (s.left, s.right))
    s.topology.merge(s.left.project("v"), of_right)
    return s.topology.merge(s.right.project("v"), of_left)


@pytest.mark.parametrize(
    "meet",
    [
        lambda s: s.topology.merge(s.left.project("v"), s.left.tumbling_window(2, "v", Sum(), "v")),
        lambda s: s.topology.join(
            s.left.tumbling_window(2, "v", Sum(), "v"), "v", s.left.filter("v > 1"), "v", ["v", "k"]
        ),
        lambda s: s.topology.multi_reduce(
            [s.left, s.left.tumbling_window(2, "v", Sum(), "v").tumbling_window(2, "v", Sum(), "v")],
            None,
            reducer(),
            "n",
        ),
        in_a_circle,
    ],
    ids=["merge", "join", "window of a window", "circle"],
)
def test_a_stream_does_not_meet_what_waits_for_its_batches(meet: Callable[[Streams], Any]) -> None:
    """A batch group cannot begin before a channel that it writes itself, or that another one writes that waits for it."""
    with pytest.raises(FunctionError, match="the streams wait for each other"):
        meet(Streams())


def test_windows_meet_what_does_not_wait_for_them() -> None:
    s = Streams()
    window = s.right.tumbling_window(2, "v", Sum(), "v")
    s.topology.merge(s.left.project("v"), window, s.right.tumbling_window(3, "v", Sum(), "v"))
    s.topology.merge(window, window.filter("v > 1"))


def test_a_query_stream_meets_itself() -> None:
    s = Streams()
    assert s.topology.merge(s.query, s.query.filter("v > 1")).output_fields == ("k", "v")
    assert s.topology.join(s.query, "k", s.query, "k", ["k", "a", "b"]).output_fields == ("k", "a", "b")


def test_rows_of_a_fixed_state_fit_its_schema() -> None:
    for given in ([("a",)], [("a", 1, 2)], [{"k": "a", "w": 1}], [("a", "x")], [("a", 1), ("b", 1.5)]):
        with pytest.raises(DefinitionError, match="does not fit the schema"):
            FixedState("x", "k string, v bigint", "k", cast(Any, given))
    assert FixedState("x", "k string, v bigint", "k", [{"v": 1}]).rows == ((None, 1),)


def test_a_fixed_state_has_one_row_of_a_key() -> None:
    nan = float("nan")
    for keys, rows in (
        ("k", [("a", 1.0), ("b", 1.0), ("a", 2.0)]),
        ("k", [(None, 1.0), {"v": 2.0}]),
        ("v", [("a", nan), ("b", float("nan"))]),
        (["k", "v"], [("a", 1.0), ("a", 1.0)]),
        ((), [("a", 1.0), ("b", 1.0)]),
    ):
        with pytest.raises(DefinitionError, match="is a second row"):
            FixedState("x", "k string, v double", keys, rows)
    FixedState("x", "k string, v double", ["k", "v"], [("a", 1.0), ("a", 2.0), ("b", 1.0), ("a", None)])
    FixedState("x", "k string, v double", (), [("a", 1.0)])


@pytest.mark.parametrize(
    "wrong", [{"kind": "eventual"}, {"layout": "tree"}, {"partitions": 0}, {"partitions": 1.5}, {"kind": None}]
)
def test_a_state_has_the_kinds_and_layouts_that_there_are(wrong: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError):
        DeltaState("x", **wrong)


def test_the_layout_is_chosen_by_the_operation() -> None:
    s = Streams()
    found = [
        s.counts(),
        s.left.persistent_aggregate(DeltaState("map", layout=MAP), Count(), "n"),
        s.left.persistent_aggregate(DeltaState("reduced", OPAQUE), "v", ReducerAggregator(int, max), "n"),
        s.left.persistent_aggregate(
            DeltaState("both"), [Sum("v", "s"), CombinerAggregator(int, max, int, field="v", output="m")]
        ),
        s.left.partition_persist(DeltaState("rows", NON_TRANSACTIONAL)),
        s.left.partition_persist(DeltaState("updated"), None, Latest()),
        s.left.persistent_aggregate(DeltaState("own"), [OwnSum("v", "s"), Count("n")]),
    ]
    assert [state.spec.layout for state in found] == [LOG, MAP, MAP, MAP, ROWS, MAP, MAP]
    assert [node.state.layout for node in s.topology.persists] == [LOG, MAP, MAP, MAP, ROWS, MAP, MAP]


def test_output_fields() -> None:
    s = Streams()
    assert s.topology.merge([s.left, s.right]).output_fields == ("k", "v")
    assert s.topology.merge(s.left, s.right, outputs=["a", "b"]).output_fields == ("a", "b")
    assert s.join(outputs=["k", "a", "b"]).output_fields == ("k", "a", "b")
    assert s.topology.multi_reduce(
        [s.left.group_by("k"), s.right.group_by("x")], None, reducer(), "n"
    ).output_fields == ("n",)
    counts = s.counts()
    assert counts.new_values_stream().output_fields == counts.to_stream().output_fields == ("k", "n")
    rows = s.left.partition_persist(DeltaState("rows"), "v")
    assert rows.new_values_stream().output_fields == ("v",)
    updated = s.left.partition_persist(DeltaState("latest"), "v", Latest(), "a string, b int")
    assert (updated.fields, updated.new_values_stream().output_fields) == (("k", "v"), ("a", "b"))


def test_the_sides_of_a_join() -> None:
    s = Streams()
    node = s.topology.graph[s.join(["k", "a", "b"], kind=mixed(OUTER, INNER)).node]
    assert isinstance(node, nodes.JoinNode)
    assert node.sides == (nodes.JoinSide(("k",), ("v",), True), nodes.JoinSide(("x",), ("v",), False))


@pytest.mark.parametrize("kind", ["left", "right", "full", ["left", "inner"]])
def test_an_unknown_kind_of_join_says_how_others_are_written(kind: Any) -> None:
    with pytest.raises(FunctionError, match="no such kind") as caught:
        Streams().join(["k", "a", "b"], kind=kind)
    assert "mixed(INNER, OUTER) is a left join" in caught.value.hint


def test_static_states() -> None:
    s = Streams()
    prices = s.topology.new_static_state(FixedState("prices", "a string, b string, p double", ["a", "b"]))
    assert (prices.keys, prices.values) == (("a", "b"), ("p",))
    with pytest.raises(FunctionError, match="has the keys"):
        s.left.state_query(prices, "k", MapGet(), "p")
    lake = s.topology.new_static_state(DeltaState("others"))
    assert lake.fields == ()
    asked = s.left.state_query(lake, "k", MapGet(), "p")
    node = s.topology.graph[asked.node]
    assert isinstance(node, nodes.StateQueryNode)
    assert node.state_node == lake.node
    for again in (
        lambda: s.topology.new_static_state(DeltaState("prices")),
        lambda: s.left.partition_persist(DeltaState("others")),
    ):
        with pytest.raises(BadNameError, match="is taken"):
            again()


def test_spouts_of_a_node() -> None:
    s = Streams()
    merged = s.topology.merge(s.left, s.right)
    assert [spout.stream for spout in s.topology.spouts_of(merged.node)] == ["left", "right"]
    assert [spout.stream for spout in s.topology.spouts_of(s.left.filter("v > 1").node)] == ["left"]


def test_a_name_is_made_of_the_parents() -> None:
    s = Streams()
    merged = s.topology.merge(s.left.name("one"), s.right.name("two")).filter("v > 1")
    assert s.topology.graph[merged.node].name == "one-two"


def test_a_stream_does_not_take_the_name_of_streams_that_meet() -> None:
    """Their batches would be kept in one checkpoint."""
    topology = TridentTopology("t")
    one, two, own = (topology.new_stream(name, FixedBatches("v bigint", [])) for name in ("a", "b", "a__b"))
    own.partition_persist(DeltaState("own", layout=ROWS), ["v"])
    topology.merge(one, two).partition_persist(DeltaState("met", layout=ROWS), ["v"])
    with pytest.raises(BadNameError, match="'a__b' is that of two batch groups"):
        topology.build()
