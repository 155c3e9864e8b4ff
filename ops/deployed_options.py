"""Options of deployed flows as the command line takes them: `NAME=N`, `K=V`, a flow or a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines.errors import DefinitionError

NESTED = ("spark", "rebalance", "clustering")
"""Settings that are tables themselves: `spark.executor.memory=2g` is an entry of `spark`."""


def flow_and_file(text: str) -> tuple[str, Path | None]:
    """A flow's name, and the YAML file that it comes from if one was named.

    Raises:
        FlowFileError: The file is no flow.
    """
    if not text.endswith((".yaml", ".yml")):
        return text, None
    from pipelines.flowmix import load_flow

    file = Path(text)
    return load_flow(file).name, file


def counts(pairs: Sequence[str] | None) -> dict[str, int]:
    """`NAME=N` pairs.

    Raises:
        DefinitionError: One is not of that form.
    """
    found: dict[str, int] = {}
    for pair in pairs or ():
        name, _, number = pair.partition("=")
        if not name or not number.strip().isdigit():
            raise DefinitionError(
                f"not a parallelism: {pair!r}", hint="write it as NAME=N, e.g. --parallelism delays=4"
            )
        found[name] = int(number)
    return found


def settings_of(pairs: Sequence[str] | None) -> dict[str, Any]:
    """`K=V` pairs; a value is read as YAML: numbers, true, false, lists in brackets. Spark's own settings stay texts.

    Raises:
        DefinitionError: One is not of that form.
    """
    import yaml

    found: dict[str, Any] = {}
    for pair in pairs or ():
        name, equals, text = pair.partition("=")
        if not name or not equals:
            raise DefinitionError(f"not a setting: {pair!r}", hint="write it as K=V, e.g. --setting isolated=true")
        table, dot, key = name.partition(".")
        if table == "spark" and dot:
            found.setdefault("spark", {})[name] = text
            continue
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise DefinitionError(f"not a setting: {pair!r}: {' '.join(str(error).split())}") from None
        if table in NESTED and dot:
            found.setdefault(table, {})[key] = value
        else:
            found[name] = value
    return found
