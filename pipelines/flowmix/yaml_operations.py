"""The operations of a YAML flow as calls of the fluent form."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pipelines import aggregators
from pipelines.aggregators.window import EventAggregator
from pipelines.errors import FunctionError
from pipelines.flowmix import conditions
from pipelines.flowmix.criteria import Criteria, Python
from pipelines.flowmix.stream import FlowStream
from pipelines.flowmix.yaml_functions import Functions
from pipelines.flowmix.yaml_models import (
    AggregateForm,
    AggregatorForm,
    AlignedForm,
    CriteriaForm,
    EachForm,
    GateForm,
    OperationForm,
    PolicyForm,
    SessionForm,
    SortForm,
    SplitForm,
)
from pipelines.flowmix.yaml_parts import Form
from pipelines.windows.policy import Policy

Add = Callable[[FlowStream, Any, Functions], FlowStream]
AggregatingForm = AggregateForm | AlignedForm | SessionForm


def add(stream: FlowStream, form: str | OperationForm, functions: Functions) -> FlowStream:
    """Add an operation to a stream."""
    if isinstance(form, str):
        return stream.output() if form == "output" else stream.partition()
    name, value = form.part
    return _ADD[name](stream, value, functions)


def _arguments(form: Form) -> dict[str, Any]:
    """Return the parts of a window's form: they are named like the arguments of the fluent form."""
    return {name: Policy.of(*part.part) if isinstance(part, PolicyForm) else part for name, part in form}


def _aggregate(stream: FlowStream, form: AggregatingForm, functions: Functions, window: str) -> FlowStream:
    own = [
        functions.find("aggregate", part.own.name)
        for part in form.aggregators
        if not isinstance(part, str) and part.own
    ]
    if own and not functions.runs:
        # What fields an aggregator of one's own makes is known to itself alone: anything may be named behind it.
        return stream.each(own[0])
    arguments = _arguments(form)
    made = [_aggregator(form, functions) for form in arguments.pop("aggregators")]
    return getattr(stream, window)(*made, **arguments)


def _sort(stream: FlowStream, form: SortForm, functions: Functions) -> FlowStream:
    arguments = _arguments(form)
    return stream.sort(*_list(arguments.pop("by")), **arguments)


def _split(stream: FlowStream, form: SplitForm, functions: Functions) -> FlowStream:
    return stream.split(
        default=None if form.default is None else _criteria(form.default, functions),
        paths={target: _criteria(criteria, functions) for target, criteria in form.paths.items()},
        all=_list(form.all),
    )


def _each(stream: FlowStream, form: str | EachForm, functions: Functions) -> FlowStream:
    given = EachForm.model_validate({"function": form}) if isinstance(form, str) else form
    return stream.each(functions.find("each", given.function), given.schema_)


def _gate(stream: FlowStream, form: GateForm, functions: Functions) -> FlowStream:
    from pipelines.quality import Check

    parts: list[Any] = [entry.part for entry in form.checks]
    checks = [Check(check.expectation, check.model_extra or {}, action, check.name) for action, check in parts]
    return stream.gate(*checks, name=form.name)


_ADD: dict[str, Add] = {
    "select": lambda stream, form, functions: stream.select(*_list(form)),
    "compute": lambda stream, form, functions: stream.compute(form),
    "filter": lambda stream, form, functions: stream.filter(_criteria(form, functions)),
    "each": _each,
    "partition": lambda stream, form, functions: stream.partition(*_list(form)),
    **{window: partial(_aggregate, window=window) for window in ("aggregate", "aligned", "session")},
    "collect": lambda stream, form, functions: stream.collect(**_arguments(form)),
    "sort": _sort,
    "switch": lambda stream, form, functions: stream.switch(**_arguments(form)),
    "join": lambda stream, form, functions: stream.join(**_arguments(form)),
    "split": _split,
    "to": lambda stream, form, functions: stream.to(*_list(form)),
    "persist": lambda stream, form, functions: stream.persist(form),
    "gate": _gate,
}

_AGGREGATORS: dict[str, Callable[..., EventAggregator]] = {
    "count": aggregators.Count,
    "sum": aggregators.Sum,
    "average": aggregators.Average,
    "min": aggregators.Min,
    "max": aggregators.Max,
    "distinct_count": aggregators.DistinctCount,
    "std_dev": aggregators.StdDev,
    "collect": aggregators.Collect,
    "assoc_count": aggregators.AssocCount,
    "group_count": aggregators.GroupCount,
    "first_n": aggregators.FirstN,
    "last_n": aggregators.LastN,
}


def _aggregator(form: str | AggregatorForm, functions: Functions) -> EventAggregator:
    if isinstance(form, str):
        return aggregators.Count()
    name, value = form.part
    if name == "own":
        own = functions.find("aggregate", value.name)
        # Before it is called: the arguments are the file's.
        if not (isinstance(own, type) and issubclass(own, EventAggregator)):
            raise FunctionError(
                "aggregate", f"{value.name} is no WindowAggregator", hint="name a class that derives from it"
            )
        return own(**value.arguments)
    arguments = {"field": value} if isinstance(value, str) else dict(value)
    return _AGGREGATORS[name](*arguments.pop("fields", ()), **arguments)


def _criteria(form: str | CriteriaForm, functions: Functions) -> str | Criteria:
    if isinstance(form, str):
        return form
    name, value = form.part
    make = getattr(conditions, name)
    if name == "python":
        predicate = functions.find("filter", value)
        return predicate if isinstance(predicate, Python) else make(predicate)
    if name in ("and_", "or_", "not_"):
        return make(*(_criteria(item, functions) for item in (value if isinstance(value, list) else [value])))
    if isinstance(value, str):
        return make(value)
    ((field, wanted),) = value.items()
    return make(field, *(wanted if isinstance(wanted, list) else [wanted]))


def _list(given: str | list[str]) -> list[str]:
    return [given] if isinstance(given, str) else given
