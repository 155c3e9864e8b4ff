"""A flow whose files are in a bucket, named by TRIDELTA_FLOWS: each host reads the same, whatever its home."""

from __future__ import annotations

import os
from dataclasses import dataclass

from pipelines.catalog.flow import FlowSettings, FlowSpec
from pipelines.places.location import Location
from pipelines.trident import TridentTopology
from tests.nimbus import deployed_flows

DATA = "TRIDELTA_TEST_DATA"


@dataclass(frozen=True)
class InBucket:
    """Settings whose files arrive in the bucket that DATA names."""

    @property
    def data(self) -> Location:
        return Location.of(os.environ[DATA])


def numbers(settings: FlowSettings) -> TridentTopology:
    """Numbers by key: all of them, and their sums."""
    return deployed_flows.numbers(InBucket())  # type: ignore[arg-type]  # it asks for the data alone


FLOWS = (FlowSpec("numbers", "Numbers and their sums.", numbers),)
