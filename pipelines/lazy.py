"""Names of a package that load on first use."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from typing import Any


def lazy(package: str, file: str) -> tuple[Callable[[str], Any], list[str]]:
    """Return `__getattr__` and `__all__` of a package that says each of its names once, for type checkers.

    Its names are those of `from module import Name as Name` below `if TYPE_CHECKING:`; another name behind `as` is an alias.

    Args:
        package: its `__name__`.
        file: its `__file__`.
    """
    # By its loader: on the executors of a cluster the package is in an archive.
    homes = _exported(sys.modules[package].__loader__.get_data(file))  # type: ignore[union-attr]

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = homes[name]
        return getattr(importlib.import_module(module), original)

    return load, list(homes)


def _exported(text: bytes) -> dict[str, tuple[str, str]]:
    """Return the names that a package's `__init__.py` imports for type checkers: the module of each, and its name there."""
    blocks = (node for node in ast.parse(text).body if isinstance(node, ast.If))
    imports = (line for block in blocks for line in block.body if isinstance(line, ast.ImportFrom) and line.module)
    return {alias.asname or alias.name: (line.module or "", alias.name) for line in imports for alias in line.names}
