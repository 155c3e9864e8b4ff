"""The copy of a checkpoint and the marker beside it, without Spark: what a start finds after any end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.errors import HalfMadeCheckpointError
from pipelines.execution.checkpoint.copy import (
    COPIED,
    COPYING,
    DROPPED,
    FINISHED,
    MARKER,
    REPARTITIONED,
    ROLLED_BACK,
    ROLLING_BACK,
    VERIFIED,
    CopyError,
    Marker,
    check_copy,
    make_copy,
    recover,
)
from pipelines.execution.checkpoint.engine_files import Checkpoint, Epoch
from pipelines.maintenance import repartition
from pipelines.places.lease import FileLease, LeaseLostError
from pipelines.places.location import Location, Place
from pipelines.sources.channels import Start

FILES = {"metadata": b"{}", "offsets/0": b"v1\n{}", "commits/0": b"v1\n{}", "state/0/1/1.zip": bytes(range(256)) * 99}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    made = Checkpoint("f", tmp_path / "checkpoints" / "f" / "g")
    for name, value in FILES.items():
        (made.spark / name).parent.mkdir(parents=True, exist_ok=True)
        (made.spark / name).write_bytes(value)
    (made.spark / "sources" / "empty").mkdir(parents=True)
    return made


@pytest.fixture
def copy(checkpoint: Checkpoint, tmp_path: Path) -> Path:
    folder = tmp_path / "copies" / "f" / "g" / "20130101T000000Z"
    assert make_copy(checkpoint, folder, {"from": 2, "to": 5}) == sum(map(len, FILES.values()))
    return folder


def test_a_copy_is_a_copy(checkpoint: Checkpoint, copy: Path) -> None:
    assert contents(copy / "spark") == FILES
    assert (copy / "spark" / "sources" / "empty").is_dir()
    for name in FILES:
        assert (copy / "spark" / name).stat().st_ino != (checkpoint.spark / name).stat().st_ino
    assert set(check_copy(checkpoint, copy)) == set(FILES)


def test_nothing_to_recover_is_one_look(checkpoint: Checkpoint) -> None:
    before = contents(checkpoint.folder)
    assert recover(checkpoint) is None
    assert contents(checkpoint.folder) == before


def half_made(checkpoint: Checkpoint) -> None:
    (checkpoint.spark / "commits" / "0").unlink()
    (checkpoint.spark / "offsets" / "1").write_bytes(b"v1")
    (checkpoint.spark / "state" / "0" / "1" / "1.zip").write_bytes(b"")


@pytest.mark.parametrize("phase", [COPIED, REPARTITIONED, ROLLING_BACK])
def test_half_made_goes_back(checkpoint: Checkpoint, copy: Path, phase: str) -> None:
    Marker(phase, str(copy), 2, 5).write(checkpoint)
    half_made(checkpoint)
    found = recover(checkpoint)
    assert found is not None
    assert (found.phase, found.action, found.partitions) == (phase, ROLLED_BACK, 2)
    assert contents(checkpoint.spark) == FILES == contents(copy / "spark")
    assert recover(checkpoint) is None


def test_a_copy_that_was_cut_off_goes(checkpoint: Checkpoint, copy: Path) -> None:
    (copy / "copy.json").unlink()
    Marker(COPYING, str(copy), 2, 5).write(checkpoint)
    found = recover(checkpoint)
    assert found is not None
    assert (found.action, found.partitions) == (DROPPED, 2)
    assert not copy.exists()
    assert contents(checkpoint.spark) == FILES


def test_what_was_verified_stays(checkpoint: Checkpoint, copy: Path) -> None:
    Marker(VERIFIED, str(copy), 2, 5).write(checkpoint)
    (checkpoint.spark / "offsets" / "1").write_bytes(b"new")
    found = recover(checkpoint)
    assert found is not None
    assert (found.action, found.partitions, checkpoint.partitions) == (FINISHED, 5, 5)
    assert (checkpoint.spark / "offsets" / "1").read_bytes() == b"new"


def test_copies_may_have_been_moved(checkpoint: Checkpoint, copy: Path, tmp_path: Path) -> None:
    Marker(COPIED, str(copy), 2, 5).write(checkpoint)
    (tmp_path / "copies").rename(tmp_path / "elsewhere")
    half_made(checkpoint)
    assert recover(checkpoint, tmp_path / "elsewhere") is not None
    assert contents(checkpoint.spark) == FILES


def test_nothing_is_rewritten_beside_a_half_made_one(checkpoint: Checkpoint, copy: Path) -> None:
    Marker(ROLLING_BACK, str(copy), 2, 5).write(checkpoint)
    with pytest.raises(HalfMadeCheckpointError, match="tridelta run f"), checkpoint.rewriting(0):
        pass
    assert recover(checkpoint) is not None
    with checkpoint.rewriting(0):
        pass


@pytest.mark.parametrize("damage", ["missing", "changed", "longer", "no description"])
def test_a_damaged_copy_never_comes_back(checkpoint: Checkpoint, copy: Path, damage: str) -> None:
    Marker(COPIED, str(copy), 2, 5).write(checkpoint)
    half_made(checkpoint)
    before = contents(checkpoint.folder)
    file = copy / "spark" / "state" / "0" / "1" / "1.zip"
    if damage == "missing":
        file.unlink()
    elif damage == "no description":
        (copy / "copy.json").unlink()
    else:
        file.write_bytes(file.read_bytes()[1:] + (b"x" if damage == "changed" else b"xx"))
    with pytest.raises(CopyError, match="the query does not start") as error:
        recover(checkpoint)
    assert (error.value.flow, error.value.group, error.value.copy) == ("f", "g", copy)
    left = contents(checkpoint.folder)
    assert left.pop("owner.json")  # whoever looks holds the checkpoint
    assert left == {**before, "rewrite.lock": b""}
    assert (checkpoint.folder / MARKER).exists()


def test_a_roll_back_may_be_cut_off_anywhere(
    checkpoint: Checkpoint, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipelines.execution.checkpoint import copy as checkpoint_copy

    steps = ("shutil.rmtree", "_copy_files", "os.sync", "_sync_folder")
    for step in steps:
        marker = Marker(COPIED, str(copy), 2, 5).write(checkpoint)
        (checkpoint.spark / "offsets" / "1").write_bytes(b"new")
        with monkeypatch.context() as patched:
            patched.setattr(checkpoint_copy, step, _dies) if "." not in step else patched.setattr(step, _dies)
            with pytest.raises(KeyboardInterrupt):
                checkpoint_copy.roll_back(checkpoint, dataclasses.replace(marker), copy, "no luck")
        found = recover(checkpoint)
        assert found is not None
        assert (found.action, contents(checkpoint.spark)) == (ROLLED_BACK, FILES)
        assert not (checkpoint.folder / "spark.restoring").exists()


def _dies(*args: object, **more: object) -> None:
    raise KeyboardInterrupt


# --- on a store, where a lease may be lost --------------------------------------------------------------------------


@pytest.fixture
def there(tmp_path: Path, checkpoint: Checkpoint) -> Checkpoint:
    return Checkpoint("f", Location.of(checkpoint.folder))


def files(folder: Place) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file() and file.suffix != ".lock"}


def lost(*_: object) -> None:
    raise LeaseLostError("f", "run.lock", "another process has taken it over")


def rolled_back(checkpoint: Checkpoint, copy: Place) -> None:
    Marker(COPIED, str(copy), 2, 5).write(checkpoint)
    recover(checkpoint)


def put_aside(checkpoint: Checkpoint, copy: Place) -> None:
    checkpoint.begin_at(Start({}), copy.with_name("aside"))
    checkpoint.begin(Epoch(2, 7))


@pytest.mark.parametrize("work", [rolled_back, put_aside])
def test_who_has_lost_the_lease_touches_nothing_from_then_on(
    there: Checkpoint, monkeypatch: pytest.MonkeyPatch, work: Callable[[Checkpoint, Place], None]
) -> None:
    assert isinstance(there.folder, Location)
    before, copy = files(there.spark), there.folder.parent / "copy"
    make_copy(there, copy, {})
    for allowed in range(100):
        for name, value in FILES.items():
            (there.spark / name).write_bytes(value)
        checks, seen = [0], list[dict[str, bytes]]()

        def check(_: FileLease, checks: list[int] = checks, seen: list[Any] = seen, allowed: int = allowed) -> None:
            checks[0] += 1
            if checks[0] > allowed:
                seen.append(files(there.folder))
                lost()

        with monkeypatch.context() as patched, there.running(0):
            patched.setattr(FileLease, "check", check)
            try:
                work(there, copy)
                assert allowed > len(FILES)
                break
            except LeaseLostError:
                assert files(there.folder) == seen[0]
        (there.folder / MARKER).unlink(missing_ok=True)
    assert files(there.spark) == (before if work is rolled_back else {})


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("notices", [True, False])
def test_a_repartition_without_its_lease_leaves_the_next_runs_checkpoint(
    there: Checkpoint, monkeypatch: pytest.MonkeyPatch, notices: bool, fails: bool
) -> None:
    assert isinstance(there.folder, Location)
    monkeypatch.setattr(repartition, "partitions_of", lambda checkpoint: 2)
    monkeypatch.setattr(repartition, "state_digest", lambda *_: repartition.StateDigest(2, {}))
    spark: Any = SimpleNamespace(_streamingCheckpointManager=SimpleNamespace(repartition=lambda *_, **more: None))
    left = dict[str, bytes]()

    def next_run(phase: str) -> None:
        """Another host takes the lease over, rolls back and runs a batch."""
        if phase == COPIED:
            recover(there)
            (there.spark / "offsets" / "1").write_bytes(b"of the next run")
            left.update(files(there.folder))
            if notices:
                monkeypatch.setattr(FileLease, "check", lost)
            if fails:
                raise OSError("the state is another one")

    with there.running(0), pytest.raises(LeaseLostError):
        repartition._Repartitioning(spark, there, 5, there.folder.parent / "copies", next_run).run()
    assert files(there.folder) == left
