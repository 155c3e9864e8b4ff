"""Choices that a job's form offers: enums by the names of what there is."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any
from zlib import crc32


def one_of(name: str, members: Iterable[str]) -> Any:
    """An enum: the form offers its members, and refuses all else before the run. Of nothing it has one that says so.

    Dagster keeps the types of forms by name, for as long as the process lives: other members need another name, or a second
    catalog in one process (in tests, say) is refused what it has.

    Args:
        name: What the form calls it.
        members: The choices.
    """
    chosen = {one: one for one in members} or {"none": "none"}
    return Enum(f"{name}_{crc32(repr(sorted(chosen)).encode()):08x}", chosen)
