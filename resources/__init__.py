"""Dagster resources: Spark, the lake, deployed flows, the quality checks. Nothing here starts anything before it is used.

Names are loaded when they are asked for, so that a module that needs one of them does not load all.
"""

from typing import TYPE_CHECKING

from pipelines.lazy import lazy

if TYPE_CHECKING:
    from resources.engine import LakeResource as LakeResource
    from resources.engine import NimbusResource as NimbusResource
    from resources.engine import QualityResource as QualityResource
    from resources.engine import SparkResource as SparkResource

__getattr__, __all__ = lazy(__name__, __file__)
