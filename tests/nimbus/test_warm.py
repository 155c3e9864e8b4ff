"""Runs that are handed to a worker which is up: the same reports, refusals, what happens when either side goes away."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from pipelines import Lake, Runtime
from pipelines.catalog.flow import FlowSettings
from pipelines.errors import TrideltaError
from pipelines.execution.report import BatchReport, SliceReport
from pipelines.execution.runners.sessions import SessionWithoutS3Error, SessionZoneError
from pipelines.nimbus.errors import HandedOverError, NobodyWarmError
from pipelines.nimbus.handover import serving
from pipelines.nimbus.handover.loopback import HOST, connected
from pipelines.nimbus.handover.serving import Endpoint, Server
from pipelines.nimbus.handover.warm import WarmRuntime, find_warm
from pipelines.nimbus.handover.wire import from_wire, to_wire
from pipelines.nimbus.settings import NimbusSettings
from pipelines.processes import ProcessIdentity
from pipelines.state.record import BatchRecord
from pipelines.state.slices import made_slices
from pipelines.state.writer import StateWriter
from tests.nimbus.sliced_flows import FLOWS, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.trident import TridentTopology


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIDELTA_HOME", str(tmp_path))
    monkeypatch.setenv("TRIDELTA_FLOWS", "tests.nimbus.sliced_flows")
    monkeypatch.setattr("pipelines.nimbus.deployed._SOURCES", {})
    for day in ("2026-01-01", "2026-01-02", "2026-01-03"):
        write(tmp_path, day, [1, 2, 3])
    return tmp_path


@pytest.fixture
def settings(home: Path) -> NimbusSettings:
    return NimbusSettings(home / "nimbus")


@pytest.fixture
def worker(spark: SparkSession, settings: NimbusSettings) -> Iterator[Server]:
    """What a worker serves requests with, in this process."""
    server = Server(spark, settings.supervisor_folder("s1") / "0.endpoint.json")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def topology(home: Path) -> TridentTopology:
    return FLOWS[0].topology(FlowSettings(home))


@pytest.fixture
def warm(home: Path, worker: Server, settings: NimbusSettings) -> WarmRuntime:
    found = find_warm(home / "lake", settings)
    assert found is not None
    return found


def wait_until(reached: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not reached():
        pause.wait(0.02)


@pytest.mark.slow
def test_a_catch_up_and_a_backfill_report_as_if_they_ran_here(
    spark: SparkSession, home: Path, warm: WarmRuntime, topology: TridentTopology
) -> None:
    seen: list[BatchReport] = []
    report = warm.catch_up(topology, progress=seen.append)
    assert report.received == 9
    assert list(report.batches) == seen
    state = Lake(home / "lake").state("day_sums")
    assert {row["k"]: row["total"] for row in state.scan().to_pylist()} == {"k0": 12, "k1": 6}
    write(home, "2026-01-02", [10, 20, 30])
    slices: list[SliceReport] = []
    replaced = warm.backfill(topology, ["2026-01-02"], progress=slices.append)
    assert [(one.slice, one.received, one.error) for one in replaced.slices] == [("2026-01-02", 3, None)]
    assert list(replaced.slices) == slices
    here = Runtime(spark, Lake(home / "lake")).backfill(topology, ["2026-01-02"]).slices[0]
    blank = {"seconds": 0.0, "commits": ()}
    assert replace(slices[0], **blank) == replace(here, **blank)
    assert [gate["gate"] for gate in slices[0].gates] == ["accepted"]


@pytest.mark.parametrize("error", [SessionWithoutS3Error("s3://b"), SessionZoneError("f", "EST")])
def test_a_worker_whose_session_does_not_fit_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, warm: WarmRuntime, topology: TridentTopology, error: TrideltaError
) -> None:
    def refuse(*args: Any) -> None:
        raise error

    monkeypatch.setattr("pipelines.execution.runtime.check_places", refuse)
    with pytest.raises(NobodyWarmError, match="this Spark session"):
        warm.catch_up(topology)


def test_a_query_answers_as_here(warm: WarmRuntime, topology: TridentTopology) -> None:
    warm.catch_up(topology)
    assert warm.query(topology, "of", [("k0",), ("k9",)]) == [
        {"k": "k0", "n": 6, "total": 12},
        {"k": "k9", "n": None, "total": None},
    ]


def test_a_query_keeps_the_types_of_its_values(
    spark: SparkSession, home: Path, warm: WarmRuntime, topology: TridentTopology
) -> None:
    asked = (Decimal("9.50"), date(2026, 1, 1), datetime(2026, 1, 1, 12, tzinfo=UTC), b"\x00a")
    here = Runtime(spark, Lake(home / "lake")).query(topology, "echo", [asked])
    assert warm.query(topology, "echo", [asked]) == here
    assert (here[0]["more"], here[0]["raw"]) == (Decimal("19.00"), b"\x00a")
    earlier = replace(warm._endpoints[0], typed=False)
    with pytest.raises(NobodyWarmError, match="earlier release"):
        WarmRuntime(home / "lake", [earlier]).query(topology, "echo", [asked])


@pytest.mark.parametrize(
    "value",
    [
        {"$date": "mine"},
        {"$map": []},
        {1: {"$": Decimal("1E+3")}},
        [None, {"a": date(1, 1, 1)}, b""],
        {},
        "$date",
        1.5,
        {("a", (1, None)): [1]},
        [timedelta(days=-1, microseconds=3), timedelta.max, time(1, 2, 3, 4)],
    ],
)
def test_any_value_comes_back_from_the_wire(value: Any) -> None:
    assert from_wire(json.loads(json.dumps(to_wire(value)))) == value


def test_a_slice_that_a_gate_refuses_is_in_the_report(home: Path, warm: WarmRuntime, topology: TridentTopology) -> None:
    write(home, "2026-01-02", [-1, 2])
    report = warm.backfill(topology, ["2026-01-01", "2026-01-02", "2026-01-03"])
    assert [one.slice for one in report.failed] == ["2026-01-02"]
    assert "amounts_are_positive" in str(report.failed[0].error)


def test_what_fails_there_is_told_here(home: Path, warm: WarmRuntime, topology: TridentTopology) -> None:
    for file in (home / "data" / "days").iterdir():
        file.unlink()
    (home / "data" / "days").rmdir()
    with pytest.raises(HandedOverError, match=r"MissingPathError: .*there is nothing at") as raised:
        warm.catch_up(topology)
    assert raised.value.kind == "MissingPathError"


def test_what_the_worker_logs_of_the_flow_is_passed_on(home: Path, worker: Server, topology: TridentTopology) -> None:
    lines: list[tuple[str, str]] = []
    found = find_warm(
        home / "lake", NimbusSettings(home / "nimbus"), log=lambda line, level: lines.append((line, level))
    )
    assert found is not None
    write(home, "2026-01-02", [-1, 2])
    with pytest.raises(HandedOverError, match="amounts_are_positive"):
        found.catch_up(topology)
    assert any("attempt failed" in line and level == "WARNING" for line, level in lines)


def test_other_code_is_refused_and_done_here_if_it_can_be(
    spark: SparkSession, home: Path, worker: Server, settings: NimbusSettings, topology: TridentTopology,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("pipelines.nimbus.handover.warm.source_digest", lambda name: "0123456789ab")
    found = find_warm(home / "lake", settings)
    assert found is not None
    with pytest.raises(NobodyWarmError, match="other code"):
        found.catch_up(topology)
    lines: list[str] = []
    own = find_warm(
        home / "lake",
        settings,
        otherwise=lambda: Runtime(spark, Lake(home / "lake")),
        log=lambda line, _: lines.append(line),
    )
    assert own is not None
    assert own.catch_up(topology).received == 9
    assert "a Spark of this process's own starts" in lines[-1]


def test_a_flow_that_is_not_in_the_catalog_is_done_here(home: Path, topology: TridentTopology) -> None:
    """A component of Dagster has it from a YAML file, or from a module that TRIDELTA_FLOWS does not name."""
    there = Endpoint(1, "00" * 32, ProcessIdentity.of(), waits=True, typed=True)
    topology.name = "orders"
    with pytest.raises(NobodyWarmError, match='no flow "orders" in the catalog'):
        WarmRuntime(home / "lake", [there]).catch_up(topology)
    own: Any = SimpleNamespace(catch_up=lambda *_, **__: "its own", query=lambda *_, **__: ["its own"])
    here = WarmRuntime(home / "lake", [there], otherwise=lambda: own)
    assert (here.catch_up(topology), here.query(topology, "of", [("k0",)])) == ("its own", ["its own"])


@pytest.mark.slow
def test_whoever_asks_may_go_away_and_whole_slices_stay(
    home: Path, warm: WarmRuntime, worker: Server, topology: TridentTopology
) -> None:
    """Dagster ends a run by an exception in its main thread."""

    def interrupted(_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        warm.backfill(topology, ["2026-01-01", "2026-01-02", "2026-01-03"], progress=interrupted)
    wait_until(lambda: not worker.busy)
    done = {commit.slice for commit in Lake(home / "lake").state("day_sums").history() if commit.slice}
    assert "2026-01-01" in done
    assert "2026-01-03" not in done
    report = warm.backfill(topology, ["2026-01-01", "2026-01-02", "2026-01-03"])
    assert report.failed == ()


def test_a_run_that_is_cancelled_hears_of_the_slice_that_is_under_way(
    home: Path, warm: WarmRuntime, worker: Server, topology: TridentTopology, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes while the worker commits the second day: that day is ended, and told; the third is not begun."""
    asked = threading.Event()
    replace_slice, listen = StateWriter.replace_slice, serving.Server._answer

    def interrupted(self: StateWriter, rows: pa.Table, record: BatchRecord, *more: Any, **named: Any) -> int:
        version = replace_slice(self, rows, record, *more, **named)
        if record.slice == "2026-01-02":
            os.kill(os.getpid(), signal.SIGINT)
            assert asked.wait(30)
        return version

    def answer(self: Server, connection: Any, request: Any) -> None:
        def wait() -> None:
            connection.poll(None)
            asked.set()

        threading.Thread(target=wait, daemon=True).start()
        listen(self, connection, request)

    monkeypatch.setattr(StateWriter, "replace_slice", interrupted)
    monkeypatch.setattr(serving.Server, "_answer", answer)
    slices: list[SliceReport] = []
    with pytest.raises(KeyboardInterrupt):
        warm.backfill(topology, ["2026-01-01", "2026-01-02", "2026-01-03"], progress=slices.append)
    assert [one.slice for one in slices] == ["2026-01-01", "2026-01-02"]
    made = made_slices(Lake(home / "lake").state("day_sums"))
    assert made == {"2026-01-01", "2026-01-02"}
    # When the run has ended, so has the request.
    assert [record.slice for record in Lake(home / "lake").state("day_sums").history() if record.slice] == sorted(made)


