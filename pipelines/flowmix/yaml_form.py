"""Flows written as YAML: `load_flow("late_departures.yaml")` gives what the fluent form gives, with the file's lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from pipelines import aggregators
from pipelines.aggregators.window import EventAggregator
from pipelines.errors import DefinitionError, FlowError, FlowFileError, FunctionError, TrideltaError
from pipelines.flowmix import conditions
from pipelines.flowmix.criteria import Criteria, Python
from pipelines.flowmix.flow import Flow
from pipelines.flowmix.stream import FlowStream
from pipelines.flowmix.yaml_document import Document
from pipelines.flowmix.yaml_functions import Functions, NamedFunctions
from pipelines.flowmix.yaml_models import (
    AggregateForm,
    AggregatorForm,
    AlignedForm,
    CriteriaForm,
    EachForm,
    FlowForm,
    GateForm,
    OperationForm,
    PolicyForm,
    SessionForm,
    SortForm,
    SplitForm,
    StreamForm,
)
from pipelines.flowmix.yaml_parts import Form
from pipelines.graph.nodes import CodeLocation
from pipelines.windows.policy import Policy

Step = int | str


def load_flow(
    path: str | Path,
    functions: Mapping[str, Callable[..., Any]] | None = None,
    *,
    beside: Path | None = None,
    runs: bool = True,
) -> Flow:
    """Return a flow from a YAML file, built.

    The form is that of docs/flow.schema.json. Relative paths of sources are beside the file; `${NAME}` in a source is a variable
    of the environment.

    Args:
        path: the file.
        functions: what `each`, `python` and own aggregators may name; beside these `module.function` names what a module of
            `pipelines.catalog` defines and lists: `FUNCTIONS = (function, ...)`.
        beside: the folder that relative paths count from; by default the file's.
        runs: whether the flow is to run. False: functions and aggregators are looked up by name in the text of their modules;
            none is imported or called, and the flow is only there to be looked at.

    Raises:
        FlowFileError: with file, line and path in the document of every fault.
    """
    document = Document(Path(path))
    try:
        form = FlowForm.model_validate(document.content)
    except ValidationError as error:
        raise FlowFileError(document.path, _faults(document, error.errors(include_url=False))) from None
    named = Functions(functions or {}) if runs else NamedFunctions()
    return _Writer(document, form, named, beside or document.path.absolute().parent).write()


def load_flows(folder: str | Path, functions: Mapping[str, Callable[..., Any]] | None = None) -> list[Flow]:
    """Return the flows of all `*.yaml` and `*.yml` files of a folder, by file name.

    Raises:
        FlowFileError: of the first file that is no flow, or names one that another file has.
    """
    flows: dict[str, Flow] = {}
    for path in sorted(file for file in Path(folder).iterdir() if file.suffix in (".yaml", ".yml")):
        flow = load_flow(path, functions)
        if flow.name in flows:
            raise FlowFileError(path, [(Document(path).locate(["flow"])[0], "flow", f'"{flow.name}" is there already')])
        flows[flow.name] = flow
    return list(flows.values())


class _Writer:
    """Writes the fluent form of a file, each line at the file's own line."""

    def __init__(self, document: Document, form: FlowForm, functions: Functions, beside: Path) -> None:
        self._document, self._form, self._functions, self._beside = document, form, functions, beside
        self._paths: dict[int, str] = {}

    def write(self) -> Flow:
        form = self._form
        with_location = Flow(form.flow, form.description, clock=form.clock, windows=form.windows)
        for number, stream in enumerate(form.streams):
            self._write_stream(with_location, stream, ["streams", number])
        return self._at(with_location, [], with_location.build)

    def _write_stream(self, flow: Flow, form: StreamForm, steps: list[Step]) -> None:
        def begin() -> FlowStream:
            source = form.source
            if source is not None and not isinstance(source, str):
                source = source.make(self._beside)
            return flow.stream(
                form.name,
                source,
                id=form.id,
                timestamp=form.timestamp,
                delay=form.delay,
                slice_by=form.slice_by,
            )

        stream: FlowStream = self._at(flow, steps, begin)
        for number, operation in enumerate(form.operations):
            self._write_operation(flow, stream, operation, [*steps, "operations", number])

    def _write_operation(self, flow: Flow, stream: FlowStream, form: str | OperationForm, steps: list[Step]) -> None:
        self._at(flow, steps, lambda: add(stream, form, self._functions))

    def _at(self, flow: Flow, steps: Sequence[Step], call: Callable[[], Any]) -> Any:
        """Call at a part's line; an error becomes one of the file."""
        line, path = self._document.locate(steps)
        self._paths[line] = path
        try:
            with flow._written_at(CodeLocation(str(self._document.path), line)):
                return call()
        except FlowFileError:
            raise
        except (DefinitionError, TrideltaError, ValueError, TypeError) as error:
            at, problem = self._placed(error, line)
            raise FlowFileError(self._document.path, [(at, self._paths.get(at, path), problem)]) from error

    def _placed(self, error: Exception, line: int) -> tuple[int, str]:
        """Return an error's own line, if it has one, and its text without it."""
        text = (
            error.problem + (f"\n  Next: {error.hint}" if error.hint else "")
            if isinstance(error, FlowError)
            else str(error)
        )
        if isinstance(error, FlowError) and isinstance(error.at, CodeLocation):
            return error.at.line, text
        own = re.match(rf'flow "[^"]*", stream "[^"]*", at {re.escape(str(self._document.path))}:(\d+): ', text)
        return (int(own[1]), text[own.end() :]) if own else (line, text)


def _faults(document: Document, errors: Sequence[ErrorDetails]) -> list[tuple[int, str, str]]:
    """Return the faults of a document in the order of its lines.

    A part that may have several forms is at fault in each of them; what went deepest is what the writer meant.
    """
    faults: dict[tuple[int, str], list[str]] = {}
    for error in errors:
        steps = list(error["loc"])
        if error["type"] == "unknown_part":
            steps.append(str(error.get("ctx", {}).get("part")))
        line, path = document.locate(steps)
        if error["type"] == "missing":
            path = f"{path}.{steps[-1]}" if path else str(steps[-1])
        problems = faults.setdefault((line, path), [])
        if (problem := _problem(error)) not in problems:
            problems.append(problem)
    deepest = [
        (line, path, " or ".join(problems))
        for (line, path), problems in faults.items()
        if not any(other != path and re.match(rf"{re.escape(path)}[.\[]", other) for _, other in faults)
    ]
    return sorted(deepest)


def _problem(error: ErrorDetails) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "missing":
        return "is missing"
    if kind in ("model_type", "dict_type"):
        return "a mapping was expected"
    if kind == "string_pattern_mismatch":
        return f"{error['input']!r} does not match {context['pattern'].strip('^$')}"
    said = error["msg"].removeprefix("Value error, ").replace("Input should", "should")
    given = error["input"]
    # A whole mapping or list would hide the fault that is in it.
    return f"{said}; got {given!r}" if said.startswith("should") and isinstance(given, str | int | float) else said


Add = Callable[[FlowStream, Any, Functions], FlowStream]
AggregatingForm = AggregateForm | AlignedForm | SessionForm


def add(stream: FlowStream, form: str | OperationForm, functions: Functions) -> FlowStream:
    """Add an operation to a stream, by a call of the fluent form."""
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
