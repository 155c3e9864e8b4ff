"""A session of its own for a query that has another number of shuffle partitions than the process's session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pipelines.errors import DefinitionError, nearest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Partitions = Mapping[str, int] | int | None
"""Shuffle partitions a batch group by its name, or of all; None: as they are."""

_CONF = "spark.sql.shuffle.partitions"


def asked_for(flow: str, groups: Sequence[str], partitions: Partitions) -> dict[str, int]:
    """Return the numbers that are asked for, by batch group.

    Raises:
        DefinitionError: a group that the flow does not have, or a number below one.
    """
    if partitions is None:
        return {}
    asked = dict.fromkeys(groups, partitions) if isinstance(partitions, int) else dict(partitions)
    for name, number in asked.items():
        if name not in groups:
            known = ", ".join(f'"{group}"' for group in groups)
            raise DefinitionError(
                f'flow "{flow}" has no batch group "{name}" that could have partitions{nearest(name, groups)}',
                hint=f"its batch groups are {known}",
            )
        if number < 1:
            raise DefinitionError(f'flow "{flow}": batch group "{name}" cannot have {number} partitions, at least one')
    return asked


def own_session(spark: SparkSession, partitions: int | None) -> SparkSession:
    """Return a session like this one with a number of shuffle partitions; the same one if it has that number.

    Settings, functions and views of the session are as they are now; later changes do not reach the new one, nor do
    listeners that are added to `spark.streams`.
    """
    if partitions is None or spark.conf.get(_CONF) == str(partitions):
        return spark
    made = type(spark)(spark.sparkContext, spark._jsparkSession.cloneSession())
    made.conf.set(_CONF, str(partitions))
    return made
