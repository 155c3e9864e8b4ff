"""AssocCount and GroupCount: how often each value, or combination of values, is in an event window."""

from __future__ import annotations

from typing import ClassVar

from pipelines.aggregators.base import ByValue
from pipelines.aggregators.values import Tally
from pipelines.aggregators.window import EventAggregator, Types, element_type
from pipelines.errors import FunctionError


class AssocCount(ByValue, EventAggregator):
    """One result event for each value of a field that is in the window: the value and how often it is there.

    Args:
        field: the field; the results have it too.
        output: the field of the count.
    """

    default_output: ClassVar[str] = "assoc_count"

    def __init__(self, field: str, output: str | None = None) -> None:
        self.field, self.output = field, output

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields whose values are counted."""
        return (self.field,)

    @property
    def result_fields(self) -> tuple[str, ...]:
        return (*self.fields, self.named)

    def accumulator(self) -> Tally:
        return Tally(self.fields, self.named)

    def result_types(self, types: Types) -> list[tuple[str, str | None]]:
        return [*((field, element_type(types.get(field))) for field in self.fields), (self.named, "bigint")]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.fields))}, output={self.named!r})"


class GroupCount(AssocCount):
    """One result event for each combination of values of some fields that is in the window, and how often it is there.

    An event that lacks one of the fields is passed over.

    Args:
        fields: one or more; the results have them too.
        output: the field of the count.

    Raises:
        FunctionError: if there is no field.
    """

    default_output: ClassVar[str] = "group_count"

    def __init__(self, *fields: str, output: str | None = None) -> None:
        if not fields:
            raise FunctionError("GroupCount", "Aggregator needs a field to operate it")
        self._fields = fields
        super().__init__(fields[0], output)

    @property
    def fields(self) -> tuple[str, ...]:
        return self._fields
