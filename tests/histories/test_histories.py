"""Histories: programs of operations over one lake go as the model says; programs that once did not are run again."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake.exceptions import DeltaError
from rich.console import Console

from pipelines.sources import FixedBatches
from pipelines.testing.flow_reference import read_script
from pipelines.testing.flows import ScriptSource
from tests.conformance.random_flows import SCHEMA, FlowMaker
from tests.histories.child import Drivers
from tests.histories.comparing import Difference
from tests.histories.drawing import draw
from tests.histories.programs import Program, run
from tests.histories.runner import campaign
from tests.histories.seeds import SEEDS as SEEDS_OF_FAULTS
from tests.histories.shrinking import shrink
from tests.histories.world import small_and_quick
from tests.tiers import tier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOUND = sorted((Path(__file__).parent / "found").glob("*.json"))
OLD_FAULTS = [file for file in FOUND if file.stem[0] in "1234567"]
# Each takes more than seven seconds on a busy machine.
LONG = {
    "values_beside_those_of_a_join",
    "7_skip_behind_windows",
    "empty_slice_of_a_map",
    "map_slice_behind_a_cleaned_log",
    "reset_after_nothing_but_poison",
    "backfill_behind_a_planned_first_batch",
    "frozen_writer_behind_poison",
    "fold_of_a_value_added_later",
    "two_skipped_batches_whose_plans_are_lost",
    "one_time_in_two_batches_where_streams_meet",
    "older_plan_of_the_same_files",
    "opaque_left_alone_behind_a_replay",
    "skipped_batch_outlives_its_txid",
    "row_without_slice_of_a_batch_that_waits",
    "closed_batch_before_lost_plans",
    "rows_put_back_by_a_replay_before_a_fresh_checkpoint",
}
# Of `make test`: fixed ones of eight operations, among them a writer that freezes, a backfill beside a file that is gone, and a
# cancelled and a killed backfill of a table. Windows, the first of which takes a new JVM most of a minute, have
# `found/2_windows_cut_at_commits`.
SEEDS = (("files", 1933), ("tables", 20))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("shape", "seed"), SEEDS)
def test_programs_of_fixed_seeds(spark: SparkSession, shape: str, seed: int) -> None:
    with small_and_quick(spark):
        finding = run(spark, draw(seed, 8, shape=shape))
    assert finding is None, str(finding)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "file",
    [pytest.param(file, marks=tier(file.stem not in LONG), id=file.stem) for file in FOUND],
)
def test_programs_that_found_something(spark: SparkSession, file: Path) -> None:
    with small_and_quick(spark):
        finding = run(spark, Program.load(file.read_text(encoding="utf-8")))
    assert finding is None, str(finding)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("share", "signals"), [pytest.param(0.75, False, id="in_process"), pytest.param(0.25, True, id="signals")]
)
def test_programs_of_a_new_seed(
    spark: SparkSession, record_property: Callable[[str, object], None], share: float, signals: bool
) -> None:
    """A part of all programs that there are: another one each time, unless TRIDELTA_HISTORIES_SEED says which.

    A quarter of the minutes goes to programs in which processes get SIGKILL, SIGSTOP and SIGCONT.
    """
    seed = int(os.environ.get("TRIDELTA_HISTORIES_SEED", time.time_ns() % 1_000_000))
    minutes = share * float(os.environ.get("TRIDELTA_HISTORIES_MINUTES", "20"))
    again = f"python -m tests.histories --seed {seed} --minutes {minutes:g}{' --signals' if signals else ''}"
    record_property("shown", again)
    drivers, console = Drivers() if signals else None, Console(stderr=True)
    try:
        figures = campaign(
            spark,
            seed,
            1000,
            minutes=minutes,
            tries=40,
            console=console,
            drawn=partial(draw, signals=signals),
            drivers=drivers,
        )
    finally:
        if drivers is not None:
            drivers.close()
    record_property("shown", f"{figures.programs} programs, {len(figures.found)} differences")
    assert not figures.found, [found.lines for found in figures.found]


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("file", OLD_FAULTS, ids=lambda file: file.stem)
def test_old_faults_brought_back_are_found(spark: SparkSession, file: Path) -> None:
    """The programs of `found` that begin with a number are of the old fault of that number in `seeds`."""
    with small_and_quick(spark), SEEDS_OF_FAULTS[int(file.stem.split("_")[0])]():
        finding = run(spark, Program.load(file.read_text(encoding="utf-8")))
    assert finding is not None
    # A literal of thirty digits without its type (6) is more than delta-rs takes for a double: that shows, too.
    shown = (Difference, DeltaError) if file.stem.startswith("6_") else Difference
    assert isinstance(finding.error, shown), str(finding)


def test_a_program_is_plain_data() -> None:
    program = draw(7)
    assert Program.load(program.dump()) == program
    assert draw(7) == program


def test_shrinking_keeps_what_shows_the_difference() -> None:
    program = draw(random.Random(1).randrange(1000), length=40)

    def shows(candidate: Program) -> bool:
        names = [name for name, _ in candidate.operations]
        return "backfill" in names and "arrive" in names[: names.index("backfill")]

    assert shows(program)
    small = shrink(program, shows, tries=400)
    assert [name for name, _ in small.operations] == ["arrive", "backfill"]
    assert small.operations[0][1].get("rows") == []


def test_no_time_of_a_script_is_cut_where_streams_meet() -> None:
    """Of one time an earlier batch comes first: the reference engine, which has but one, says nothing of such cuts."""
    made = FlowMaker(184674, "batch").build()
    items = read_script(made.flow, made.script, "event", lambda *_: []).items["s0"]
    clock = len(SCHEMA.split(",")) + 2

    def clocks(source: ScriptSource) -> list[set[int]]:
        assert isinstance(source._inner, FixedBatches)
        return [{row[clock] for row in rows if row[clock - 1] is not None} for rows in source._inner.batches]

    whole = clocks(ScriptSource(made.flow.streams["s0"], items, 12_500, whole_times=True))
    assert len(whole) > 1
    assert sum(map(len, whole)) == len(set().union(*whole))
    cut = clocks(ScriptSource(made.flow.streams["s0"], items, 12_500))
    assert cut[0] & cut[1]
