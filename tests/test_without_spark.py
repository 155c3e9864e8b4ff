"""Modules that say "No Spark here" load without it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SAYS = "No Spark here"


def modules() -> list[str]:
    names = []
    for path in sorted((ROOT / "pipelines").rglob("*.py")):
        if SAYS in (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""):
            parts = path.relative_to(ROOT).with_suffix("").parts
            names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


@pytest.mark.slow
def test_modules_that_say_so_load_without_spark() -> None:
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    if 'pyspark' in sys.modules:\n"
        "        sys.exit(f'{name} imports pyspark')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, *modules()], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
