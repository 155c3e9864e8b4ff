"""Dagster resources: Spark, the lake, deployed flows, the quality checks. Nothing here starts anything before it is used."""

from resources.lake import LakeResource
from resources.nimbus import NimbusResource
from resources.quality import QualityResource
from resources.spark import SparkResource

__all__ = ["LakeResource", "NimbusResource", "QualityResource", "SparkResource"]
