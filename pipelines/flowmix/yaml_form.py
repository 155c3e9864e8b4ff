"""Flows written as YAML: `load_flow("late_departures.yaml")` gives what the fluent form gives, with the file's lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from pipelines.errors import DefinitionError, FlowError, FlowFileError, TrideltaError
from pipelines.flowmix.flow import Flow
from pipelines.flowmix.stream import FlowStream
from pipelines.flowmix.yaml_document import Document
from pipelines.flowmix.yaml_functions import Functions, NamedFunctions
from pipelines.flowmix.yaml_models import FlowForm, OperationForm, StreamForm
from pipelines.flowmix.yaml_operations import add
from pipelines.graph.nodes import CodeLocation

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
            at, problem = self._told(error, line)
            raise FlowFileError(self._document.path, [(at, self._paths.get(at, path), problem)]) from error

    def _told(self, error: Exception, line: int) -> tuple[int, str]:
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
