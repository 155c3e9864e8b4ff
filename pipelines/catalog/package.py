"""A package of flows of one's own: `FLOWS = flows_of(__name__)` in its `__init__` finds them all."""

from __future__ import annotations

import importlib
import pkgutil

from pipelines.catalog.flow import FlowSpec

FUNCTIONS = ()


def flows_of(package: str) -> tuple[FlowSpec, ...]:
    """Return the flows that the modules of a package make, in the order of the modules' names.

    A flow is a `FlowSpec` that stands in a module under a name of its own, or in the module's `FLOWS`. Tests (`test_...`,
    `conftest`) and names that begin with `_` are passed over. A flow that several modules name is taken once.

    Args:
        package: its name, `__name__` in its `__init__`.

    Raises:
        ImportError: if one of the modules cannot be imported.
    """
    specs: dict[int, FlowSpec] = {}
    path = importlib.import_module(package).__path__
    for name in sorted(module.name for module in pkgutil.iter_modules(path)):
        if name.startswith(("_", "test_")) or name == "conftest":
            continue
        module = vars(importlib.import_module(f"{package}.{name}"))
        for value in (*module.values(), *module.get("FLOWS", ())):
            if isinstance(value, FlowSpec):
                specs[id(value)] = value
    return tuple(specs.values())
