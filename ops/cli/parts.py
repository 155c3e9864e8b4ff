"""The parts that commands of `tridelta` share: errors as texts, JSON, common arguments, the lake and the engine."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

from ops.cli import rendering
from ops.cli.rendering import Screen
from pipelines.bounds import CHANGED_WINDOWS, ON_FRESH, PORT, OutOfBoundsError, Range, choice
from pipelines.catalog import FlowSettings
from pipelines.errors import DefinitionError, TrideltaError
from pipelines.graph.location import CodeLocation
from pipelines.surroundings import refused

if TYPE_CHECKING:
    from pipelines import Lake, Runtime

errors = Screen(stderr=True, highlight=False)

KnownFlow = Annotated[
    str, typer.Argument(metavar="FLOW|FILE.yaml", help="A flow of the catalog or a deployed one, or a flow as YAML.")
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON and nothing else on standard output; bytes are in base64.")
]
Parameters = ParamSpec("Parameters")


def bounded(limit: Range) -> Callable[[Any], Any]:
    """Return a reader of an option's number, within limits."""

    def read(given: Any) -> Any:
        try:
            return limit.taken(given)
        except OutOfBoundsError as error:
            raise typer.BadParameter(str(error)) from None

    # The help text shows the name.
    read.__name__ = "integer" if limit.whole else "number"
    return read


def _one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    def read(given: str) -> str:
        try:
            return choice(given, choices)
        except OutOfBoundsError as error:
            raise typer.BadParameter(str(error)) from None

    read.__name__ = "word"
    return read


ChangedWindows = Annotated[
    str,
    typer.Option(
        parser=_one_of(CHANGED_WINDOWS),
        metavar="WORD",
        help="If the flow's windows were changed: refuse, or begin: the changed ones begin empty.",
    ),
]
OnFresh = Annotated[
    str,
    typer.Option(
        parser=_one_of(ON_FRESH),
        metavar="WORD",
        help="If a checkpoint is missing but the states exist: refuse, continue or reset.",
    ),
]


def ports_of(text: str | None) -> list[int] | None:
    """Read the slots of a supervisor, separated by commas."""
    try:
        return None if text is None else [PORT.taken(part.strip()) for part in text.split(",")]
    except OutOfBoundsError as error:
        raise DefinitionError(f"--ports {error}", hint="write them as --ports 6900,6901") from None


def plainly(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Wrap a command: it prints an error of the engine as its text, with exit code 1."""

    @wraps(command)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        from pipelines.nimbus.handover.other_hosts import watch_registry

        try:
            watch_registry()
            command(*args, **kwargs)
        except TrideltaError as error:
            tell_plainly(error)
            raise typer.Exit(1) from None
        except BrokenPipeError:
            # Whoever read has read enough.
            raise
        except OSError as error:
            refusal = refused(error)
            if refusal is None:
                raise
            tell_plainly(refusal)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            errors.print("Interrupted. What was committed stays; the next run goes on after it.")
            raise typer.Exit(130) from None

    return run


def verb(
    app: typer.Typer, name: str | None = None, *, panel: str | None = None
) -> Callable[[Callable[Parameters, None]], Callable[Parameters, None]]:
    """Return the decorator that makes a function a command of an app, `plainly`.

    Args:
        name: The command's name; by default the function's.
        panel: The part of the help that lists it.
    """
    return lambda command: app.command(name, rich_help_panel=panel)(plainly(command))


def tell_plainly(error: TrideltaError) -> None:
    """Print an error of the engine: its class, its text, and the line of a flow's code that is wrong."""
    errors.print(f"[bold red]{type(error).__name__}[/]", end=": ")
    # A terminal breaks long lines itself; broken here, a path or a command could not be copied.
    errors.print(str(error) + _place(error), markup=False, soft_wrap=True)


def _place(error: TrideltaError) -> str:
    """Return the wrong line of the flow's code, where the error does not say it."""
    place = CodeLocation.of_error(error) if isinstance(error, DefinitionError) else None
    return f"\n  At: {place}" if place is not None and str(place) not in str(error) else ""


def emit(plain: Any) -> None:
    """Print JSON."""
    print(json_text(plain, indent=2))


def json_text(plain: Any, indent: int | None = None) -> str:
    """Return plain data as JSON that any program reads.

    It has no numbers for `nan` and `inf`, and no bytes: they are texts there, bytes in base64 as of Spark's `to_json`.
    """
    return json.dumps(_of_json(plain), indent=indent, default=str, allow_nan=False)


def _of_json(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, Mapping):
        return {_name(name): _of_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_of_json(item) for item in value]
    return value


def _name(key: Any) -> Any:
    return _of_json(key) if isinstance(key, str | int | float | bytes | None) else str(key)


def answer(as_json: bool, plain: Any, show: Callable[[], object]) -> None:
    """Print a command's result: JSON for scripts, else what people see.

    Args:
        as_json: Which of the two.
        show: Prints it for people.
    """
    if as_json:
        emit(plain)
    else:
        show()


def pairs(texts: list[str]) -> dict[str, str]:
    """Read `name=value` texts as a mapping."""
    read: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise DefinitionError(f"not a key: {text!r}", hint="write it as name=value, e.g. --key carrier=AA")
        if name in read:
            raise DefinitionError(
                f"not a key: {name} is given twice, as {read[name]!r} and {value!r}", hint="ask for each"
            )
        read[name] = value
    return read


def opened_lake() -> Lake:
    """Open the lake of the settings; opening it reads nothing."""
    from pipelines import Lake

    return Lake(FlowSettings.from_environment().lake)


@contextmanager
def engine(quiet: bool) -> Iterator[Runtime]:
    """Start the engine, and show Spark's start: it is the longest silence of a short command."""
    from pipelines import Runtime, spark_session

    # Before Spark: a session reads S3 where a place there was named before it started.
    lake = opened_lake()
    with rendering.waiting("Starting Spark", quiet):
        session = spark_session("tridelta")
    try:
        yield Runtime(session, lake)
    finally:
        session.stop()
