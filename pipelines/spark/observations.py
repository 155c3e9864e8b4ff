"""The counts of a frame's rows that Spark takes while an action runs over them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from pipelines.errors import BatchError

if TYPE_CHECKING:
    from pyspark.sql import Observation

# Spark delivers an observation on its listener bus, normally within milliseconds of the action's end.
_OBSERVATION_SECONDS = 30.0


def observed(observation: Observation, otherwise: Callable[[], Mapping[str, Any]] | None = None) -> Mapping[str, Any]:
    """Return the values of an observation whose action has ended.

    Args:
        otherwise: gives them where Spark saw that a result needs no row of what is observed, and left it out.

    Raises:
        BatchError: if Spark never delivers them (it would be waited for without end).
    """
    future = observation._jo.future()  # type: ignore[union-attr]
    end = time.monotonic() + _OBSERVATION_SECONDS
    while not future.isCompleted():
        if time.monotonic() > end:
            raise BatchError(f"Spark did not report the row counts of the batch within {_OBSERVATION_SECONDS:g} s")
        time.sleep(0.001)
    try:
        return observation.get
    except Py4JError:
        if otherwise is None:
            raise
        return otherwise()