def test_a_backfill_that_is_cancelled_before_its_first_commit_makes_nothing(
    home: Path, warm: WarmRuntime, topology: TridentTopology, monkeypatch: pytest.MonkeyPatch
) -> None:
    backfill = Runtime.backfill

    def cancelled(self: Runtime, *args: Any, **given: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return backfill(self, *args, **given)

    monkeypatch.setattr(Runtime, "backfill", cancelled)
    with pytest.raises(KeyboardInterrupt):
        warm.backfill(topology, ["2026-01-01", "2026-01-02", "2026-01-03"])
    assert not made_slices(Lake(home / "lake").state("day_sums"))


def test_a_worker_that_ends_in_the_middle_is_said_so(
    home: Path, warm: WarmRuntime, topology: TridentTopology, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: Any) -> None:
        raise EOFError

    monkeypatch.setattr(serving.Server, "_answer", dies)
    with pytest.raises(HandedOverError, match="ended before it was done"):
        warm.catch_up(topology)


def endpoint_of(settings: NimbusSettings) -> Endpoint:
    file = settings.supervisor_folder("s1") / "0.endpoint.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    found = Endpoint.read(file)
    assert found is not None
    return found


def test_connections_that_are_aborted_and_wrong_keys_leave_the_worker_serving(
    home: Path, settings: NimbusSettings, warm: WarmRuntime, topology: TridentTopology
) -> None:
    endpoint = endpoint_of(settings)
    socket.create_connection((HOST, endpoint.port)).close()
    with pytest.raises(OSError, match="no hand-shake"), connected(endpoint.port, b"guessed", 10):
        pass
    with connected(endpoint.port, bytes.fromhex(endpoint.key), 10) as (connection, _):
        connection.send_bytes(b"no request")
    assert warm.catch_up(topology).received == 9


def test_a_worker_that_hangs_is_passed_over_and_a_spark_of_ones_own_does_it(
    spark: SparkSession, home: Path, settings: NimbusSettings, topology: TridentTopology, worker: Server
) -> None:
    lines: list[str] = []
    with socket.create_server((HOST, 0)) as silent:
        hanging = replace(endpoint_of(settings), port=silent.getsockname()[1])
        asking = WarmRuntime(
            home / "lake",
            [hanging],
            otherwise=lambda: Runtime(spark, Lake(home / "lake")),
            log=lambda line, _: lines.append(line),
            answer_seconds=0.3,
        )
        assert asking.catch_up(topology).received == 9
    assert "is passed over" in lines[0]
    assert "a Spark of this process's own starts" in lines[1]


def test_a_request_that_was_given_up_before_it_was_taken_is_not_begun(
    home: Path, worker: Server, settings: NimbusSettings, topology: TridentTopology, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()
    monkeypatch.setattr(serving.Server, "_answer", lambda *_: answered.set())
    endpoint = endpoint_of(settings)
    with connected(endpoint.port, bytes.fromhex(endpoint.key), 10) as (connection, _):
        connection.send_bytes(json.dumps({"verb": "catch_up", "flow": "days", "waits": True}).encode())
        assert json.loads(connection.recv_bytes()) == {"taken": True}
        assert worker.busy
    wait_until(lambda: not worker.busy)
    assert not answered.is_set()


def test_a_worker_with_as_many_requests_as_it_takes_refuses_the_next(
    warm: WarmRuntime, worker: Server, topology: TridentTopology, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:
        full.setattr(worker, "_serving", serving.REQUESTS_LIMIT)
        with pytest.raises(NobodyWarmError, match="it takes no more"):
            warm.catch_up(topology)
    worker.refuse()
    with pytest.raises(NobodyWarmError, match="the worker ends soon"):
        warm.catch_up(topology)


def test_a_worker_that_ends_takes_no_request(warm: WarmRuntime, worker: Server, topology: TridentTopology) -> None:
    assert worker.end_if_idle()
    with pytest.raises(NobodyWarmError):
        warm.catch_up(topology)


def test_a_worker_of_an_earlier_release_is_asked_as_before(
    home: Path, worker: Server, settings: NimbusSettings, topology: TridentTopology
) -> None:
    earlier = replace(endpoint_of(settings), waits=False)
    assert WarmRuntime(home / "lake", [earlier]).catch_up(topology).received == 9


def test_an_endpoint_of_a_dead_process_is_passed_over(home: Path, settings: NimbusSettings) -> None:
    file = settings.supervisor_folder("s1") / "6900.endpoint.json"
    file.parent.mkdir(parents=True)
    assert find_warm(home / "lake", settings) is None
    file.write_text(json.dumps({"port": 1, "key": "00", "pid": os.getpid(), "created": 1.0}), "utf-8")
    assert find_warm(home / "lake", settings) is None
    file.write_text("half a fi", "utf-8")
    assert find_warm(home / "lake", settings) is None
