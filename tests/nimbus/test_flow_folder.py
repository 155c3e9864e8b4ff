"""A watched folder over running streams: windows that stay, windows that begin anew, no event lost and none twice."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.nimbus import Nimbus
from pipelines.nimbus.flow_folder import FlowFolder, Happening, run_once
from pipelines.nimbus.settings import registry_url
from tests.nimbus.deployment import PATIENCE, Deployment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

HEAD = """\
flow: {name}
streams:
  - name: s
    delay: {delay}
    source: {{json_files: {{path: ../in, schema: "k string, v bigint, timestamp bigint"}}}}
    operations:
      - partition: k
"""
RUNNING_SUM = """\
      - aggregate:
          aggregators: [{sum: {field: v, output: v}}, {count: {output: n}}]
          trigger: {count: 1}
          evict: {count: 1000}
"""
LATEST = """\
      - aggregate:
          aggregators: [{max: {field: v, output: v}}, {max: {field: n, output: n}}]
          trigger: {count: COUNT}
          evict: {count: 1000}
          clear_on_trigger: true
"""
EACH_ONCE = """\
      - aggregate: {aggregators: [{max: {field: v, output: v}}], trigger: {count: 1}, evict: {count: 1}}
"""


class Place:
    """A lake, a folder of events and a watched folder; `windows` is where the windows of its flows run."""

    def __init__(self, here: Deployment, root: Path, windows: str) -> None:
        self.windows = windows
        self.lake, self._in, self._flows = Lake(root / "lake"), root / "in", root / "flows"
        self._in.mkdir()
        self._flows.mkdir()
        self.here, self.nimbus = here, Nimbus(registry_url(), self.lake)
        self.folder = FlowFolder(self.nimbus, self._flows, trigger_seconds=0.2, settle_seconds=0)
        self._files = 0
        self._awaited: dict[str, tuple[list[Any], tuple[str, ...]]] = {}

    def write(
        self, operations: str, *, name: str = "f", delay: int = 0, windows: str | None = None
    ) -> list[tuple[str, str | None]]:
        """Write a flow's file and have it looked at; returns what happened."""
        place = f"windows: {windows or self.windows}\nstreams:\n"
        head = HEAD.format(name=name, delay=delay).replace("streams:\n", place, 1)
        (self._flows / f"{name}.yaml").write_text(head + operations)
        return self.looked(self.folder.look)

    def changed(self, *, anew: bool) -> list[tuple[str, str | None]]:
        """Return what a change tells; on a channel an operation whose windows begin empty is not told by itself."""
        return [("windows begin empty", "f")] * (anew and self.windows == "batch") + [("changed", "f")]

    def remove(self, name: str) -> list[tuple[str, str | None]]:
        (self._flows / f"{name}.yaml").unlink()
        return self.looked(self.folder.look)

    def looked(self, look: Callable[[], list[Happening]]) -> list[tuple[str, str | None]]:
        """Look until all that was asked for is done."""
        end, happened = time.monotonic() + PATIENCE, what(look())
        while any(one.awaited for one in self.folder.deployed.values()):
            assert time.monotonic() < end, self.here.told()
            time.sleep(0.2)
            happened += what(look())
        return happened

    def starts(self, flow: str) -> list[str]:
        """The times at which queries of a flow have started."""
        log = self.here.log()
        return [line["timestamp"] for line in log if (line["event"], line.get("flow")) == ("query running", flow)]

    def end(self) -> None:
        self.looked(self.folder.stop)
        self.nimbus.close()
        # All queries have drained: one row too many would be there.
        for table, (expected, fields) in self._awaited.items():
            assert self.rows(table, *fields) == expected

    def events(self, values: list[int], second: int, key: str = "a") -> None:
        """Events one second after the other."""
        rows = [{"k": key, "v": v, "timestamp": 1000 * (second + n)} for n, v in enumerate(values)]
        self._files += 1
        draft = self._in / f".{self._files}"
        draft.write_text("".join(json.dumps(row) + "\n" for row in rows))
        draft.rename(self._in / f"{self._files:04}.json")

    def rows(self, table: str, *fields: str) -> list[Any]:
        if table not in self.lake.states():
            return []
        rows = sorted(self.lake.state(table).scan().to_pylist(), key=lambda row: (row["event_time"], row["event_id"]))
        return [row[fields[0]] if len(fields) == 1 else tuple(row[name] for name in fields) for row in rows]

    def await_rows(self, table: str, expected: list[Any], *fields: str) -> None:
        _await(lambda: len(self.rows(table, *fields)) >= len(expected))
        assert self.rows(table, *fields) == expected
        self._awaited[table] = expected, fields


