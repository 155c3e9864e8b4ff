"""What all commands of `tridelta` share: how errors are told, JSON, the arguments that most have."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, ParamSpec

import typer

from ops.screen import Screen
from pipelines.errors import DefinitionError, TrideltaError
from pipelines.graph.location import CodeLocation

errors = Screen(stderr=True, highlight=False)

FlowName = Annotated[str, typer.Argument(metavar="FLOW", help="A flow of the catalog.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")]
Parameters = ParamSpec("Parameters")


def plainly(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """An error of the engine is printed as its text, with exit code 1."""

    @wraps(command)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        from pipelines.nimbus.elsewhere import watch_registry

        watch_registry()
        try:
            command(*args, **kwargs)
        except TrideltaError as error:
            errors.print(f"[bold red]{type(error).__name__}[/]", end=": ")
            # A terminal breaks long lines itself; broken here, a path or a command could not be copied.
            errors.print(str(error) + _place(error), markup=False, soft_wrap=True)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            errors.print("Interrupted. What was committed stays; the next run goes on after it.")
            raise typer.Exit(130) from None

    return run


def _place(error: TrideltaError) -> str:
    """The line of the flow's code that is wrong, where the error does not say it."""
    place = CodeLocation.of_error(error) if isinstance(error, DefinitionError) else None
    return f"\n  At: {place}" if place is not None and str(place) not in str(error) else ""


def emit(plain: Any) -> None:
    """Print JSON."""
    print(json.dumps(plain, indent=2, default=str))
