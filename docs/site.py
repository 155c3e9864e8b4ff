"""A hook of mkdocs: puts the decisions into the navigation, and the names of a package into its page of the reference.

`<!-- names: pipelines.trident -->` stands for an entry for each name that the package exports.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
NAMES = re.compile(r"<!-- names: ([\w.]+) -->")


def on_config(config: Any) -> Any:
    """Names the decisions, in order."""
    decisions = sorted(path.name for path in (PROJECT / "docs" / "adr").glob("*.md"))
    for entry in config["nav"]:
        if isinstance(entry, dict) and "Decisions" in entry:
            entry["Decisions"] = [f"adr/{name}" for name in decisions]
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Puts an entry of the reference for each name; constants are listed."""

    def entries(match: re.Match[str]) -> str:
        names = public_names(match[1])
        constants = ", ".join(f"`{name}`" for name in names if name.isupper())
        listed = [f"Constants: {constants}."] if constants else []
        return "\n\n".join([*listed, *(f"::: {match[1]}.{name}" for name in names if not name.isupper())])

    return NAMES.sub(entries, markdown)


def public_names(package: str) -> list[str]:
    """The names that a package exports: constants, classes, functions. It is read and not imported."""
    tree = ast.parse((PROJECT / package.replace(".", "/") / "__init__.py").read_text(encoding="utf-8"))
    listed = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    # A package whose names load on first use lists them for type checkers.
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    imported = [line for block in blocks for line in block.body if isinstance(line, ast.ImportFrom)]
    names = ast.literal_eval(listed[0]) if listed else [one.asname for line in imported for one in line.names]
    return sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
