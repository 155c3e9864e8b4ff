"""A lease: one holder at a time, whoever waits watches, and who has lost it notices."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from pipelines.errors import LockedError
from pipelines.execution.checkpoint.engine_files import Checkpoint, Epoch, StoredAttempts
from pipelines.execution.protocol.coordinator import AttemptRecord
from pipelines.places import lease
from pipelines.places.lease import FileLease, LeaseLostError, held
from pipelines.places.location import Location
from pipelines.places.store import FileStore, StoreError
from pipelines.state.turns import LateWriterError


@pytest.fixture
def file(tmp_path: Path) -> Location:
    return Location.of(tmp_path / "run.lock")


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def other_process(file: Location, **changed: str) -> None:
    """Have the lease say that a process has it that is not here."""
    said = json.loads(lease._content(lease.ProcessIdentity.of(), "another"))
    said["process"] |= {"boot": "another", **changed}
    file.write_bytes(json.dumps(said).encode())


def test_one_holder_at_a_time(file: Location) -> None:
    inside, seen = [0], []

    def work(_: int) -> None:
        with held(file, "f", 30.0):
            inside[0] += 1
            seen.append(inside[0])
            inside[0] -= 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert seen == [1, 1, 1, 1]


def test_who_holds_it_keeps_it_however_long(file: Location) -> None:
    with held(file, "f", 0.0, seconds=0.5) as mine:
        before = file.read_bytes()
        until(lambda: file.read_bytes() != before)
        with pytest.raises(LockedError), held(file, "f", 1.0, seconds=0.5):
            pass
        mine.check()


def test_that_of_a_process_elsewhere_is_taken_when_it_was_not_put_anew(file: Location) -> None:
    other_process(file)
    with pytest.raises(LockedError), held(file, "f", 0.0, seconds=0.4):
        pass
    with held(file, "f", 30.0, seconds=0.4) as mine:
        mine.check()


def test_tries_that_are_shorter_than_a_lease_watch_together(file: Location) -> None:
    """A task of a deployed flow waits for five seconds, and tries again later; a lease lasts for twenty."""
    other_process(file)
    refused: list[LockedError] = []

    def taken() -> bool:
        try:
            with held(file, "f", 0.1, seconds=1.0) as mine:
                mine.check()
                return True
        except LockedError as error:
            refused.append(error)
            return False

    until(taken)
    assert len(refused) > 1
    # Held anew by another process, it is watched anew.
    other_process(file)
    with pytest.raises(LockedError), held(file, "f", 0.0, seconds=1.0):
        pass
    time.sleep(0.6)
    other_process(file)
    time.sleep(0.6)
    with pytest.raises(LockedError), held(file, "f", 0.0, seconds=1.0):
        pass


def test_that_of_a_process_of_this_kernel_that_has_ended_is_free(file: Location) -> None:
    other_process(file, boot=lease.boot_id())
    said = json.loads(file.read_bytes())
    said["process"]["pid"] = 2**22 + 1
    file.write_bytes(json.dumps(said).encode())
    with held(file, "f", 0.0):
        pass


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"no json"])
def test_one_that_is_damaged_is_waited_for(file: Location, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(LockedError), held(file, "f", 0.0, seconds=0.3):
        pass
    with held(file, "f", 30.0, seconds=0.3):
        pass


def test_who_has_lost_it_notices_and_leaves_the_others(file: Location) -> None:
    with held(file, "f", 0.0, seconds=0.5) as mine:
        other_process(file)
        theirs = file.read_bytes()
        until(lambda: bool(mine._lost))
        with pytest.raises(LeaseLostError, match="another process has taken it over"):
            mine.check()
    assert file.read_bytes() == theirs


def test_a_put_whose_answer_was_lost_is_its_own(file: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    swap, puts = type(file.store).compare_and_swap, list[bytes]()

    def unanswered(store: FileStore, key: str, data: bytes, tag: str) -> str | None:
        done = swap(store, key, data, tag)
        puts.append(data)
        if len(puts) == 1:
            raise StoreError(str(file), "the connection is broken", hint="")
        return done

    with held(file, "f", 0.0, seconds=2.0) as mine:
        monkeypatch.setattr(type(file.store), "compare_and_swap", unanswered)
        until(lambda: len(puts) > 3)
        mine.check()
    assert json.loads(file.read_bytes())["process"] is None


def test_without_the_store_it_is_lost_before_another_may_take_it(
    file: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise StoreError(str(file), "the store does not answer", hint="")

    with held(file, "f", 0.0, seconds=0.5) as mine:
        monkeypatch.setattr(type(file.store), "compare_and_swap", away)

        def lost() -> bool:
            try:
                mine.check()
            except LeaseLostError:
                return True
            return False

        until(lost)
        monkeypatch.undo()


def test_a_host_that_has_slept_notices(file: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    with held(file, "f", 0.0, seconds=200.0) as mine:
        monkeypatch.setattr(time, "clock_gettime", lambda _, told=time.clock_gettime: told(_) + 3600.0)
        with pytest.raises(LeaseLostError, match="could not be renewed for 3600 seconds"):
            mine.check()


def test_it_counts_from_before_the_put_that_took_it(file: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    put, slow = type(file.store).put_if_absent, [0.0]

    def late(store: FileStore, key: str, data: bytes) -> str | None:
        done = put(store, key, data)
        slow[0] = 160.0
        return done

    monkeypatch.setattr(time, "clock_gettime", lambda _, told=time.clock_gettime: told(_) + slow[0])
    monkeypatch.setattr(type(file.store), "put_if_absent", late)
    with held(file, "f", 0.0, seconds=200.0) as mine, pytest.raises(LeaseLostError, match="for 160 seconds"):
        mine.check()


def test_it_is_released_on_the_way_out_of_an_error(file: Location) -> None:
    with pytest.raises(ZeroDivisionError), held(file, "f", 0.0):
        raise ZeroDivisionError
    with held(file, "f", 0.0):
        pass
    assert "lease" not in {thread.name for thread in threading.enumerate()}


# --- what a run does with it ----------------------------------------------------------------------------------------


def test_a_run_that_has_lost_its_lease_begins_no_batch(file: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = Checkpoint("f", file.parent / "checkpoint")
    with checkpoint.running(0.0):
        assert checkpoint.is_running()
        with checkpoint.committing(0.0):
            pass

        def taken(_: FileLease) -> None:
            raise LeaseLostError("f", str(file), "another process has taken it over")

        monkeypatch.setattr(FileLease, "check", taken)
        with pytest.raises(LeaseLostError), checkpoint.committing(0.0):
            pass
    assert not checkpoint.is_running()


def test_a_late_run_does_not_write_over_the_attempts_of_the_next(file: Location) -> None:
    first = AttemptRecord(0)
    late = StoredAttempts(file, "f")
    late.put("in/1", 0, first)
    late.put("in/1", 1, first)
    now = StoredAttempts(file, "f")
    now.put("in/1", 2, first)
    with pytest.raises(LeaseLostError, match="another process has written it"):
        late.put("in/1", 1, first)
    assert set(StoredAttempts(file, "f").get("in/1")) == {0, 1, 2}


def lose_answers(monkeypatch: pytest.MonkeyPatch, file: Location, *, kept: bool) -> None:
    """Have the store raise at each conditional put, which it may have kept, until the patch is undone."""

    def losing(work: Callable[..., Any]) -> Callable[..., Any]:
        def put(*given: Any) -> None:
            if kept:
                work(*given)
            raise StoreError(str(file), "the store does not answer as it should", hint="see whether it is up")

        return put

    for name in ("compare_and_swap", "put_if_absent"):
        monkeypatch.setattr(type(file.store), name, losing(getattr(type(file.store), name)))


@pytest.mark.parametrize("earlier", [True, False])
@pytest.mark.parametrize("kept", [True, False])
def test_attempts_whose_put_was_not_answered_are_known_as_this_runs(
    file: Location, monkeypatch: pytest.MonkeyPatch, kept: bool, earlier: bool
) -> None:
    first = AttemptRecord(0)
    run = StoredAttempts(file, "f")
    if earlier:
        run.put("in/1", 0, first)
    with monkeypatch.context() as patched:
        lose_answers(patched, file, kept=kept)
        for txid in (1, 2):
            with pytest.raises(StoreError):
                run.put("in/1", txid, first)
    assert not run.is_overtaken()
    run.put("in/1", 3, first)
    assert set(StoredAttempts(file, "f").get("in/1")) == {1, 2, 3} | ({0} if earlier else set())
    run.put("in/1", 3, first)


def test_attempts_of_another_run_are_not_taken_for_those_of_a_put_without_an_answer(
    file: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run opens the same attempt by the same plan, and its record is the same."""
    first = AttemptRecord(0)
    late = StoredAttempts(file, "f")
    with monkeypatch.context() as patched:
        lose_answers(patched, file, kept=False)
        with pytest.raises(StoreError):
            late.put("in/1", 0, first)
    now = StoredAttempts(file, "f")
    now.put("in/1", 0, first)
    assert late.is_overtaken()
    with pytest.raises(LeaseLostError, match="another process has written it"):
        late.put("in/1", 0, first)
    now.put("in/1", 1, first)
    assert set(StoredAttempts(file, "f").get("in/1")) == {0, 1}


