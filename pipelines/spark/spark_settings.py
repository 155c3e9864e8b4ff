"""The Spark settings that forms take and pages show."""

from __future__ import annotations

SPARK_SETTINGS = frozenset(
    {
        "spark.cores.max",
        "spark.default.parallelism",
        "spark.driver.memory",
        "spark.dynamicAllocation.enabled",
        "spark.dynamicAllocation.maxExecutors",
        "spark.dynamicAllocation.minExecutors",
        "spark.executor.cores",
        "spark.executor.instances",
        "spark.executor.memory",
        "spark.executor.memoryOverhead",
        "spark.memory.fraction",
        "spark.sql.adaptive.enabled",
        "spark.sql.autoBroadcastJoinThreshold",
        "spark.sql.files.maxPartitionBytes",
        "spark.sql.files.minPartitionNum",
        "spark.sql.shuffle.partitions",
        "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled",
        "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB",
        "spark.task.cpus",
    }
)
"""Sizes, counts and switches: none of them names a class, a file, a host or an option of a process."""
