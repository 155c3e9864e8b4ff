"""Resources start nothing before they are used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from pipelines.errors import UnknownStateError
from pipelines.quality import fail
from resources import LakeResource, QualityResource, SparkResource


@pytest.mark.slow
def test_resources_can_be_made_without_spark(tmp_path: Path) -> None:
    code = (
        "import sys; from resources import *;"
        f"SparkResource(); QualityResource(); NimbusResource(); LakeResource(root={str(tmp_path)!r}).lake();"
        "print([m for m in ('pyspark', 'great_expectations', 'alembic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_lake_is_where_it_is_said_to_be(tmp_path: Path) -> None:
    lake = LakeResource(root=str(tmp_path)).lake()
    assert lake.states() == []
    with pytest.raises(UnknownStateError):
        lake.state("nothing")


def test_quality_checks_a_table(spark) -> None:  # type: ignore[no-untyped-def]
    frame = spark.createDataFrame([(1,), (2,), (2,)], "n int")
    result = QualityResource(sample=1).validate_table(frame, [fail("column_values_to_be_unique", column="n")], "t")
    assert not result.success
    assert result.checks[0].unexpected == 2
    assert len(result.checks[0].detail["sample"]) == 1


def test_one_session_a_process(spark) -> None:  # type: ignore[no-untyped-def]
    seen = []

    @dg.op
    def look(one: SparkResource) -> None:
        seen.append(one.session())

    @dg.job(resource_defs={"one": SparkResource()})
    def job() -> None:
        look()
        look.alias("again")()

    assert job.execute_in_process().success
    assert all(session is spark for session in seen)