@pytest.mark.parametrize("earlier", ["none", "of the epoch before", "forgotten before it was cut off"])
def test_a_late_begin_takes_no_attempts_of_the_next_run_away(
    file: Location, monkeypatch: pytest.MonkeyPatch, earlier: str
) -> None:
    """The store takes epoch.json after the lease has ended, and another run has begun the same epoch meanwhile."""
    folder, put, first, epoch = file.parent / "checkpoint", type(file.store).put, AttemptRecord(0), Epoch(2, 8)
    late, now = Checkpoint("f", folder), Checkpoint("f", folder)
    if earlier != "none":
        late.attempts().put("in/1", 7, first)
    if earlier == "forgotten before it was cut off":
        late.begin(epoch)

    def waits(store: FileStore, key: str, data: bytes) -> str:
        monkeypatch.undo()
        now.begin(epoch)
        attempts.append(now.attempts())
        attempts[0].put("in/2", 8, first)
        return put(store, key, data)

    attempts: list[StoredAttempts] = []
    monkeypatch.setattr(type(file.store), "put", waits)
    with nullcontext() if earlier == "none" else pytest.raises(LeaseLostError, match="another process has written it"):
        late.begin(epoch)
    attempts[0].put("in/2", 9, first)
    assert set(now.attempts().get("in/2")) == {8, 9}
    assert not now.attempts().get("in/1")


@pytest.mark.parametrize("on_a_store", [True, False])
def test_attempts_that_a_late_run_puts_while_they_are_read_are_not_written_over(
    file: Location, monkeypatch: pytest.MonkeyPatch, on_a_store: bool
) -> None:
    first, place = AttemptRecord(0), file if on_a_store else file.path
    late = StoredAttempts(place, "f")
    late.put("in/1", 0, first)
    reads: tuple[type, str] = (type(file.store), "read") if on_a_store else (type(file.path), "open")
    read = getattr(*reads)

    def and_then_late(*args: Any, **more: Any) -> Any:
        found = read(*args, **more)
        monkeypatch.undo()
        late.put("in/1", 1, first)
        return found

    monkeypatch.setattr(*reads, and_then_late)
    now = StoredAttempts(place, "f")
    with pytest.raises((LeaseLostError, LateWriterError)):
        now.put("in/1", 2, first)
    assert set(StoredAttempts(place, "f").get("in/1")) == {0, 1}
