"""Arguments that the contract names (shared/design.md, section 4) may be given by name: the plan is the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipelines.errors import FunctionError, PolicyError
from pipelines.flowmix import Policy
from pipelines.sources import FixedBatches
from pipelines.trident import Aggregator, Count, DeltaState, Stream, Sum, TridentTopology

BY_NAME = {"fields": "v", "aggregator": Sum(), "output": "x"}
FORMS: list[tuple[tuple[Any, ...], dict[str, Any], tuple[Any, ...]]] = [
    (("v", Sum()), {"output": "x"}, ("v", Sum(), "x")),
    (("v",), {"aggregator": Sum(), "output": "x"}, ("v", Sum(), "x")),
    ((), BY_NAME, ("v", Sum(), "x")),
    ((), {**BY_NAME, "fields": ["v"]}, ("v", Sum(), "x")),
    ((Count(),), {"output": "x"}, (Count(), "x")),
    ((), {"output": "x", "aggregator": Count()}, (Count(), "x")),
]
OPERATIONS: dict[str, Callable[..., Any]] = {
    "aggregate": lambda s, *args, **named: s.aggregate(*args, **named),
    "partition_aggregate": lambda s, *args, **named: s.partition_aggregate(*args, **named),
    "chained": lambda s, *args, **named: s.chained_agg().aggregate(*args, **named).chain_end(),
    "chained by partition": lambda s, *args, **named: s.chained_agg().partition_aggregate(*args, **named).chain_end(),
    "persistent": lambda s, *args, **named: s.persistent_aggregate(DeltaState("kept"), *args, **named),
}


def made(build: Callable[[Stream], Any], *, grouped: bool = False) -> list[Any]:
    """Return the nodes of a topology that holds one stream."""
    stream: Any = TridentTopology("t").new_stream("s", FixedBatches("k string, v bigint", []))
    build(stream.group_by("k") if grouped else stream)
    return [repr(node) for node in list(stream._topology.graph)[1:]]


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_aggregate_takes_its_names(operation: str, grouped: bool) -> None:
    call = OPERATIONS[operation]
    for args, named, positional in FORMS:
        by_name = made(lambda s, a=args, n=named: call(s, *a, **n), grouped=grouped)  # type: ignore[misc]
        assert by_name == made(lambda s, a=positional: call(s, *a), grouped=grouped)  # type: ignore[misc]


WRONG: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    (("v", Sum()), {"outputs": "x"}, "does not take outputs"),
    (("v", Sum(), "x"), {"field": "v"}, "does not take field"),
    (("v", Sum(), "x"), {"output": "y"}, "takes"),
    (("v",), {"aggregator": Sum()}, "takes"),
    ((Sum(),), {"fields": "v", "output": "x"}, "takes"),
    ((), {"fields": "v", "output": "x"}, "takes"),
    (("v",), {"output": "x"}, "'v' is not an aggregator"),
]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("args", "named", "problem"), WRONG)
def test_other_names_of_an_aggregate_are_refused(
    operation: str, args: tuple[Any, ...], named: dict[str, Any], problem: str
) -> None:
    with pytest.raises(FunctionError, match=problem):
        made(lambda s: OPERATIONS[operation](s, *args, **named))


def test_an_aggregator_of_several_fields_takes_the_names_too() -> None:
    both = Aggregator(lambda: 0, lambda state, v: state, lambda state: [], returns=["bigint", "bigint"])
    call = OPERATIONS["aggregate"]
    by_name = made(lambda s: call(s, fields="v", aggregator=both, output=["a", "b"]))
    assert by_name == made(lambda s: call(s, "v", both, ["a", "b"]))


def joined(*names: str, **how: Any) -> str:
    """Return the node of a join whose last arguments are given by name."""
    topology = TridentTopology("t")
    a = topology.new_stream("a", FixedBatches("k string, v bigint", []))
    b = topology.new_stream("b", FixedBatches("k string, w bigint", []))
    given = {"left": a, "left_fields": "k", "right": b, "right_fields": "k", "outputs": ["k", "v", "w"]}
    args = [value for name, value in given.items() if name not in names]
    join: Any = topology.join
    stream = join(*args, **{name: given[name] for name in reversed(names)}, **how)
    return repr(topology.graph[stream.node])


def test_a_join_takes_its_names() -> None:
    names = ("left", "left_fields", "right", "right_fields", "outputs")
    for given in range(len(names)):
        assert joined(*names[given:], kind="outer") == joined(kind="outer")


def test_other_names_of_a_join_are_refused() -> None:
    with pytest.raises(FunctionError, match="does not take on"):
        joined("outputs", on="k")
    with pytest.raises(FunctionError, match="takes"):
        joined("left", "outputs")
    with pytest.raises(FunctionError, match="takes"):
        joined(left="k")


def test_a_count_takes_its_name() -> None:
    assert Policy.count(n=5) == Policy.count(events=5) == Policy.count(5)
    for wrong in ({}, {"n": 5, "events": 5}, {"n": None}, {"n": True}, {"events": -1}):
        with pytest.raises(PolicyError):
            Policy.count(**wrong)
