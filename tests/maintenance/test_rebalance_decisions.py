"""Decisions of a rebalance: thresholds, hysteresis, and that a constant load settles. No Spark."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.maintenance.rebalance import (
    CLUSTER,
    NONE,
    SCALE_IN,
    SCALE_OUT,
    Decision,
    Figures,
    TableLoad,
    Thresholds,
    decide,
    look_of_beat,
    window_spread,
)

RANK = {SCALE_IN: 0, NONE: 1, CLUSTER: 1, SCALE_OUT: 2}
LOOK_EVERY = 900.0


def look(
    seconds: float, *, partitions: int = 4, backlog: tuple[float, ...] = (), cores: int = 16, **more: object
) -> Figures:
    """A query with a trigger of five seconds whose last ten batches took the same."""
    made = Figures("f/g", 5.0, (seconds,) * 10, backlog, 1000.0, partitions, cores)
    return replace(made, **more)  # type: ignore[arg-type]


GROWING = (10.0, 20.0, 30.0, 40.0)
STEADY = (30.0, 31.0, 30.0, 31.0)


def decided(
    *history: Figures, last: float | None = None, now: float = 10_000.0, limits: Thresholds | None = None
) -> Decision:
    return decide(history, limits, last_change_at=last, now=now)


@pytest.mark.parametrize(
    ("one", "action", "after", "said"),
    [
        (look(4.1, backlog=GROWING), SCALE_OUT, 8, "82%"),
        (look(4.1, backlog=STEADY), NONE, 4, "from 30.5 to 30.5 waiting"),
        (look(4.1), NONE, 4, "nothing waits"),
        (look(3.9, backlog=GROWING), NONE, 4, "78%"),
        (look(7.6), SCALE_OUT, 8, "more than 150%"),
        (look(0.9), SCALE_IN, 2, "18%"),
        (look(0.9, backlog=(0.0, 1.0)), NONE, 4, "18%"),
        (look(1.1), NONE, 4, "22%"),
        (look(0.1, partitions=1), NONE, 1, "the least"),
        (look(9.0, partitions=32, cores=64), NONE, 32, "32 are the most"),
        (look(9.0, cores=2), NONE, 4, "4 are the most for 2 cores"),
        (look(9.0, cores=3), SCALE_OUT, 6, "180%"),
        (look(9.0, partition_rows=(100, 1, 1, 1, 1, 1)), NONE, 4, "5.7 times the average"),
        (look(9.0, partition_rows=(10, 9, 8, 11)), SCALE_OUT, 8, "180%"),
        (look(9.0, trigger_seconds=0.0, backlog=GROWING), SCALE_OUT, 8, "as soon as the last one ends"),
        (look(9.0, trigger_seconds=0.0, backlog=STEADY), NONE, 4, "no trigger"),
        (look(9.0, batch_seconds=()), NONE, 4, "no batch has run"),
    ],
)
def test_thresholds(one: Figures, action: str, after: int, said: str) -> None:
    found = decided(one, one, one)
    assert (found.action, found.before, found.after) == (action, one.partitions, after)
    assert said in found.sentence


@pytest.mark.parametrize(
    ("partitions", "after"), [(1, 2), (2, 4), (3, 4), (4, 8), (8, 16), (16, 29), (7, 11), (29, 29), (32, 32)]
)
def test_windows_take_numbers_that_spread_their_buckets(partitions: int, after: int) -> None:
    one = look(9.0, partitions=partitions, state_rows=64, cores=64)
    assert decided(one, one, one).after == after
    assert window_spread(after) >= window_spread(partitions)


def test_how_the_buckets_of_windows_spread() -> None:
    assert [window_spread(n) for n in (1, 2, 32)] == [1.0, 1.6, 32 / 3]


def test_one_slow_look_is_none_and_the_looks_must_be_in_a_row() -> None:
    slow, fine = look(9.0), look(2.0)
    assert decided(slow).action == NONE
    assert "1 of the last 3 looks say so" in decided(slow).sentence
    assert decided(slow, slow, fine, slow, slow).action == NONE
    assert decided(fine, slow, slow, slow).action == SCALE_OUT
    assert decided(slow, limits=Thresholds(looks=1)).action == SCALE_OUT


def test_looks_before_the_last_change_do_not_count() -> None:
    slow = look(9.0, partitions=8)
    before = look(30.0, partitions=4)
    assert decided(before, before, slow).action == NONE
    assert decided(before, slow, slow, slow).action == SCALE_OUT


def test_cool_down() -> None:
    slow = look(9.0)
    assert decided(slow, slow, slow, last=9_500.0).action == NONE
    assert "500 s ago" in decided(slow, slow, slow, last=9_500.0).sentence
    assert decided(slow, slow, slow, last=9_400.0).action == SCALE_OUT


def test_a_step_that_did_not_help_is_not_repeated() -> None:
    before, after = look(9.0, partitions=4), look(8.8, partitions=8)
    found = decided(before, after, after, after)
    assert (found.action, found.after) == (NONE, 8)
    assert "9.00 s with 4 partitions and takes 8.80 s with 8" in found.sentence
    busier = replace(after, rows_per_second=2000.0)
    assert decided(before, busier, busier, busier).action == SCALE_OUT


def test_experience_speaks_against_a_step_in() -> None:
    # Worse than its share with fewer partitions: the state did not fit into memory there, for one.
    before, after = look(9.0, partitions=2), look(0.5, partitions=4)
    assert decided(before, after, after, after).action == NONE
    quiet = replace(after, rows_per_second=100.0)
    assert decided(before, quiet, quiet, quiet).action == SCALE_IN


def test_clustering_comes_when_there_is_nothing_else() -> None:
    large = TableLoad("delays", 10**9, clustered_by=("origin", "day"), asked_by=("day",))
    found = decided(look(2.0, tables=(large, replace(large, name="small", bytes=10**6))))
    assert (found.action, found.tables) == (CLUSTER, {"delays": ("day",)})
    assert "lies by origin, day, and is asked by day" in found.sentence
    assert decided(look(2.0, tables=(replace(large, asked_by=("origin",)),))).action == NONE
    slow = look(9.0, tables=(large,))
    assert decided(slow, slow, slow).action == SCALE_OUT


def test_thresholds_that_would_swing_are_refused() -> None:
    for wrong in ({"idle": 0.5}, {"busy": 2.0}, {"least": 5, "most": 4}, {"looks": 0}):
        with pytest.raises(ValueError, match="must be"):
            Thresholds(**wrong)


def test_looks_at_several_queries_are_refused() -> None:
    with pytest.raises(ValueError, match="same query"):
        decided(look(1.0), look(1.0, query="f/h"))
    with pytest.raises(ValueError, match="one look"):
        decided()


def test_decisions_are_json() -> None:
    slow = look(9.0, tables=(TableLoad("delays", 10**9, (), ("day",)),))
    found = decided(slow, slow, slow)
    shown = json.loads(json.dumps(found.to_json()))
    assert (shown["action"], shown["before"], shown["after"]) == (SCALE_OUT, 4, 8)


def test_a_look_from_a_beat() -> None:
    beat = {
        "trigger_seconds": 5.0,
        "last_batch_seconds": [9.0] * 4,
        "last_backlogs": [1.0, 2.0],
        "rows_per_second": 12.5,
        "partitions": 4,
        "state_rows": 64,
    }
    one = look_of_beat("f/g", beat, cores=8)
    assert one == Figures("f/g", 5.0, (9.0,) * 4, (1.0, 2.0), 12.5, 4, 8, state_rows=64)
    assert decided(one, one, one).after == 8
    assert decided(look_of_beat("f/g", {}, cores=1)).action == NONE
    # Windows in the batch have rows too, and no buckets that Spark deals over partitions.
    in_batch = look_of_beat("f/g", beat | {"window_rows": 64, "partitions": 5}, cores=8)
    assert (in_batch.state_rows, in_batch.is_dealt) == (64, False)
    without = look_of_beat("f/g", beat | {"state_rows": None, "partitions": 5}, cores=8)
    assert decided(in_batch, in_batch, in_batch) == decided(without, without, without)
    assert decided(without, without, without).after == 10


# --- properties -----------------------------------------------------------------------------------------------------

loads = st.fixed_dictionaries(
    {
        "work": st.floats(0.01, 500),
        "alone": st.floats(0, 20),
        "each": st.floats(0, 0.5),
        "trigger": st.sampled_from([1.0, 5.0, 60.0]),
        "cores": st.integers(1, 32),
        "windows": st.booleans(),
        "waits": st.sampled_from([0.0, 7.0]),
    }
)


def seen(load: dict[str, float], partitions: int) -> Figures:
    """A look at a constant load: work that is shared, work that is not, and what each partition costs."""
    spread = min(window_spread(partitions) if load["windows"] else partitions, load["cores"])
    seconds = load["alone"] + load["work"] / spread + load["each"] * partitions
    behind = max(0.0, seconds - load["trigger"])
    backlog = tuple(load["waits"] + behind * 100 * n for n in range(10))
    rows = 64 if load["windows"] else None
    return Figures(
        "f/g", load["trigger"], (seconds,) * 10, backlog, 1000.0, partitions, int(load["cores"]), state_rows=rows
    )


@pytest.mark.slow
@given(load=loads, start=st.integers(1, 32), kept=st.sampled_from([3, 4, 10, 1000]))
def test_a_constant_load_settles_and_never_changes_again(load: dict[str, float], start: int, kept: int) -> None:
    partitions, history, changes, last = start, list[Figures](), list[tuple[int, str]](), None
    for number in range(60):
        history = [*history, seen(load, partitions)][-kept:]
        found = decide(history, last_change_at=last, now=number * LOOK_EVERY)
        if found.after != partitions:
            changes.append((number, found.action))
            partitions, last = found.after, number * LOOK_EVERY
    assert len({action for _, action in changes}) <= 1, f"swings: {changes}"
    assert all(number < 30 for number, _ in changes), f"does not settle: {changes}"


@given(load=loads, partitions=st.integers(1, 32), factor=st.floats(1, 100), more=st.floats(0, 1000))
def test_more_load_never_asks_for_less(load: dict[str, float], partitions: int, factor: float, more: float) -> None:
    one = seen(load, partitions)
    heavier = replace(
        one,
        batch_seconds=tuple(seconds * factor for seconds in one.batch_seconds),
        backlog=tuple(waiting + more * n for n, waiting in enumerate(one.backlog)),
    )
    before, after = decided(one, one, one), decided(heavier, heavier, heavier)
    assert RANK[after.action] >= RANK[before.action]
    assert after.after >= before.after


def test_what_is_not_known_is_none() -> None:
    unknown = look(1.0, batch_seconds=(), partition_rows=())
    assert (unknown.load, unknown.skew) == (None, None)
