"""Dagster resources: Spark, the lake, deployed flows, the quality checks. Nothing here starts anything before it is used.

Names are loaded when they are asked for: the command line uses this package's words for tables, and needs no Dagster for that.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from resources.lake import LakeResource
    from resources.nimbus import NimbusResource
    from resources.quality import QualityResource
    from resources.spark import SparkResource

_HOMES = {
    "LakeResource": "lake",
    "NimbusResource": "nimbus",
    "QualityResource": "quality",
    "SparkResource": "spark",
}

__all__ = ["LakeResource", "NimbusResource", "QualityResource", "SparkResource"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
