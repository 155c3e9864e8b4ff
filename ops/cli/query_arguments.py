"""Questions to a flow's queries and to states, from texts: for the command line and for Dagster's forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipelines.errors import DefinitionError

if TYPE_CHECKING:
    from pipelines.state.table import StateTable


def pairs(texts: list[str]) -> dict[str, str]:
    """`name=value` texts as a mapping.

    Raises:
        DefinitionError: one is not written so.
    """
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise DefinitionError(f"not a key: {text!r}", hint="write it as name=value, e.g. --key carrier=AA")
        found[name] = value
    return found


def typed_key(table: StateTable, key: Mapping[str, str]) -> dict[str, Any]:
    """A key whose values are texts, each as its column's type.

    Raises:
        DefinitionError: a value is not of its column's type.
    """
    import pyarrow as pa

    types = {field.name: field.type for field in table.schema}
    found: dict[str, Any] = {}
    for name, value in key.items():
        try:
            found[name] = pa.scalar(value).cast(types.get(name, pa.string())).as_py()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise DefinitionError(f"not a key: {f'{name}={value}'!r}; {name} is {types[name]}") from None
    return found
