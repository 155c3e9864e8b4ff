"""What all commands of `tridelta` share: how errors are told, JSON, the arguments that most have."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, ParamSpec

import typer

from ops.cli.screen import Screen
from pipelines.bounds import ON_FRESH, PORT, OutOfBoundsError, Range, choice
from pipelines.errors import DefinitionError, TrideltaError
from pipelines.graph.location import CodeLocation
from pipelines.surroundings import refused

errors = Screen(stderr=True, highlight=False)

FlowName = Annotated[str, typer.Argument(metavar="FLOW", help="A flow of the catalog.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")]
Parameters = ParamSpec("Parameters")


def bounded(limit: Range) -> Callable[[Any], Any]:
    """What reads an option's number, within limits.

    Args:
        limit: The limits.
    """

    def read(given: Any) -> Any:
        try:
            return limit.taken(given)
        except OutOfBoundsError as error:
            raise typer.BadParameter(str(error)) from None

    # The name stands in the help text.
    read.__name__ = "integer" if limit.whole else "number"
    return read


def on_fresh(given: str) -> str:
    """What a start does with tables whose checkpoint is gone."""
    try:
        return choice(given, ON_FRESH)
    except OutOfBoundsError as error:
        raise typer.BadParameter(str(error)) from None


def ports_of(text: str | None) -> list[int] | None:
    """Slots of a supervisor, with commas.

    Raises:
        DefinitionError: One is no port.
    """
    try:
        return None if text is None else [PORT.taken(part.strip()) for part in text.split(",")]
    except OutOfBoundsError as error:
        raise DefinitionError(f"--ports {error}", hint="write them as --ports 6900,6901") from None


def plainly(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """An error of the engine is printed as its text, with exit code 1."""

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
            found = refused(error)
            if found is None:
                raise
            tell_plainly(found)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            errors.print("Interrupted. What was committed stays; the next run goes on after it.")
            raise typer.Exit(130) from None

    return run


def tell_plainly(error: TrideltaError) -> None:
    """Print an error of the engine: its class, its text, and the line of a flow's code that is wrong."""
    errors.print(f"[bold red]{type(error).__name__}[/]", end=": ")
    # A terminal breaks long lines itself; broken here, a path or a command could not be copied.
    errors.print(str(error) + _place(error), markup=False, soft_wrap=True)


def _place(error: TrideltaError) -> str:
    """The line of the flow's code that is wrong, where the error does not say it."""
    place = CodeLocation.of_error(error) if isinstance(error, DefinitionError) else None
    return f"\n  At: {place}" if place is not None and str(place) not in str(error) else ""


def emit(plain: Any) -> None:
    """Print JSON."""
    print(json.dumps(plain, indent=2, default=str))
