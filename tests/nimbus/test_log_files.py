"""A worker's log: JSON lines, turned over by size, on a disk that may be full; and how it is read."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from pipelines import logs
from pipelines.nimbus.telemetry import log_files
from pipelines.nimbus.telemetry.log_files import JsonLines, LogFile, read


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "s1" / "6900" / "worker.jsonl"


@pytest.fixture
def configured(file: Path) -> Iterator[Path]:
    take_back = log_files.configure(file, megabytes=1, files=2)
    yield file
    take_back()


def record(event: str, **fields: Any) -> logging.LogRecord:
    made = logging.LogRecord("pipelines.tests", logging.INFO, __file__, 1, event, (), None)
    setattr(made, logs.FIELDS, {"event": event, **fields})
    return made


def events(lines: Iterator[dict[str, Any]]) -> list[str]:
    return [line["event"] for line in lines]


def test_a_line_has_time_level_logger_event_and_what_its_writer_named(configured: Path) -> None:
    logs.logger("pipelines.tests").warning("attempt failed", flow="trips", group="trips", txid=3, attempt=1, took=0.5)
    (line,) = read([configured])
    stamp = line.pop("timestamp")
    assert len(stamp) == len("2026-11-21T22:13:40.123456Z")
    assert stamp.endswith("Z")
    assert line == {
        "level": "warning",
        "logger": "pipelines.tests",
        "event": "attempt failed",
        "flow": "trips",
        "group": "trips",
        "txid": 3,
        "attempt": 1,
        "took": 0.5,
    }


def test_the_context_is_part_of_every_line_whoever_writes_it(configured: Path) -> None:
    with structlog.contextvars.bound_contextvars(flow="trips", group="lines", txid=7):
        logs.logger("pipelines.tests").info("batch finished", attempt=0)
        logging.getLogger("users.own").info("looked at %d stops", 5)
        # py4j and its kind tell how they work: nobody asked.
        logging.getLogger("py4j.clientserver").info("Command to send: A")
    logging.getLogger("users.own").info("outside")
    first, second, third = read([configured])
    assert (first["flow"], first["group"], first["txid"], first["attempt"]) == ("trips", "lines", 7, 0)
    assert (second["event"], second["flow"], second["txid"]) == ("looked at 5 stops", "trips", 7)
    assert "flow" not in third


def test_the_facts_of_the_process_are_in_every_line_of_every_thread(file: Path) -> None:
    take_back = log_files.configure(file, always={"supervisor": "s1", "port": 6900})
    thread = threading.Thread(target=lambda: logs.logger("pipelines.tests").info("in a thread", port=6901))
    thread.start()
    thread.join()
    logging.getLogger("users.own").info("here")
    take_back()
    assert [(one["supervisor"], one["port"]) for one in read([file])] == [("s1", 6901), ("s1", 6900)]


def test_an_error_comes_as_text(configured: Path) -> None:
    try:
        raise ValueError("no such stop: ä")
    except ValueError:
        logs.logger("pipelines.tests").exception("task failed", flow="trips")
    logging.getLogger("py.warnings").warning("old")
    failed, _ = read([configured])
    assert failed["level"] == "error"
    assert failed["exception"].startswith("Traceback (most recent call last)")
    assert failed["exception"].endswith("ValueError: no such stop: ä")
    assert "exc_info" not in failed


def test_errors_that_nobody_caught_are_written(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passed_on: list[object] = []
    monkeypatch.setattr(threading, "excepthook", passed_on.append)
    monkeypatch.setattr(sys, "excepthook", lambda *error: passed_on.append(error))

    def fall() -> None:
        raise RuntimeError("gone")

    take_back = log_files.configure(file)
    thread = threading.Thread(target=fall, name="beats")
    thread.start()
    thread.join()
    error = ValueError("the end")
    sys.excepthook(ValueError, error, None)
    take_back()
    one, two = read([file])
    assert (one["event"], one["level"]) == ("thread beats ended by an error", "error")
    assert "RuntimeError: gone" in one["exception"]
    assert (two["event"], two["level"]) == ("the process ends by an error", "critical")
    assert len(passed_on) == 2
    assert threading.excepthook == passed_on.append


def test_elsewhere_a_line_stays_text(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        logs.logger("pipelines.tests").info("flow started", flow="trips", n=1)
    assert caplog.messages == ["event='flow started' flow='trips' n=1"]


def test_dagster_gets_text() -> None:
    import dagster as dg

    with dg.instance_for_test(
        overrides={"python_logs": {"managed_python_loggers": ["pipelines"], "python_log_level": "INFO"}}
    ) as instance:

        @dg.op
        def work() -> None:
            logs.logger("pipelines.tests").warning("attempt failed", flow="trips", txid=3)

        @dg.job
        def job() -> None:
            work()

        done = job.execute_in_process(instance=instance)
        told = [one.user_message for one in instance.all_logs(done.run_id) if one.level == logging.WARNING]
    assert told == ["event='attempt failed' flow='trips' txid=3"]


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=5).filter(lambda name: name not in ("timestamp", "level", "logger", "event")),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.dates(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.integers() | st.text(), inner, max_size=3),
            max_leaves=6,
        ),
    )
)
def test_any_fact_becomes_one_line_of_json(fields: dict[str, Any]) -> None:
    line = JsonLines().format(record("seen", **fields))
    assert "\n" not in line
    found = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert set(found) == {"timestamp", "level", "logger", "event", *fields}


def test_a_value_without_end_is_cut_and_one_without_words_is_named() -> None:
    class Silent:
        def __str__(self) -> str:
            raise RuntimeError

    found = json.loads(JsonLines().format(record("seen", plan="x" * 100_000, odd=Silent())))
    assert found["plan"].endswith("x ... (80,000 more characters)")
    assert found["odd"] == "<Silent that cannot be written: RuntimeError>"


def test_a_file_is_turned_over_by_size_and_only_so_many_are_kept(file: Path) -> None:
    handler = LogFile(file, megabytes=0.001, files=2)
    for number in range(40):
        handler.emit(record(f"{number:03}"))
    handler.close()
    kept = sorted(path.name for path in file.parent.iterdir())
    assert kept == ["worker.jsonl", "worker.jsonl.1", "worker.jsonl.2"]
    assert all(path.stat().st_size <= 1000 for path in file.parent.iterdir())
    seen = events(read([file]))
    assert seen == [f"{number:03}" for number in range(40 - len(seen), 40)]
    assert 10 < len(seen) < 40


def test_two_processes_on_one_file_lose_nothing(file: Path) -> None:
    one, two = LogFile(file, megabytes=0.002, files=100), LogFile(file, megabytes=0.002, files=100)
    for number in range(100):
        (one if number % 3 else two).emit(record(f"{number:03}"))
    one.close()
    two.close()
    assert sorted(events(read([file]))) == [f"{number:03}" for number in range(100)]


def test_a_removed_folder_comes_again(file: Path) -> None:
    handler = LogFile(file)
    handler.emit(record("before"))
    file.unlink()
    file.parent.rmdir()
    handler.emit(record("after"))
    handler.close()
    assert events(read([file])) == ["after"]


def test_a_full_disk_costs_lines_and_nothing_else(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handler, write = LogFile(file), os.write
    handler.emit(record("before"))

    def full(descriptor: int, data: bytes) -> int:
        if room:
            return write(descriptor, data[: room.pop()])
        raise OSError(errno.ENOSPC, "No space left on device")

    room = [10]
    monkeypatch.setattr(os, "write", full)
    for _ in range(3):
        handler.emit(record("lost"))
    assert handler.dropped == 3
    monkeypatch.setattr(os, "write", write)
    handler.emit(record("after"))
    handler.close()
    lines = list(read([file]))
    assert [line["event"] for line in lines] == ["before", "log lines lost", "after"]
    assert lines[1]["lines"] == 3


def test_a_place_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where a folder should be")
    handler = LogFile(tmp_path / "logs" / "worker.jsonl")
    handler.emit(record("lost"))
    assert handler.dropped == 1
    handler.close()


def lay(file: Path, *lines: tuple[int, str, str | None, str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as out:
        for second, level, flow, event in lines:
            line = {"timestamp": f"2026-01-01T00:00:{second:02}.000000Z", "level": level, "event": event}
            out.write(json.dumps(line | ({"flow": flow} if flow else {})) + "\n")


def test_lines_of_a_flow_and_of_a_level(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "logs" / "s2" / "6900" / "worker.jsonl"
    lay(file, (1, "info", "trips", "a"), (3, "error", "trips", "c"), (4, "info", None, "spark up"))
    lay(other, (2, "info", "rides", "b"), (5, "warning", None, "memory is short"), (6, "debug", "trips", "f"))
    with file.open("a") as out:
        out.write('no json\n{"level": \n[1]\n')
    assert events(read([file, other])) == ["a", "b", "c", "spark up", "memory is short", "f"]
    assert events(read([file, other], flow="trips")) == ["a", "c", "memory is short", "f"]
    assert events(read([file, other], flow="trips", level="WARNING")) == ["c", "memory is short"]
    assert events(read([file, other], flow="trips", concerns=lambda one: one == file)) == ["a", "c", "f"]
    assert events(read([file, other], last=2)) == ["memory is short", "f"]
    assert events(read([tmp_path / "nothing"])) == []
    with pytest.raises(ValueError, match="no such level: loud"):
        read([file], level="loud")


def following(monkeypatch: pytest.MonkeyPatch, steps: list[Callable[[], None]], **options: Any) -> list[str]:
    """What a reader sees that looks again after each step; no time passes."""
    left = iter(steps)

    def pause(_: float) -> None:
        step = next(left, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    monkeypatch.setattr("pipelines.nimbus.telemetry.log_files.time", SimpleNamespace(sleep=pause))
    seen: list[str] = []
    with contextlib.suppress(KeyboardInterrupt):
        for line in read(follow=True, **options):
            seen.append(line["event"])
    return seen


def test_following_goes_through_turned_over_files(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = itertools.count()
    handler = LogFile(file, megabytes=0.0005, files=50)

    def write(lines: int) -> Callable[[], None]:
        return lambda: [handler.emit(record(f"{next(numbers):03}")) for _ in range(lines)] and None

    write(3)()
    seen = following(monkeypatch, [write(1), write(0), write(2), write(20), write(1), write(30)], files=[file])
    handler.close()
    assert seen == [f"{number:03}" for number in range(57)]


def test_following_waits_for_the_end_of_a_line_and_finds_new_files(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere, named = tmp_path / "worker.jsonl", [file]
    lay(file, (1, "info", "trips", "a"), (2, "info", "trips", "b"))
    half = '{"timestamp": "2026-01-01T00:00:03.000000Z", "flow": "trips", '

    def begin() -> None:
        with file.open("a") as out:
            out.write(half)

    def end() -> None:
        with file.open("a") as out:
            out.write('"event": "c"}\n')

    def move() -> None:
        named.append(elsewhere)
        lay(elsewhere, (4, "info", "trips", "d"), (4, "info", "rides", "other"))

    seen = following(monkeypatch, [begin, end, move], files=lambda: list(named), flow="trips", last=1)
    assert seen == ["b", "c", "d"]
