"""The operations of a YAML flow as calls of the fluent form."""

from __future__ import annotations

from collections.abc import Callable
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
    CollectForm,
    CriteriaForm,
    EachForm,
    GateForm,
    JoinForm,
    OperationForm,
    PolicyForm,
    SortForm,
    SplitForm,
    SwitchForm,
)
from pipelines.windows.policy import Policy

Add = Callable[[FlowStream, Any, Functions], FlowStream]


def add(stream: FlowStream, form: str | OperationForm, functions: Functions) -> FlowStream:
    """Add an operation to a stream."""
    if isinstance(form, str):
        return stream.output() if form == "output" else stream.partition()
    name, value = form.part
    return _ADD[name](stream, value, functions)


def _aggregate(stream: FlowStream, form: AggregateForm, functions: Functions) -> FlowStream:
    own = [
        functions.find("aggregate", one.own.name) for one in form.aggregators if not isinstance(one, str) and one.own
    ]
    if own and not functions.runs:
        # What fields an aggregator of one's own makes is known to itself alone: anything may be named behind it.
        return stream.each(own[0])
    return stream.aggregate(
        *(_aggregator(one, functions) for one in form.aggregators),
        trigger=_policy(form.trigger),
        evict=_policy(form.evict),
        clear_on_trigger=form.clear_on_trigger,
        window_evict_millis=form.window_evict_millis,
    )


def _collect(stream: FlowStream, form: CollectForm, functions: Functions) -> FlowStream:
    return stream.collect(
        trigger=_policy(form.trigger),
        evict=_policy(form.evict),
        clear_on_trigger=form.clear_on_trigger,
        field=form.field,
        window_evict_millis=form.window_evict_millis,
    )


def _sort(stream: FlowStream, form: SortForm, functions: Functions) -> FlowStream:
    return stream.sort(
        *_list(form.by),
        progressive=form.progressive,
        tumbling=_policy(form.tumbling),
        top_n=form.top_n,
        trigger=_policy(form.trigger),
        flush=form.flush,
        window_evict_millis=form.window_evict_millis,
    )


def _switch(stream: FlowStream, form: SwitchForm, functions: Functions) -> FlowStream:
    return stream.switch(open=_policy(form.open), evict=_policy(form.evict), close=_policy(form.close))


def _join(stream: FlowStream, form: JoinForm, functions: Functions) -> FlowStream:
    return stream.join(form.left, form.right, _policy(form.evict))


def _split(stream: FlowStream, form: SplitForm, functions: Functions) -> FlowStream:
    return stream.split(
        default=None if form.default is None else _criteria(form.default, functions),
        paths={target: _criteria(one, functions) for target, one in form.paths.items()},
        all=_list(form.all),
    )


def _each(stream: FlowStream, form: str | EachForm, functions: Functions) -> FlowStream:
    given = EachForm.model_validate({"function": form}) if isinstance(form, str) else form
    return stream.each(functions.find("each", given.function), given.schema_)


def _gate(stream: FlowStream, form: GateForm, functions: Functions) -> FlowStream:
    from pipelines.quality import Check
    from pipelines.quality.gate import as_action

    checks = []
    for one in form.checks:
        action, check = one.part
        checks.append(Check(check.expectation, check.model_extra or {}, as_action(action), check.name))
    return stream.gate(*checks, name=form.name)


_ADD: dict[str, Add] = {
    "select": lambda stream, form, functions: stream.select(*_list(form)),
    "filter": lambda stream, form, functions: stream.filter(_criteria(form, functions)),
    "each": _each,
    "partition": lambda stream, form, functions: stream.partition(*_list(form)),
    "aggregate": _aggregate,
    "collect": _collect,
    "sort": _sort,
    "switch": _switch,
    "join": _join,
    "split": _split,
    "to": lambda stream, form, functions: stream.to(*_list(form)),
    "persist": lambda stream, form, functions: stream.persist(form),
    "gate": _gate,
}

_OF_ONE_FIELD = {
    "sum": "Sum",
    "average": "Average",
    "min": "Min",
    "max": "Max",
    "distinct_count": "DistinctCount",
    "std_dev": "StdDev",
    "collect": "Collect",
    "assoc_count": "AssocCount",
}


def _aggregator(form: str | AggregatorForm, functions: Functions) -> EventAggregator:
    if isinstance(form, str):
        return aggregators.Count()
    name, value = form.part
    if name in _OF_ONE_FIELD:
        field, output = (value, None) if isinstance(value, str) else (value.field, value.output)
        return getattr(aggregators, _OF_ONE_FIELD[name])(field, output)
    if name == "count":
        return aggregators.Count(value.output, field=value.field)
    if name == "group_count":
        return aggregators.GroupCount(*value.fields, output=value.output)
    if name == "own":
        own = functions.find("aggregate", value.name)
        made = own(**value.arguments)
        if not isinstance(made, EventAggregator):
            raise FunctionError("aggregate", f"{value.name} is no WindowAggregator")
        return made
    kind = aggregators.FirstN if name == "first_n" else aggregators.LastN
    return kind(value.n, value.sort_field, value.reverse, field=value.field, output=value.output)


def _criteria(form: str | CriteriaForm, functions: Functions) -> str | Criteria:
    if isinstance(form, str):
        return form
    name, value = form.part
    if name == "python":
        found = functions.find("filter", value)
        return found if isinstance(found, Python) else conditions.python(found)
    if name in ("and", "or"):
        make = conditions.and_ if name == "and" else conditions.or_
        return make(*(_criteria(one, functions) for one in value))
    if name == "not":
        return conditions.not_(_criteria(value, functions))
    if name in ("has", "has_not"):
        return conditions.has(value) if name == "has" else conditions.has_not(value)
    field, wanted = next(iter(value.items()))
    if name == "in":
        return conditions.in_(field, wanted)
    if name == "range":
        return conditions.range_(field, *wanted)
    return getattr(conditions, name)(field, wanted)


def _policy(form: PolicyForm | None) -> Policy | None:
    if form is None:
        return None
    kind, threshold = form.part
    return Policy.of(kind, threshold)


def _list(given: str | list[str]) -> list[str]:
    return [given] if isinstance(given, str) else given
