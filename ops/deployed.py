"""`tridelta submit`, `status`, `kill` ...: the verbs of deployed flows."""

from __future__ import annotations

import typer

app = typer.Typer()
