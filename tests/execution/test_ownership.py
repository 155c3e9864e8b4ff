"""A checkpoint belongs to a host: the same host goes on at once, another one is refused until it is told that it may."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pipelines.errors import LockedError, TrideltaError
from pipelines.execution.checkpoint import ownership
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.execution.checkpoint.ownership import (
    GONE_HOSTS,
    OWNER_FILE,
    Host,
    OtherHostError,
    ask_of_leases,
    owner_of,
)

A, B = Host("a", "machine of a", "first boot of a"), Host("b", "machine of b", "first boot of b")

On = Callable[[Host], None]


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> On:
    """Be on a host. Its locks do not hold on others, so the one of the process before is forgotten."""

    def be(host: Host) -> None:
        monkeypatch.setattr(Host, "here", classmethod(lambda cls: host))

    return be


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint("sales", tmp_path / "checkpoints" / "sales" / "q")


@pytest.fixture(autouse=True)
def _no_registry() -> Iterator[None]:
    ask_of_leases(None)
    yield
    ask_of_leases(None)


def kinds_of_lock(checkpoint: Checkpoint) -> list[Any]:
    return [checkpoint.running, checkpoint.committing, checkpoint.rewriting]


def test_another_host_is_refused_while_a_run_lasts_and_after_it(checkpoint: Checkpoint, on: On) -> None:
    on(A)
    with checkpoint.running(0):
        on(B)
        # As over a folder whose locks do not reach another host.
        (checkpoint.folder / "run.lock").rename(checkpoint.folder / "a's run.lock")
        for lock in kinds_of_lock(checkpoint):
            with pytest.raises(OtherHostError, match="belongs to host a"), lock(0):
                pass
        on(A)
    on(B)
    with pytest.raises(OtherHostError) as refused, checkpoint.rewriting(0):
        pass
    assert "this is host b" in str(refused.value)
    assert f"{GONE_HOSTS}=a" in str(refused.value)
    assert (refused.value.host, refused.value.here) == ("a", "b")
    assert isinstance(refused.value, LockedError)


def test_the_same_host_goes_on_at_once_after_a_crash_or_a_boot(checkpoint: Checkpoint, on: On) -> None:
    on(A)
    with ExitStack() as never_closed:
        never_closed.enter_context(checkpoint.running(0))
        (checkpoint.folder / "run.lock").unlink()
        with checkpoint.running(0):
            pass
    on(Host("a", "machine of a", "second boot of a"))
    with checkpoint.running(0):
        pass
    # A container that was made anew has another name on the same kernel, where locks of files hold.
    on(Host("a container", "", "second boot of a"))
    with checkpoint.running(0):
        pass


def test_a_host_that_is_gone_gives_way_to_one_that_is_told_so(
    checkpoint: Checkpoint, on: On, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(A)
    with checkpoint.committing(0):
        pass
    on(B)
    monkeypatch.setenv(GONE_HOSTS, "another, a")
    with checkpoint.running(0):
        pass
    on(A)
    # Should it come back: it is the other one now.
    with pytest.raises(OtherHostError, match="belongs to host b"), checkpoint.committing(0):
        pass
    on(B)
    monkeypatch.delenv(GONE_HOSTS)
    with checkpoint.committing(0):
        pass


def test_of_two_hosts_at_once_one_gets_it(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have seen that nobody owns it."""
    checkpoint.folder.mkdir(parents=True)
    both = threading.Barrier(2)
    link, hosts, got = os.link, {"a": A, "b": B}, []
    monkeypatch.setattr(Host, "here", classmethod(lambda cls: hosts[threading.current_thread().name]))

    def together(*args: Any) -> None:
        both.wait(30)
        link(*args)

    monkeypatch.setattr(ownership.os, "link", together)

    def take() -> None:
        try:
            ownership.claim("sales", checkpoint.folder, begins=True)
            got.append(threading.current_thread().name)
        except OtherHostError:
            pass

    threads = [threading.Thread(target=take, name=name) for name in hosts]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    owner = owner_of(checkpoint.folder)
    assert owner is not None
    assert got == [owner.host.name]
    assert sorted(file.name for file in checkpoint.folder.iterdir()) == [OWNER_FILE]


def test_where_there_are_no_links_one_gets_it_too(
    checkpoint: Checkpoint, on: On, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(ownership.os, "link", no_links)
    on(A)
    with checkpoint.running(0):
        pass
    on(B)
    with pytest.raises(OtherHostError), checkpoint.rewriting(0):
        pass


@pytest.mark.parametrize("torn", ["", "{", '{"host": {"name": "a"}}'])
def test_a_file_that_a_crash_has_left_in_pieces_is_written_anew(
    checkpoint: Checkpoint, on: On, monkeypatch: pytest.MonkeyPatch, torn: str
) -> None:
    monkeypatch.setattr(ownership, "_WHOLE_AFTER_SECONDS", 0.0)
    checkpoint.folder.mkdir(parents=True)
    (checkpoint.folder / OWNER_FILE).write_text(torn)
    on(A)
    with checkpoint.running(0):
        pass
    owner = owner_of(checkpoint.folder)
    assert owner is not None
    assert owner.host == A


def test_a_lease_moves_a_checkpoint_to_its_host(checkpoint: Checkpoint, on: On) -> None:
    on(A)
    with ownership.leased(), checkpoint.running(0):
        pass
    on(B)
    with ownership.leased(), checkpoint.running(0):
        with checkpoint.committing(0):
            pass
        on(A)
        # What wakes up there commits no more.
        with pytest.raises(OtherHostError), checkpoint.committing(0):
            pass
        on(B)


def test_what_ran_under_a_lease_is_free_when_no_host_has_one(checkpoint: Checkpoint, on: On) -> None:
    on(A)
    with ownership.leased(), checkpoint.running(0):
        pass
    on(B)
    with pytest.raises(OtherHostError), checkpoint.rewriting(0):
        pass  # without a registry nobody knows

    def down(flow: str, host: str) -> str | None:
        raise TrideltaError("it does not answer")

    ask_of_leases(down)
    with pytest.raises(OtherHostError), checkpoint.rewriting(0):
        pass
    ask_of_leases(lambda flow, host: None)
    with checkpoint.rewriting(0):
        pass
    # B's was a run without a lease: of its end nobody knows.
    on(A)
    with pytest.raises(OtherHostError), checkpoint.rewriting(0):
        pass


def test_a_query_that_runs_on_another_host_keeps_every_run_off(
    checkpoint: Checkpoint, on: On, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(B)
    monkeypatch.setenv(GONE_HOSTS, "a")
    ask_of_leases(lambda flow, host: f'the query "q" of {flow} runs on host a, seen from {host}', always=True)
    for lock in (checkpoint.running, checkpoint.rewriting):
        with pytest.raises(OtherHostError, match="runs on host a, seen from b") as refused, lock(0):
            pass
        assert "tridelta kill sales" in str(refused.value)
    # The worker itself is not asked; it has the lease.
    with ownership.leased(), checkpoint.running(0):
        pass


def test_a_host_has_the_name_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Host.here().same_as(Host.here())
    monkeypatch.setenv(ownership.HOST, "etl")
    assert Host.here().name == "etl"
    assert Host("etl", "", "").same_as(Host("etl", "", ""))
    assert not Host("etl", "", "").same_as(Host("other", "", ""))
