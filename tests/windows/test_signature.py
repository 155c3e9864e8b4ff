"""The signature by which windows are told from those of another operation."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from typing import Any

from pipelines.aggregators import Count, Sum, WindowAggregator
from pipelines.flowmix.yaml_models import PolicyForm
from pipelines.windows.operations import AggregateWindow, SwitchWindow
from pipelines.windows.policy import KINDS, Policy
from pipelines.windows.signature import _shown, signature


def aggregate(trigger: int = 3, field: str = "v") -> AggregateWindow:
    return AggregateWindow((Sum(field, "sum"), Count(output="n")), Policy.count(trigger), Policy.count(5))


def test_the_same_operation_has_one_signature() -> None:
    assert signature(aggregate(), ("k",), "Bucket") == signature(aggregate(), ("k",), "Bucket")


def test_anything_that_differs_changes_it() -> None:
    seen = {
        signature(aggregate(), ("k",), "Bucket"),
        signature(aggregate(4), ("k",), "Bucket"),
        signature(aggregate(field="w"), ("k",), "Bucket"),
        signature(aggregate(), ("g",), "Bucket"),
        signature(aggregate(), ("k",), "ArrayBucket"),
        signature(SwitchWindow(Policy.count(1), Policy.count(1), Policy.count(1)), ("k",), "Bucket"),
    }
    assert len(seen) == 6


def test_it_is_the_same_in_another_process() -> None:
    code = (
        "from tests.windows.test_signature import aggregate\n"
        "from pipelines.windows.signature import _shown, signature\n"
        "print(signature(aggregate(), ('k',), 'Bucket').hex())"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert found == signature(aggregate(), ("k",), "Bucket").hex()


class Own(WindowAggregator):
    outputs = "n bigint"

    def __init__(self) -> None:
        self.names = {"a", "b", "c", "d", "e"}
        self.kinds = {"a": 1, 2: {"x", "y", "z"}, (1, 2): None}

    def added(self, event: Any) -> None: ...
    def evicted(self, event: Any) -> None: ...
    def aggregate(self) -> Any: ...


def own() -> bytes:
    return signature(AggregateWindow((Own(),), Policy.count(3), Policy.count(5)), ("k",), "Bucket")


def test_sets_and_dicts_of_any_keys_are_the_same_in_another_process() -> None:
    code = "from tests.windows.test_signature import own\nprint(own().hex())"
    for seed in "12":
        found = subprocess.check_output([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed})
        assert found.decode().strip() == own().hex()


def test_sets_of_numbers_are_shown_as_they_were() -> None:
    numbers = ({16, 1, 3}, frozenset({1, 2}))
    assert [_shown(each) for each in numbers] == [repr(each) for each in numbers]


class Weights:
    __slots__ = ("__scale", "other")

    def __init__(self, scale: float) -> None:
        self.__scale, self.other = scale, object()


class Weighted(Own):
    def __init__(self, scale: float) -> None:
        self.weights, self.kept = Weights(scale), deque([Weights(scale), "b"])
        self.text = "jumps at 0x10"

    def save(self) -> Any: ...
    def restore(self, state: Any) -> None: ...


def test_objects_without_a_dict_are_shown_by_what_they_hold() -> None:
    # All are there at a time: each has an address of its own.
    aggregators = [Weighted(scale) for scale in (2.0, 2.0, 3.0)]
    operations = [AggregateWindow((each,), Policy.count(3), Policy.count(5)) for each in aggregators]
    first, again, other = (signature(operation, ("k",), "Bucket") for operation in operations)
    assert first == again != other
    assert _shown(aggregators[0]).count("0x") == 1


def test_each_kind_of_policy_can_be_made_in_python_and_in_yaml() -> None:
    assert all(Policy.of(kind, 3).kind == kind for kind in KINDS)
    assert set(PolicyForm.model_fields) == set(KINDS)
