"""The Python that a YAML file may name: what the caller gives, and what stands in a module of the catalog. Nothing else."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any

from pipelines.errors import FunctionError, nearest
from pipelines.flowmix.criteria import Python

CATALOG = "pipelines.catalog"

_NAME = re.compile(r"([a-z][a-z0-9_]*)\.([A-Za-z][A-Za-z0-9_]*)")


class Functions:
    """Functions and classes by name.

    Args:
        given: by the names that a file may use.
    """

    def __init__(self, given: Mapping[str, Callable[..., Any]]) -> None:
        self._given = dict(given)

    def find(self, operation: str, name: str) -> Any:
        """The function of a name.

        Args:
            operation: for messages.
            name: one that was given, or `module.name` for what a module of the catalog defines itself.

        Raises:
            FunctionError: if there is none.
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
        module = f"{CATALOG}.{parts[1]}"
        try:
            found = getattr(importlib.import_module(module), parts[2], None)
        except ModuleNotFoundError as error:
            raise FunctionError(operation, f'no function "{name}": {error}') from None
        home = found.call.__module__ if isinstance(found, Python) else getattr(found, "__module__", None)
        # What a module only imports (os, subprocess, ...) is not the file's to call.
        if not callable(found) or home != module:
            raise FunctionError(operation, f'no function "{name}": {module} does not define {parts[2]}')
        return found
