"""`make soak MINUTES=30`: deployed flows under faults drawn by lot. Not part of `make test`.

The lots come from TRIDELTA_SOAK_SEED (1 by default), the length from TRIDELTA_SOAK_MINUTES; figures go to out/soak.json.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.nimbus.deployment import PROJECT, Deployment
from tests.nimbus.faults import own_disk
from tests.soak.soak import FLOWS, Soak

MINUTES = float(os.environ.get("TRIDELTA_SOAK_MINUTES", "30"))

pytestmark = [pytest.mark.soak, pytest.mark.slow, pytest.mark.timeout(MINUTES * 60 + 3600)]


def test_soak(tmp_path: Path) -> None:
    """Whatever happens, in whatever order: no row is lost, none is there twice, and nobody has to do anything."""
    seed = int(os.environ.get("TRIDELTA_SOAK_SEED", "1"))
    lake = tmp_path / "home" / "lake"
    with own_disk(lake, 1024) as mounted, Deployment(tmp_path / "home") as here:
        here.submit("numbers", "readings")
        here.submit("apart", isolated=True)
        here.runs(*FLOWS)
        here.settles()
        soak = Soak(here, lake if mounted else None, seed)
        try:
            figures = soak.run(MINUTES)
        finally:
            out = PROJECT / "out" / "soak.json"
            out.parent.mkdir(exist_ok=True)
            told = json.dumps(soak.figures.to_json(), indent=1)
            out.write_text(told)
            print(told)
        assert (figures.rows_lost, figures.rows_doubled, figures.left_over) == (0, 0, 0)
        here.ends_well()
