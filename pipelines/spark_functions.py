"""Spark's functions of columns, for modules that are also read where there is no Spark: pyspark loads with the first of them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.functions import *  # noqa: F403


def __getattr__(name: str) -> Any:
    value = globals()[name] = getattr(importlib.import_module("pyspark.sql.functions"), name)
    return value
