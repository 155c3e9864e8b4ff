"""Which of many cases run in `make test`, and which in `make test-all` only (`--exhaustive`)."""

from __future__ import annotations

from typing import Any

import pytest

EXHAUSTIVE = pytest.mark.exhaustive


def tier(always: bool, *, fast: bool = False) -> list[pytest.MarkDecorator]:
    """Marks of a case that takes seconds: it runs in `make test` if `always`, and with the fast tests if `fast`."""
    return ([] if fast else [pytest.mark.slow]) + ([] if always else [EXHAUSTIVE])


def several(points: tuple[Any, ...]) -> list[Any]:
    """Parameters of a test that goes through many points: every third of them in `make test`, else all."""
    return [pytest.param(points[1::3], id="some"), pytest.param(points, id="all", marks=EXHAUSTIVE)]
