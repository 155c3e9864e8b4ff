"""Events that wait for the watermark and make a batch fail: its skip leaves them out, and the flow goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import PoisonBatchError, TrideltaError
from pipelines.execution.batch.driver_windows import DriverWindows
from pipelines.execution.batch.poison import PoisonRows
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.execution.checkpoint.waiting_rows import WaitingRows
from pipelines.execution.checkpoint.window_begin import state_files
from pipelines.execution.checkpoint.window_files import WindowFiles
from pipelines.flowmix import Flow, Policy, Sum
from pipelines.places.lease import LeaseLostError
from pipelines.sources import FixedBatches
from tests.execution.corrected_code import Faulty

pytestmark = pytest.mark.slow

SCHEMA = "k string, v bigint, timestamp bigint"
MOST = 2**63 - 1
LATER: list[Any] = [[("b", 5, 200_000)], [("b", 6, 400_000)], [("b", 7, 600_000)]]
BATCHES: list[Any] = [[("a", MOST, 0), ("a", 1, 1000)], *LATER]


def aligned(batches: list[Any] = BATCHES, every: int = 60) -> Callable[[int], Flow]:
    return lambda count: (
        Flow("late", windows="batch")
        .stream("s", FixedBatches(SCHEMA, batches[:count]), delay=60)
        .partition("k")
        .aligned(Sum("v", "sum"), every=every)
        .persist("sums")
        .build()
    )


def behind_a_window(count: int) -> Flow:
    """What waits fails in the second window, which it reaches within the same batch."""
    first: Any = Flow("late", windows="batch").stream("s", FixedBatches(SCHEMA, BATCHES[:count]), delay=60)
    first = first.partition("k").aggregate(Sum("v", "v"), trigger=Policy.count(1), evict=Policy.count(1))
    return first.partition("k").aligned(Sum("v", "sum"), every=60).persist("sums").build()


def between_windows(count: int) -> Flow:
    """What waits fails between two windows, in a function of the first one's results."""
    first: Any = Flow("late", windows="batch").stream("s", FixedBatches(SCHEMA, BATCHES[:count]), delay=60)
    first = first.partition("k").aggregate(Sum("v", "v"), trigger=Policy.count(1), evict=Policy.count(1))
    first = first.compute({"k string": "k", "v bigint": f"if(v >= {MOST}, 1 div (v - {MOST}), v)"})
    return first.partition("k").aligned(Sum("v", "sum"), every=60).persist("sums").build()


def one_by_one(mended: Path, batches: list[Any]) -> Callable[[int], Flow]:
    return lambda count: (
        Flow("late", windows="batch")
        .stream("s", FixedBatches(SCHEMA, batches[:count]), delay=60)
        .partition("k")
        .aggregate(Faulty(str(mended)), trigger=Policy.count(1), evict=Policy.count(99))
        .persist("sums")
        .build()
    )


def sums(lake: Lake) -> list[tuple[str, int]]:
    return sorted((row["k"], row["sum"]) for row in lake.state("sums").scan().to_pylist())


def quarantined(lake: Lake) -> list[tuple[int, str, Any, Any]]:
    if not lake.quarantine_path("late").exists():
        return []
    rows = DeltaTable(str(lake.quarantine_path("late"))).to_pyarrow_table().to_pylist()
    read = [(row["_txid"], row["rule"], json.loads(row["row"])) for row in rows]
    return sorted((txid, rule, row["k"], row["v"]) for txid, rule, row in read)


def poisoned(runtime: Runtime, flow: Callable[[int], Flow], txid: int, count: int) -> None:
    with pytest.raises(PoisonBatchError) as caught:
        runtime.catch_up(flow(count))
    assert caught.value.txid == txid


WAITED = [(1, "poison", "b", 5), (1, "waiting", "a", 1), (1, "waiting", "a", MOST)]


