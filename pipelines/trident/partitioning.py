"""Repartitions, and what works on each partition of a batch: the half of Stream that knows of tasks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Self

from pipelines.errors import FunctionError
from pipelines.graph import nodes
from pipelines.graph.fields import FieldNames, added, require
from pipelines.trident.functions import ColumnFunction, RowFunction
from pipelines.trident.steps import Steps

Comparator = Callable[[Any, Any], int]
"""`comparator(a, b)`: negative if a is less than b, 0 if they are equal, positive if it is greater."""


class Partitioning(Steps):
    """Where a batch runs in one task, a repartition changes nothing. Fields never change (Trident rules 1.5)."""

    def shuffle(self) -> Self:
        """Spread the tuples evenly over tasks: by a hash of all fields, so that a replayed batch is dealt the same way."""
        return self._add(nodes.PartitionNode, kind=nodes.SHUFFLE)

    def local_or_shuffle(self) -> Self:
        """Leave the tuples in their task if the number of tasks stays the same, else as `shuffle`."""
        return self._add(nodes.PartitionNode, kind=nodes.LOCAL_OR_SHUFFLE)

    def partition_by(self, fields: FieldNames) -> Self:
        """Bring equal values of `fields` to the same task, always; null is a value like any other."""
        by = added("partition_by", require("partition_by", fields, self.output_fields), ())
        if not by:
            raise FunctionError("partition_by", "takes at least one field", hint="use global_() for one task")
        return self._add(nodes.PartitionNode, kind=nodes.FIELDS, by=by)

    def global_(self) -> Self:
        """Bring all tuples of all batches to the lowest task."""
        return self._add(nodes.PartitionNode, kind=nodes.GLOBAL)

    def batch_global(self) -> Self:
        """Bring all tuples of a batch to one task: task `txid % tasks`."""
        return self._add(nodes.PartitionNode, kind=nodes.BATCH_GLOBAL)

    def broadcast(self) -> Self:
        """Give every task a copy of every tuple: with n tasks there are n of each from here on."""
        return self._add(nodes.PartitionNode, kind=nodes.BROADCAST)

    def identity_partition(self) -> Self:
        """Bring the tuples of task i to task i. What is before and behind has the same number of tasks (rules 3.9)."""
        return self._add(nodes.PartitionNode, kind=nodes.IDENTITY)

    def partition(self, function: Any) -> Self:
        """Let a function choose the task (a custom grouping): a number, of which the remainder by the tasks counts.

        Args:
            function: a callable of Columns, one for each field, that gives an integer Column; or a RowFunction over
                plain values that returns an int.

        Raises:
            FunctionError: if it is neither.
        """
        if not isinstance(function, ColumnFunction | RowFunction):
            if not callable(function) or inspect.isgeneratorfunction(function) or isinstance(function, type):
                raise FunctionError(
                    "partition",
                    f"{function!r} does not choose a task",
                    hint="give a callable of Columns or a RowFunction",
                )
            function = ColumnFunction(function)
        return self._add(nodes.PartitionNode, kind=nodes.CUSTOM, function=function)

    def direct(self, field: str) -> Self:
        """Bring each tuple to the task that a field of it names (direct grouping), modulo the number of tasks."""
        by = require("direct", field, self.output_fields)
        if len(by) != 1:
            raise FunctionError("direct", f"takes one field; got {list(by)}")
        return self._add(nodes.PartitionNode, kind=nodes.DIRECT, by=by)

    def min_by(self, field: str, comparator: Comparator | None = None) -> Self:
        """Keep the tuple of each partition of a batch with the least value of `field` (Trident rules 1.2).

        The last of equals counts; null values are left out; an empty partition gives nothing (the original emitted a
        broken tuple). Use `global_()` before it for one tuple a batch.

        Args:
            field: the field to compare.
            comparator: compares two of its values; None: their own order.
        """
        return self._extreme("min_by", field, comparator, largest=False)

    def max_by(self, field: str, comparator: Comparator | None = None) -> Self:
        """Keep tuples as `min_by` does, with the largest value."""
        return self._extreme("max_by", field, comparator, largest=True)

    def min(self, comparator: Comparator) -> Self:
        """Keep the least tuple of each partition of a batch: the comparator takes two tuples as dicts. Else as `min_by`."""
        return self._extreme("min", None, comparator, largest=False)

    def max(self, comparator: Comparator) -> Self:
        """Keep tuples as `min` does, the largest one."""
        return self._extreme("max", None, comparator, largest=True)

    def _extreme(self, operation: str, field: str | None, comparator: Any, *, largest: bool) -> Self:
        if field is not None and len(require(operation, field, self.output_fields)) != 1:
            raise FunctionError(operation, f"takes one field; got {field!r}")
        if (comparator is not None or field is None) and not callable(comparator):
            raise FunctionError(operation, f"{comparator!r} is not a comparator", hint="give a function (a, b) -> int")
        name = field if field is None or isinstance(field, str) else field[0]
        return self._add(nodes.ExtremeNode, field=name, largest=largest, comparator=comparator)
