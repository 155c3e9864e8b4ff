"""The former place of `pipelines.spark.session`; it goes with version 0.3."""

from pipelines.spark.session import spark_session

__all__ = ["spark_session"]