def _await(there: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not there() and time.monotonic() < end:
        time.sleep(0.1)


def what(happened: list[Happening]) -> list[tuple[str, str | None]]:
    return [(one.what, one.flow) for one in happened]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    # Nothing is to be found dead here, however busy the machine.
    patient = {
        "lease_seconds": 120,
        "task_timeout_seconds": 200,
        "task_launch_seconds": 300,
        "supervisor_timeout_seconds": 120,
    }
    with Deployment(tmp_path_factory.mktemp("watched"), **patient) as made:
        yield made


@pytest.fixture(params=["batch", pytest.param("channels", marks=pytest.mark.exhaustive)])
def place(here: Deployment, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    made = Place(here, tmp_path, request.param)
    yield made
    made.end()


@pytest.mark.exhaustive
def test_a_changed_threshold_restarts_that_flow_and_the_other_windows_stay(place: Place) -> None:
    """BUG 3.4 of the original: a removed flow kept running."""
    first = RUNNING_SUM + LATEST.replace("COUNT", "2") + "      - persist: latest\n"
    place.events([1, 2, 3], 0)
    assert place.write(first) == [("started", "f")]
    assert place.write(RUNNING_SUM + "      - persist: beside\n", name="g") == [("started", "g")]
    place.await_rows("latest", [(3, 2)], "v", "n")
    place.await_rows("beside", [1, 3, 6], "v")
    other = place.starts("g")

    assert place.write(first.replace("{count: 2}", "{count: 3}")) == place.changed(anew=True)
    place.events([4, 5, 6], 10)
    # The sums go on at 6; the windows of the changed operation forget the third event and wait for three new ones.
    place.await_rows("latest", [(3, 2), (21, 6)], "v", "n")
    place.await_rows("beside", [1, 3, 6, 10, 15, 21], "v")
    assert place.starts("g") == other

    assert place.remove("f") == [("stopped", "f")]
    place.events([7, 8, 9], 20)
    place.await_rows("beside", [1, 3, 6, 10, 15, 21, 28, 36, 45], "v")
    assert place.rows("latest", "n") == [2, 6]


@pytest.mark.exhaustive
def test_windows_that_are_added_begin_anew_where_the_query_stopped(place: Place) -> None:
    place.events([1, 2, 3], 0)
    place.events([10], 10)
    assert place.write(RUNNING_SUM + "      - persist: sums\n", delay=5) == [("started", "f")]
    place.await_rows("sums", [(1, 1), (3, 2), (6, 3)], "v", "n")
    place.events([4, 5], 11)  # they wait for the clock, and are taken over

    happened = place.write(RUNNING_SUM + LATEST.replace("COUNT", "1") + "      - persist: sums\n", delay=5)
    assert happened == [("windows begin empty", "f"), ("changed", "f")]
    place.events([100], 30)
    # In the batch the sums that were there go on; Spark takes a checkpoint for one number of operations alone.
    anew = {"batch": [(16, 4), (20, 5), (25, 6)], "channels": [(10, 1), (14, 2), (19, 3)]}[place.windows]
    place.await_rows("sums", [(1, 1), (3, 2), (6, 3), *anew], "v", "n")
    if place.windows == "channels":
        assert [one.name for one in (place.lake.root / "replaced" / "f").iterdir()] == ["s__1.0.replaced"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("place", ["channels"], indirect=True)
def test_windows_go_over_into_the_batch_with_all_that_they_hold(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    sums, before = RUNNING_SUM + "      - persist: sums\n", len(place.here.log())
    place.events([1, 2, 3], 0)
    place.events([10], 10)
    assert place.write(sums, delay=5) == [("started", "f")]
    place.await_rows("sums", [(1, 1), (3, 2), (6, 3)], "v", "n")
    place.events([4, 5], 11)  # they wait for the clock

    assert place.write(sums, delay=5, windows="batch") == [("changed", "f")]
    assert "wait for the clock" not in caplog.text
    place.events([100], 30)
    place.await_rows("sums", [(1, 1), (3, 2), (6, 3), (16, 4), (20, 5), (25, 6)], "v", "n")
    assert [one.name for one in (place.lake.root / "replaced" / "f").iterdir()] == ["s__1.0.replaced"]
    failed = [
        line for line in place.here.log()[before:] if line.get("flow") == "f" and line["level"] in ("error", "warning")
    ]
    assert not failed
    assert place.write(sums, delay=5) == [("refused", "f")]


@pytest.mark.exhaustive
def test_each_event_comes_once_through_any_changes(place: Place) -> None:
    """Windows are added and removed, a table parts them (its query and its channel are new), goes to another query, and back."""
    sides = [
        EACH_ONCE,
        EACH_ONCE + EACH_ONCE,
        EACH_ONCE + "      - persist: between\n" + EACH_ONCE,
        "      - select: [k, v]\n",
        EACH_ONCE,
    ]
    expected: list[int] = []
    for number, operations in enumerate(sides):
        # Half of them before the change is seen, half behind it.
        place.events([10 * number, 10 * number + 1], 100 * number)
        happened = place.write(operations + "      - persist: all\n")
        assert ("started" if not number else "changed", "f") in happened, happened
        place.events([10 * number + 2, 10 * number + 3], 100 * number + 10)
        expected += [10 * number + n for n in range(4)]
        place.await_rows("all", expected, "v")
    assert len(place.rows("between", "v")) in (2, 4, 6)


@pytest.mark.exhaustive
def test_a_stream_that_gets_another_feeder_reads_both(place: Place) -> None:
    feeder = "      - filter: {least} <= v and v < {most}\n      - to: x\n"
    source = HEAD.format(name="f", delay=0).partition("  - name: s")[2].replace("      - partition: k\n", "")
    behind = "  - name: x\n    operations:\n      - partition: k\n" + EACH_ONCE + "      - persist: all\n"
    one = feeder.format(least=0, most=50) + behind
    two = feeder.format(least=0, most=50) + "  - name: r" + source + feeder.format(least=50, most=100) + behind
    place.events([1, 2], 0)
    place.write(one)
    place.await_rows("all", [1, 2], "v")
    place.events([3, 53, 4], 10)
    assert place.write(two) == [("windows begin empty", "f"), ("changed", "f")]
    place.events([5, 55], 20)
    place.events([6, 56], 21)
    place.await_rows("all", [1, 2, 3, 53, 4, 5, 6, 55, 56], "v")


@pytest.mark.exhaustive
def test_what_waits_in_windows_that_a_flow_has_no_more_is_told(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.events([1, 2, 3], 0)
    place.write(RUNNING_SUM + "      - persist: sums\n", delay=1)
    place.await_rows("sums", [1, 3], "v")
    place.write("      - select: [k, v]\n      - persist: others\n", delay=1)
    assert "others" in place.lake.states()
    place.events([4], 10)
    place.await_rows("others", [4], "v")
    query = {"batch": "s", "channels": "s__1"}[place.windows]
    told = "".join(json.dumps(line) for line in place.here.log()) if place.windows == "batch" else caplog.text
    assert f"1 event(s) wait for the clock in the windows of {query}" in told
    # The windows are back, and with them the third event; the fourth went by while they were away.
    assert place.write(RUNNING_SUM + "      - persist: sums\n", delay=1) == place.changed(anew=False)
    place.events([5, 6], 20)
    place.await_rows("sums", [1, 3, 6, 11], "v")


@pytest.mark.exhaustive
def test_a_definition_that_does_not_fit_its_tables_leaves_the_flow_running(place: Place) -> None:
    place.events([1], 0)
    place.write(RUNNING_SUM + "      - persist: sums\n")
    place.await_rows("sums", [1], "v")
    before = place.starts("f")
    fewer = RUNNING_SUM.replace(", {count: {output: n}}", "")
    assert place.write(fewer + "      - persist: sums\n") == [("refused", "f")]
    assert place.starts("f") == before
    place.events([2], 1)
    place.await_rows("sums", [1, 3], "v")


def test_once_goes_on_where_the_last_run_ended(place: Place, spark: SparkSession) -> None:
    flows, runtime = place.lake.root.parent / "flows", Runtime(spark, place.lake)
    (flows / "f.yaml").write_text(HEAD.format(name="f", delay=0) + RUNNING_SUM + "      - persist: sums\n")
    place.events([1, 2], 0)
    assert what(run_once(runtime, flows)) == [("started", "f")]
    place.events([3], 10)
    run_once(runtime, flows)
    assert place.rows("sums", "v") == [1, 3, 6]
