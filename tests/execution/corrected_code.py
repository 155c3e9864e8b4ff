"""An aggregator whose code is corrected while a test runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelines.flowmix import WindowAggregator


class Faulty(WindowAggregator):
    """Sums, and cannot stand a 13 until a file is there: code that was corrected."""

    outputs = "sum bigint"

    def __init__(self, mended: str) -> None:
        self.sum, self.mended = 0, mended

    def added(self, event: Any) -> None:
        if event["v"] == 13 and not Path(self.mended).exists():
            raise ValueError("thirteen is not a number for me")
        self.sum += event["v"]

    def evicted(self, event: Any) -> None:
        """Nothing is taken back."""

    def aggregate(self) -> int:
        return self.sum