@pytest.mark.parametrize(
    "flow",
    [
        pytest.param(aligned(), id="aligned", marks=pytest.mark.exhaustive),
        pytest.param(behind_a_window, id="behind a window", marks=pytest.mark.exhaustive),
        pytest.param(between_windows, id="between two windows"),
    ],
)
def test_the_flow_goes_on_behind_the_skip(spark: SparkSession, tmp_path: Path, flow: Callable[[int], Flow]) -> None:
    lake = Lake(tmp_path)
    runtime = Runtime(spark, lake, max_attempts=2)
    runtime.catch_up(flow(1))
    poisoned(runtime, flow, 1, 2)
    assert quarantined(lake) == [(1, "poison", "b", 5)]
    runtime.skip(flow(2), 1)
    Runtime(spark, lake).catch_up(flow(4))
    assert sums(lake) == [("b", 6)]
    assert quarantined(lake) == WAITED


@pytest.mark.parametrize(
    "cut",
    ["before the mark", *(pytest.param(at, marks=pytest.mark.exhaustive) for at in ("before quarantine", "behind it"))],
)
def test_cut_off_in_the_skip_it_is_done_once_more(
    spark: SparkSession, tmp_path: Path, cut: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, flow = Lake(tmp_path), aligned()
    runtime = Runtime(spark, lake, max_attempts=1)
    runtime.catch_up(flow(1))
    poisoned(runtime, flow, 1, 2)
    runtime.skip(flow(2), 1)
    places = {
        "before quarantine": (PoisonRows, "keep_waiting_of"),
        "before the mark": (WaitingRows, "release"),
        "behind it": (DriverWindows, "leave_out_waiting"),
    }
    of, name = places[cut]
    inner = getattr(of, name)

    def off(*given: Any) -> None:
        if cut == "behind it":
            inner(*given)
        raise TrideltaError("cut off")

    with monkeypatch.context() as patched:
        patched.setattr(of, name, off)
        with pytest.raises(TrideltaError, match="cut off"):
            runtime.catch_up(flow(2))
    Runtime(spark, lake).catch_up(flow(4))
    assert sums(lake) == [("b", 6)]
    assert quarantined(lake) == WAITED


@pytest.mark.parametrize("cut", ["blamed", "left out"])
def test_who_has_lost_the_lease_notes_nothing_of_what_waits(
    spark: SparkSession, tmp_path: Path, cut: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood still behind the look at what waits, or behind quarantine; another process goes on, which has read the notes."""
    lake, flow, lost = Lake(tmp_path), aligned(), list[bool]()
    runtime = Runtime(spark, lake, max_attempts=1)
    runtime.catch_up(flow(1))
    if cut == "left out":
        poisoned(runtime, flow, 1, 2)
        runtime.skip(flow(2), 1)

    def held(_: Checkpoint) -> None:
        if lost:
            raise LeaseLostError("late", "run.lock", "another process has it")

    def stood_still(inner: Callable[..., Any]) -> Callable[..., Any]:
        def then_lost(*given: Any) -> Any:
            found = inner(*given)
            lost.append(True)
            return found

        return then_lost

    notes = set(state_files(lake.checkpoint_path("late", "s")).names())
    of, name = (WindowFiles, "waiting_fail") if cut == "blamed" else (PoisonRows, "keep_waiting_of")
    monkeypatch.setattr(of, name, stood_still(getattr(of, name)))
    monkeypatch.setattr(Checkpoint, "still_held", held)
    with pytest.raises(LeaseLostError):
        runtime.catch_up(flow(2))
    assert lost
    assert set(state_files(lake.checkpoint_path("late", "s")).names()) == notes


@pytest.mark.exhaustive
@pytest.mark.parametrize("has_own", [True, False], ids=["it has the batch's own rows", "it has none of the batch"])
def test_what_an_older_copy_of_quarantine_lacks_is_put_there_again(
    spark: SparkSession, tmp_path: Path, has_own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The skip is cut off before Spark's mark. Behind it what waited is in no window any more."""
    lake, flow = Lake(tmp_path / "lake"), aligned([[*BATCHES[0], ("without a time", 0, None)], *LATER])
    runtime = Runtime(spark, lake, max_attempts=1)
    runtime.catch_up(flow(1))
    quarantine = tmp_path / "lake" / "quarantine" / "late"

    def full(*_: Any) -> None:
        raise RuntimeError("it takes no rows")

    with monkeypatch.context() as patched:
        if not has_own:
            patched.setattr(PoisonRows, "_keep", full)
        poisoned(runtime, flow, 1, 2)
    shutil.copytree(quarantine, tmp_path / "copy")
    runtime.skip(flow(2), 1)
    inner = DriverWindows.leave_out_waiting

    def off(*given: Any) -> None:
        inner(*given)
        raise TrideltaError("cut off")

    with monkeypatch.context() as patched:
        patched.setattr(DriverWindows, "leave_out_waiting", off)
        with pytest.raises(TrideltaError, match="cut off"):
            runtime.catch_up(flow(2))
    shutil.rmtree(quarantine)
    shutil.copytree(tmp_path / "copy", quarantine)
    Runtime(spark, lake).catch_up(flow(4))
    assert sums(lake) == [("b", 6)]
    assert quarantined(lake)[1:] == WAITED


@pytest.mark.exhaustive
def test_what_waits_stays_where_the_batch_fails_by_its_own_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Two batches are left out, one for its own rows, one for what waits."""
    own = [
        [("a", 1, 0)],
        [("a", 13, 0), ("b", 1, 200_000)],
        [("b", 13, 300_000)],
        [("c", 1, 700_000)],
        [("c", 2, 900_000)],
    ]
    lake, flow = Lake(tmp_path), one_by_one(tmp_path / "never", own)
    runtime = Runtime(spark, lake, max_attempts=1)
    runtime.catch_up(flow(1))
    poisoned(runtime, flow, 1, 2)
    runtime.skip(flow(2), 1)
    runtime.catch_up(flow(3))
    assert sums(lake) == [("a", 1)]
    poisoned(runtime, flow, 3, 4)
    runtime.skip(flow(4), 3)
    runtime.catch_up(flow(5))
    assert quarantined(lake) == [
        (1, "poison", "a", 13),
        (1, "poison", "b", 1),
        (3, "poison", "c", 1),
        (3, "waiting", "b", 13),
    ]


@pytest.mark.parametrize(
    "otherwise",
    [
        pytest.param(False, id="by what waits", marks=pytest.mark.exhaustive),
        pytest.param(True, id="by something else behind that"),
    ],
)
def test_an_attempt_in_which_the_process_dies_takes_no_blame_away(
    spark: SparkSession, tmp_path: Path, otherwise: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one that ended counts."""
    lake, flow, opened, inner = Lake(tmp_path), aligned(), list[int](), DriverWindows.run
    Runtime(spark, lake).catch_up(flow(1))

    def dies(moment: str, state: str, txid: int) -> None:
        opened.extend([txid] if moment == "opened" else [])
        if len(opened) == 3:
            raise TrideltaError("the process died")

    def fails(*given: Any) -> Any:
        if otherwise and len(opened) == 2:
            raise RuntimeError("something else")
        return inner(*given)

    with monkeypatch.context() as patched:
        patched.setattr(DriverWindows, "run", fails)
        with pytest.raises(TrideltaError, match="the process died"):
            Runtime(spark, lake, listeners=[dies]).catch_up(flow(2))
    runtime = Runtime(spark, lake)
    with pytest.raises(PoisonBatchError, match="attempt 2 never ended"):
        runtime.catch_up(flow(2))
    runtime.skip(flow(2), 1)
    if otherwise:
        poisoned(runtime, flow, 2, 4)
        return
    runtime.catch_up(flow(4))
    assert sums(lake) == [("b", 6)]
    assert quarantined(lake) == WAITED


def test_another_error_in_the_look_at_what_waits_is_not_the_reason(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, flow = Runtime(spark, Lake(tmp_path), max_attempts=1), aligned()
    runtime.catch_up(flow(1))

    def fails(*_: Any) -> None:
        raise RuntimeError("between two windows")

    monkeypatch.setattr(WindowFiles, "waiting_fail", fails)
    with pytest.raises(PoisonBatchError, match='the sum of "v" does not fit bigint'):
        runtime.catch_up(flow(2))


def test_mended_windows_take_what_waits(spark: SparkSession, tmp_path: Path) -> None:
    batches = [[("a", 13, 0)], [("b", 1, 200_000)], [("b", 2, 400_000)]]
    lake, flow = Lake(tmp_path), one_by_one(tmp_path / "mended", batches)
    runtime = Runtime(spark, lake, max_attempts=1)
    runtime.catch_up(flow(1))
    poisoned(runtime, flow, 1, 2)
    (tmp_path / "mended").touch()
    runtime.catch_up(flow(3))
    assert sums(lake) == [("a", 13), ("b", 1)]
    assert quarantined(lake) == []


@pytest.mark.exhaustive
def test_a_batch_that_is_planned_again_takes_what_was_left_out_with_it(spark: SparkSession, tmp_path: Path) -> None:
    """Its plan, and Spark's mark, are lost with the power. It fails no more, or by something else."""
    batches = [[("a", 13, 0)], [("b", 1, 200_000)], [("b", 2, 400_000)]]
    lake, flow = Lake(tmp_path), one_by_one(tmp_path / "mended", batches)
    runtime = Runtime(spark, lake, max_attempts=1)
    runtime.catch_up(flow(1))
    poisoned(runtime, flow, 1, 2)
    runtime.skip(flow(2), 1)
    runtime.catch_up(flow(2))
    assert quarantined(lake) == [(1, "poison", "b", 1), (1, "waiting", "a", 13)]
    for kind in ("offsets", "commits"):
        for name in ("1", ".1.crc"):
            (lake.checkpoint_path("late", "s") / "spark" / kind / name).unlink(missing_ok=True)
    (tmp_path / "mended").touch()
    runtime.catch_up(flow(3))
    assert sums(lake) == [("a", 13), ("b", 1)]
    assert quarantined(lake) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "is_kept",
    [
        pytest.param(True, id="its record is kept", marks=pytest.mark.exhaustive),
        pytest.param(False, id="its record is lost"),
    ],
)
def test_changed_windows_get_what_waits_where_its_batch_is_planned_again(
    spark: SparkSession, tmp_path: Path, is_kept: bool
) -> None:
    """It fails again, and is left out no more: what waits is neither in quarantine nor left out of the new windows."""
    batches = [[("a", 13, 0)], [("b", 1, 200_000)], [("b", 2, 400_000)]]
    lake, flow = Lake(tmp_path), one_by_one(tmp_path / "never", batches)
    runtime = Runtime(spark, lake, max_attempts=1)
    runtime.catch_up(flow(1))
    poisoned(runtime, flow, 1, 2)
    runtime.skip(flow(2), 1)
    runtime.catch_up(flow(2))
    marks = ("offsets", "commits") if is_kept else ("commits",)
    for kind in marks:
        for name in ("1", ".1.crc"):
            (lake.checkpoint_path("late", "s") / "spark" / kind / name).unlink(missing_ok=True)
    if not is_kept:
        (lake.checkpoint_path("late", "s") / "attempts.json").unlink()
    poisoned(runtime, flow, 1, 3 if is_kept else 2)
    Runtime(spark, lake).catch_up(aligned(batches)(3), changed_windows="begin")
    assert sums(lake) == [("a", 13), ("b", 1)]
    assert quarantined(lake) == []


def passing(batches: list[Any]) -> Callable[[int], Flow]:
    """Without windows."""
    return lambda count: (
        Flow("late", windows="batch")
        .stream("s", FixedBatches(SCHEMA, batches[:count]), delay=60)
        .compute({"k string": "k", "sum bigint": "v"})
        .persist("sums")
        .build()
    )


def unmarked(lake: Lake) -> None:
    """Take Spark's mark of batch 1 away, as a loss of power does."""
    for name in ("1", ".1.crc"):
        (lake.checkpoint_path("late", "s") / "spark" / "commits" / name).unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("older", "by_way_of"),
    [
        ("the checkpoint", "windows"),
        pytest.param("its attempts", "windows", marks=pytest.mark.exhaustive),
        ("its attempts", "none"),
        pytest.param("no attempts", "windows", marks=pytest.mark.exhaustive),
        pytest.param("no attempts", "none", marks=pytest.mark.exhaustive),
    ],
)
def test_changed_windows_get_what_was_left_out_where_the_skip_is_lost(
    spark: SparkSession, tmp_path: Path, older: str, by_way_of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older copy is put back, and the windows are changed before anything runs: all comes again, and leaves quarantine.

    Cut off on the way it is done once more.
    """
    batches = [[("a", 13, 0)], [("b", 1, 200_000)], [("b", 2, 400_000)]]
    lake, flow = Lake(tmp_path / "lake"), one_by_one(tmp_path / "never", batches)
    folder, copy = tmp_path / "lake" / "checkpoints" / "late" / "s", tmp_path / "copy"
    assert str(folder) == str(lake.checkpoint_path("late", "s"))
    runtime = Runtime(spark, lake, max_attempts=1)
    runtime.catch_up(flow(1))
    if older == "the checkpoint":
        shutil.copytree(folder, copy)
    poisoned(runtime, flow, 1, 2)
    if older == "its attempts":
        shutil.copy(folder / "attempts.json", copy)
    runtime.skip(flow(2), 1)
    runtime.catch_up(flow(2))
    assert quarantined(lake) == [(1, "poison", "b", 1), (1, "waiting", "a", 13)]
    if older == "the checkpoint":
        shutil.rmtree(folder)
        shutil.copytree(copy, folder)
    else:
        unmarked(lake)
        (folder / "attempts.json").unlink()
        if older == "its attempts":
            shutil.copy(copy, folder / "attempts.json")

    def off(*_: Any) -> None:
        raise TrideltaError("cut off")

    changed = passing(batches) if by_way_of == "none" else aligned(batches)
    with monkeypatch.context() as patched:
        patched.setattr(WaitingRows, "take_back", off)
        with pytest.raises(TrideltaError, match="cut off"):
            Runtime(spark, lake).catch_up(changed(2), changed_windows="begin")
    if by_way_of == "none":
        Runtime(spark, lake).catch_up(changed(2), changed_windows="begin")
        assert sums(lake) == [("b", 1)]
    Runtime(spark, lake).catch_up(aligned(batches)(3), changed_windows="begin")
    assert sums(lake) == [("a", 13), ("b", 1)]
    assert quarantined(lake) == []


def test_a_changed_definition_does_not_get_what_was_left_out(spark: SparkSession, tmp_path: Path) -> None:
    """Nor does the former one, which comes back."""
    lake, flow = Lake(tmp_path), aligned()
    runtime = Runtime(spark, lake, max_attempts=1)
    runtime.catch_up(flow(1))
    poisoned(runtime, flow, 1, 2)
    runtime.skip(flow(2), 1)
    runtime.catch_up(flow(2))
    changed = aligned(every=120)
    Runtime(spark, lake).catch_up(changed(2), changed_windows="begin")
    Runtime(spark, lake).catch_up(flow(2), changed_windows="begin")
    Runtime(spark, lake).catch_up(changed(4), changed_windows="begin")
    assert sums(lake) == [("b", 6)]
    assert quarantined(lake) == WAITED


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "others",
    [pytest.param((), id="at once", marks=pytest.mark.exhaustive), pytest.param((300,), id="behind a third one")],
)
def test_a_definition_that_comes_back_does_not_get_what_another_has_left_out(
    spark: SparkSession, tmp_path: Path, others: tuple[int, ...]
) -> None:
    """It comes back with its own state, for no batch has come behind the change: one was left out."""
    lake, flow, changed = Lake(tmp_path), aligned(), aligned(every=120)
    runtime = Runtime(spark, lake, max_attempts=1)
    runtime.catch_up(flow(1))
    runtime.catch_up(changed(1), changed_windows="begin")
    poisoned(runtime, changed, 2, 2)
    runtime.skip(changed(2), 2)
    runtime.catch_up(changed(2))
    for every in others:
        Runtime(spark, lake).catch_up(aligned(every=every)(2), changed_windows="begin")
    Runtime(spark, lake).catch_up(flow(4), changed_windows="begin")
    assert sums(lake) == [("b", 6)]
    assert quarantined(lake) == [(2, rule, k, v) for _, rule, k, v in WAITED]
