"""Checks on whole tables as a Dagster resource."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import dagster as dg

from pipelines.quality import Check, GateResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class QualityResource(dg.ConfigurableResource):
    """Runs suites of checks: as one Spark aggregation where possible, by great-expectations for the rest."""

    sample: int = 10
    """How many violating rows a failed check shows."""

    def validate_table(self, frame: DataFrame, checks: Iterable[Check], name: str) -> GateResult:
        """Check all rows of a table.

        Raises:
            FieldError: a check names a column that the table lacks.
        """
        from pipelines.quality import validate_frame

        return validate_frame(frame, checks, sample=self.sample, name=name)
