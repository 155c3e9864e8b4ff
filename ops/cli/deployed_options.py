"""Options of deployed flows as the command line takes them: `NAME=N`, `K=V`, a flow or a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines.bounds import TASKS, OutOfBoundsError, shown
from pipelines.errors import DefinitionError

_LONGEST, _DEEPEST = 100_000, 200
NESTED = ("spark", "rebalance", "clustering")
"""Settings that are tables themselves: `spark.executor.memory=2g` is an entry of `spark`."""


def flow_and_file(text: str) -> tuple[str, Path | None]:
    """Return a flow's name, and the YAML file that it comes from if one was named.

    Raises:
        FlowFileError: The file is no flow.
    """
    if not text.endswith((".yaml", ".yml")):
        return text, None
    from pipelines.flowmix import load_flow

    file = Path(text)
    return load_flow(file).name, file


def counts(pairs: Sequence[str] | None) -> dict[str, int]:
    """Read `NAME=N` pairs.

    Raises:
        DefinitionError: One is not of that form.
    """
    found: dict[str, int] = {}
    for pair in pairs or ():
        name, _, number = pair.partition("=")
        try:
            if not name:
                raise OutOfBoundsError("lacks its name")
            found[name] = TASKS.taken(number.strip())
        except OutOfBoundsError as error:
            raise DefinitionError(
                f"not a parallelism: {shown(pair)} {error}", hint="write it as NAME=N, e.g. --parallelism delays=4"
            ) from None
    return found


def settings_of(pairs: Sequence[str] | None) -> dict[str, Any]:
    """Read `K=V` pairs; a value is YAML: numbers, true, false, lists in brackets. Settings that are texts, and Spark's own,
    stay as they are written.

    Raises:
        DefinitionError: One is not of that form.
    """
    from pipelines.nimbus.flow_settings import TEXTS

    found: dict[str, Any] = {}
    for pair in pairs or ():
        name, equals, text = pair.partition("=")
        if not name or not equals:
            raise DefinitionError(f"not a setting: {shown(pair)}", hint="write it as K=V, e.g. --setting isolated=true")
        table, dot, key = name.partition(".")
        if table == "spark" and dot:
            found.setdefault("spark", {})[name] = text
            continue
        value = text if name in TEXTS else _read(pair, text)
        if table in NESTED and dot:
            found.setdefault(table, {})[key] = value
        else:
            found[name] = value
    return found


def _read(pair: str, text: str) -> Any:
    """Return the value of a setting.

    Raises:
        DefinitionError: It is no YAML, or longer than any setting is.
    """
    import yaml

    if len(text) > _LONGEST or text.count("[") + text.count("{") > _DEEPEST:
        raise DefinitionError(f"not a setting: {shown(pair)} is longer or deeper than any is")
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise DefinitionError(
            f"not a setting: {shown(pair)}: {problem}", hint='put a text in quotes: K="..."'
        ) from None
