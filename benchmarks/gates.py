"""A gate of six row rules against no gate, and against great-expectations run on each batch."""

from __future__ import annotations

import json
import os
import random
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measure import Ratio, paired, scratch, seconds
from pipelines import Lake, Runtime
from pipelines.quality import (
    Check,
    CompiledGate,
    Gate,
    GateResult,
    compile_gate,
    drop,
    run_with_great_expectations,
    warn,
)
from pipelines.sources import JsonFiles
from pipelines.trident import Average, Count, DeltaState, TridentTopology

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PEER = (
    "the same flow without a gate; and great-expectations run on the batch in memory by "
    "`run_with_great_expectations` without its complete result format; without its start: its context, batch and suite are "
    "made before, and `validate` alone is timed."
)
ROWS, BATCHES, ROUNDS = 200_000, 4, 3
# A judgement takes a fraction of a second: enough of them that the median is one of a warm process, on both sides.
JUDGEMENTS = 9
SCHEMA = "carrier string, origin string, dest string, delay bigint, distance bigint, tail string"


def checks() -> list[Check]:
    return [
        drop("expect_column_values_to_not_be_null", column="carrier"),
        drop("expect_column_values_to_be_in_set", column="origin", value_set=["JFK", "LGA", "EWR"]),
        drop("expect_column_values_to_be_between", column="delay", min_value=-200, max_value=2000),
        warn("expect_column_values_to_be_between", column="distance", min_value=1, max_value=6000),
        warn("expect_column_value_lengths_to_equal", column="dest", value=3),
        warn("expect_column_values_to_match_regex", column="tail", regex="^N[0-9A-Z]+$"),
    ]


def measure(spark: SparkSession) -> list[Ratio]:
    with scratch("gates") as folder:
        generate(folder / "in")
        number = iter(range(1000))
        gated, plain = paired(
            lambda: run(spark, folder, next(number), gate=True),
            lambda: run(spark, folder, next(number), gate=False),
            ROUNDS,
        )
        judged = [
            Ratio(f"6 row rules on a batch of {label} in memory", peer, own, theirs, "s", 5, "higher")
            for rows, label, whole in ((ROWS, "200 k", True), (50_000, "50 k", True), (50_000, "50 k", False))
            for peer in ("great-expectations" if whole else "great-expectations, without its start",)
            for own, theirs in (judgements(spark, folder / f"{rows}.json", rows, with_start=whole),)
        ]
    return [Ratio("batch with a gate of 6 row rules", "no gate", gated, plain, "s", 1.3), *judged]


def judgements(spark: SparkSession, file: Path, rows: int, *, with_start: bool) -> tuple[float, float]:
    """A judgement of a batch in memory by us and by great-expectations, with or without making its context."""
    write(file, rows, random.Random(rows))
    frame = spark.read.schema(SCHEMA).json(str(file)).persist()
    frame.count()
    compiled = compile_gate(Gate("sane", checks()), frame.schema)
    try:
        started = Started(frame)
        by_gx = started.run if not with_start else lambda: run_with_great_expectations(frame, checks(), complete=False)
        return paired(lambda: seconds(lambda: judge(compiled, frame)), lambda: seconds(by_gx), JUDGEMENTS)
    finally:
        frame.unpersist()


class Started:
    """great-expectations with its context and its suite made: what is left is the validation."""

    def __init__(self, frame: DataFrame) -> None:
        import great_expectations as gx
        from great_expectations.data_context.types.base import ProgressBarsConfig

        context = gx.get_context(mode="ephemeral")
        context.variables.progress_bars = ProgressBarsConfig(globally=False)
        source = context.data_sources.add_spark("started", persist=False)
        definition = source.add_dataframe_asset("rows").add_batch_definition_whole_dataframe("all")
        self._batch = definition.get_batch({"dataframe": frame})
        made = [getattr(gx.expectations, _class_name(check.expectation))(**check.kwargs) for check in checks()]
        self._suite = gx.ExpectationSuite(name="sane", expectations=made)

    def run(self) -> None:
        assert self._batch.validate(self._suite, result_format="BOOLEAN_ONLY").success


def _class_name(expectation: str) -> str:
    return "".join(part.capitalize() for part in expectation.split("_"))


def judge(compiled: CompiledGate, frame: DataFrame) -> GateResult:
    """What the engine does with a gate on each batch; the compilation is kept from batch to batch."""
    return compiled.judge(compiled.annotate(frame))


def generate(folder: Path) -> None:
    choose = random.Random(3)
    folder.mkdir(parents=True)
    for number in range(BATCHES):
        file = folder / f"{number:04d}.json"
        write(file, ROWS, choose)
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))


def write(file: Path, rows: int, choose: random.Random) -> None:
    with file.open("w") as out:
        for _ in range(rows):
            out.write(json.dumps(_row(choose)) + "\n")


def _row(choose: random.Random) -> dict[str, Any]:
    return {
        "carrier": choose.choice(("AA", "UA", "DL", "B6")),
        "origin": choose.choice(("JFK", "LGA", "EWR")),
        "dest": choose.choice(("SFO", "LAX", "BOS", "MIA")),
        "delay": choose.randint(-20, 300),
        "distance": choose.randint(100, 3000),
        "tail": f"N{choose.randint(100, 999)}",
    }


def run(spark: SparkSession, folder: Path, number: int, *, gate: bool) -> float:
    """Median batch seconds."""
    topology = TridentTopology("gated")
    stream = topology.new_stream("flown", JsonFiles(folder / "in", SCHEMA, max_files_per_batch=1))
    if gate:
        stream = stream.gate(*checks(), name="sane")
    kept = [Count("flights"), Average("delay", "avg_delay")]
    stream.group_by(["carrier", "dest"]).persistent_aggregate(DeltaState("delays"), kept)
    report = Runtime(spark, Lake(folder / f"lake{number}")).catch_up(topology)
    assert len(report.batches) == BATCHES
    return statistics.median(batch.seconds for batch in report.batches)
