"""Each operation says its traits: walked over all classes of nodes, and over all kinds of windows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, get_args

import pytest

from pipelines import aggregators
from pipelines.graph import expansion, lineage, nodes, traits, types
from pipelines.planner import compile as compiling
from pipelines.planner.plain import steps
from pipelines.planner.step import BUILT_IN_QUERIES
from pipelines.trident.query_functions import QueryFunction
from pipelines.windows.aggregate import AggregateBuffer
from pipelines.windows.buffer import Window
from pipelines.windows.kinds import KINDS
from pipelines.windows.operations import WindowOperation

ENTRANCES = {nodes.SpoutNode, nodes.QuerySpoutNode, nodes.ChannelSpoutNode, nodes.StaticStateNode}
KEEPING = {
    nodes.FilterNode, nodes.PeekNode, nodes.ProjectNode, nodes.PartitionNode, nodes.ExtremeNode, nodes.GateNode, nodes.OnTimeNode,
}  # fmt: skip
"""Those behind which the fields are what they were before."""
ONE_OPERATION = {nodes.EachNode, nodes.MapNode, nodes.MergeNode, nodes.EnterWindowNode, nodes.WindowNode}
"""Those that are one operation of the plan, beside those that keep the fields."""
OF_WINDOWS = {nodes.WindowNode, nodes.EnterWindowNode, nodes.OnTimeNode}
"""The plain evaluator leaves them to the engine of windows."""


def all_nodes() -> list[type[nodes.Node]]:
    def below(kind: type[nodes.Node]) -> Iterator[type[nodes.Node]]:
        for one in kind.__subclasses__():
            yield one
            yield from below(one)

    return [one for one in below(nodes.Node) if one.__module__ == nodes.__name__]


def test_a_class_that_forgets_a_trait_cannot_be_defined() -> None:
    with pytest.raises(TypeError, match="asks"):
        type("Forgetful", (nodes.Node,), {})
    with pytest.raises(TypeError, match="alone"):
        type("Forgetful", (nodes.PersistNode,), {}, asks=traits.NOTHING)
    with pytest.raises(TypeError):
        traits.Asks()  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", all_nodes())
def test_each_node_says_its_traits(kind: type[nodes.Node]) -> None:
    assert {"alone", "_asks"} <= vars(kind).keys()
    (asks,) = vars(kind)["_asks"]
    assert isinstance(asks, traits.Asks) or callable(asks)
    # What stands behind a whole batch, or asks for the order of its tuples, is not for a tuple that comes alone.
    if isinstance(asks, traits.Asks) and asks.order:
        assert kind.alone


def own_case(table: Any, kind: type[nodes.Node]) -> bool:
    """Whether a table of functions by class has a case for the class, or for the one that it is derived from."""
    return any(one in table.registry for one in kind.__mro__ if issubclass(one, nodes.Node) and one is not nodes.Node)


@pytest.mark.parametrize("kind", all_nodes())
def test_no_table_has_a_case_for_it_by_default_alone(kind: type[nodes.Node]) -> None:
    """Lineage, types, expansion and the evaluators: a default is right for those that are named here, for no other."""
    assert own_case(lineage._step, kind) or kind in {*KEEPING, nodes.NewValuesNode}
    assert own_case(types._types, kind) or kind in {*KEEPING, nodes.NewValuesNode, nodes.EnterWindowNode}
    assert own_case(expansion._expand, kind) or kind in {*KEEPING, *ONE_OPERATION}
    assert kind in compiling._COMPILERS or kind in {*ENTRANCES, nodes.PartitionNode}
    assert own_case(steps.step, kind) or kind in {*ENTRANCES, *OF_WINDOWS} or issubclass(kind, nodes.PersistNode)


def test_only_combiners_take_tuples_in_any_order() -> None:
    found = [one for one in vars(aggregators).values() if isinstance(one, type)]
    assert [one for one in found if getattr(one, "in_any_order", False)] == [
        one for one in found if issubclass(one, aggregators.CombinerAggregator)
    ]


def test_query_functions_that_spark_runs_are_not_called() -> None:
    assert all(one.in_spark for one in BUILT_IN_QUERIES)
    assert not QueryFunction.in_spark


@pytest.mark.parametrize("operation", get_args(WindowOperation))
def test_each_kind_of_window_has_its_buffer(operation: type) -> None:
    """And the buffer says for itself what it does with events and ticks, when it wakes and what it keeps."""
    found = KINDS[operation]
    buffer = found if isinstance(found, type) else AggregateBuffer
    said = {name for one in buffer.__mro__ if one is not Window for name in vars(one)}
    assert {"event", "advance", "due", "expired", "save", "restore"} <= said
    assert isinstance(operation.label, property)  # type: ignore[attr-defined]


def test_no_other_windows_are_known() -> None:
    assert set(KINDS) == set(get_args(WindowOperation))


def test_tables_are_found_by_class() -> None:
    """What `own_case` relies on."""

    @dataclass(frozen=True, kw_only=True)
    class Other(nodes.FilterNode, asks=traits.NOTHING, alone="is a test"):
        pass

    table = singledispatch(lambda node: None)
    table.register(nodes.FilterNode, lambda node: None)
    assert own_case(table, Other)
    assert not own_case(table, nodes.MapNode)
