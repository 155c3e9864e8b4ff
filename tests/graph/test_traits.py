"""Each operation says its traits: walked over all classes of nodes, and over all kinds of windows."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pipelines import aggregators
from pipelines.graph import nodes, traits
from pipelines.planner.step import BUILT_IN_QUERIES
from pipelines.trident.user_code import QueryFunction
from pipelines.windows import operations
from pipelines.windows.aggregate import AggregateBuffer
from pipelines.windows.buffer import Window
from pipelines.windows.keyed import KINDS


def test_a_class_that_forgets_a_trait_cannot_be_defined() -> None:
    with pytest.raises(TypeError, match="asks"):
        type("Forgetful", (nodes.Node,), {})
    with pytest.raises(TypeError, match="alone"):
        type("Forgetful", (nodes.PersistNode,), {}, by_tuple=False, asks=traits.NOTHING)
    with pytest.raises(TypeError, match="by_tuple"):
        type("Forgetful", (nodes.PersistNode,), {}, asks=traits.NOTHING, alone=traits.REPLAYABLE)
    with pytest.raises(TypeError):
        traits.Asks()  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", nodes.classes())
def test_each_node_says_its_traits(kind: type[nodes.Node]) -> None:
    assert {"alone", "by_tuple", "_asks"} <= vars(kind).keys()
    (asks,) = vars(kind)["_asks"]
    assert isinstance(asks, traits.Asks) or callable(asks)
    # What stands behind a whole batch, or asks for the order of its tuples, is not for a tuple that comes alone.
    if isinstance(asks, traits.Asks) and asks.order:
        assert kind.alone


@pytest.mark.parametrize("kind", nodes.classes())
def test_each_node_says_what_the_graph_must_know(kind: type[nodes.Node]) -> None:
    assert not kind.__abstractmethods__


def test_a_class_that_forgets_what_the_graph_must_know_makes_no_node() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Forgetful(nodes.Node, by_tuple=True, asks=traits.PASSES_ON, alone=traits.REPLAYABLE):
        pass

    with pytest.raises(TypeError, match=r"expand.*field_origins.*field_types.*label"):
        Forgetful(id=1, parents=(), fields=(), at=nodes.CodeLocation.of_caller())  # type: ignore[abstract]


def test_an_evaluator_that_forgets_a_node_cannot_be_imported() -> None:
    known = set(nodes.classes())
    nodes.check_all_known("test", known - {nodes.MergeNode}, [nodes.MergeNode])
    with pytest.raises(TypeError, match="test does not know ChannelNode"):
        nodes.check_all_known("test", known - {nodes.ChannelNode}, [])


def test_only_combiners_take_tuples_in_any_order() -> None:
    found = [one for one in vars(aggregators).values() if isinstance(one, type)]
    assert [one for one in found if getattr(one, "in_any_order", False)] == [
        one for one in found if issubclass(one, aggregators.CombinerAggregator)
    ]


def test_query_functions_that_spark_runs_are_not_called() -> None:
    assert all(one.in_spark for one in BUILT_IN_QUERIES)
    assert not QueryFunction.in_spark


OPERATIONS = [one for one in vars(operations).values() if isinstance(getattr(one, "label", None), property)]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_kind_of_window_has_its_buffer(operation: type) -> None:
    """And the buffer says for itself what it does with events and ticks, when it wakes and what it keeps."""
    found = KINDS[operation]
    buffer = found if isinstance(found, type) else AggregateBuffer
    said = {name for one in buffer.__mro__ if one is not Window for name in vars(one)}
    assert {"event", "advance", "_due", "expired", "save", "restore"} <= said
    assert isinstance(operation.label, property)  # type: ignore[attr-defined]


def test_no_other_windows_are_known() -> None:
    assert set(KINDS) == set(OPERATIONS)
