"""The Python that a YAML file may name: what the caller gives, and what a module of the catalog offers. Nothing else.

A module of the catalog may list the functions and aggregators that files may name, as it lists its flows: `FUNCTIONS = (doubled,
Newest)`. Without a list they are all that it defines itself. The engine's own modules, which stand in the catalog too, list none.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pipelines.errors import FunctionError, nearest
from pipelines.flowmix.criteria import Python

CATALOG = "pipelines.catalog"

LISTED = "FUNCTIONS"
"""What a module of the catalog calls the list of what files may name."""

_NAME = re.compile(r"([a-z][a-z0-9_]*)\.([A-Za-z][A-Za-z0-9_]*)")


class Functions:
    """Functions and classes by name.

    Args:
        given: by the names that a file may use.
    """

    runs: bool = True
    """Whether what it finds may be called."""

    def __init__(self, given: Mapping[str, Callable[..., Any]]) -> None:
        self._given = dict(given)

    def find(self, operation: str, name: str) -> Any:
        """Return the function of a name.

        Args:
            operation: for messages.
            name: one that was given, or `module.name` for what a module of the catalog defines itself and offers.
        """
        if name in self._given:
            return self._given[name]
        parts = _NAME.fullmatch(name)
        if parts is None:
            raise FunctionError(
                operation,
                f'no function "{name}"; given are: {", ".join(self._given) or "none"}{nearest(name, self._given)}',
                hint=f"name it module.function, of a module of {CATALOG}, or pass functions={{...}} to load_flow",
            )
        return self._named(operation, name, parts[1], parts[2])

    def _named(self, operation: str, name: str, own: str, function: str) -> Any:
        module = f"{CATALOG}.{own}"
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise FunctionError(operation, f'no function "{name}": {error}') from None
        member = getattr(found, function, None)
        home = member.call.__module__ if isinstance(member, Python) else getattr(member, "__module__", None)
        # What a module only imports (os, subprocess, ...) is not the file's to call.
        if not callable(member) or home != module:
            raise FunctionError(operation, f'no function "{name}": {module} does not define {function}')
        listed = getattr(found, LISTED, None)
        if listed is None:
            return member
        if not isinstance(listed, tuple | list):
            raise FunctionError(operation, f'no function "{name}": {LISTED} of {module} is no tuple or list')
        if not any(member is one for one in listed):
            raise _not_listed(operation, name, module, function)
        return member


class NamedFunctions(Functions):
    """The same names, looked up in the text of the catalog's modules: nothing is imported, and what is found can't be called."""

    runs = False

    def __init__(self) -> None:
        super().__init__({})

    def _named(self, operation: str, name: str, own: str, function: str) -> Any:
        file = Path(__file__).parents[1] / "catalog" / f"{own}.py"
        if not file.is_file():
            raise FunctionError(operation, f'no function "{name}": there is no module {CATALOG}.{own}')
        try:
            module = ast.parse(file.read_text("utf-8"))
        except (OSError, ValueError, SyntaxError) as error:
            raise FunctionError(operation, f'no function "{name}": {file} cannot be read: {error}') from None
        if function not in set(_defined(module)):
            raise FunctionError(operation, f'no function "{name}": {CATALOG}.{own} does not define {function}')
        listed = _listed(module)
        if listed is not None and function not in listed:
            raise _not_listed(operation, name, f"{CATALOG}.{own}", function)

        def stands_for(*_: Any, **__: Any) -> Any:
            raise FunctionError(operation, f"{name} was looked up, not loaded")

        stands_for.__name__ = function
        return stands_for


def _not_listed(operation: str, name: str, module: str, function: str) -> FunctionError:
    return FunctionError(
        operation,
        f'no function "{name}": {module} does not list {function} for files',
        hint=f"if files may call it, list it there: {LISTED} = ({function}, ...)",
    )


def _defined(module: ast.Module) -> Iterator[str]:
    """Iterate over what a module defines itself: functions, classes, assignments."""
    for part in module.body:
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield part.name
        yield from _assigned(part)


def _listed(module: ast.Module) -> set[str] | None:
    """Return the names in a module's list for files; None: it has none."""
    lists = [
        part.value
        for part in module.body
        if LISTED in _assigned(part) and isinstance(part, ast.Assign | ast.AnnAssign) and part.value is not None
    ]
    return {one.id for value in lists for one in ast.walk(value) if isinstance(one, ast.Name)} if lists else None


def _assigned(part: ast.stmt) -> list[str]:
    """Return the names to which a statement assigns."""
    targets = part.targets if isinstance(part, ast.Assign) else [part.target] if isinstance(part, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]
