"""What a watched folder makes of its files; the flows themselves do not run here."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pipelines import Lake
from pipelines.errors import LostRowsError, MissingPathError
from pipelines.execution import flow_folder
from pipelines.execution.flow_folder import FlowFolder

FLOW = """\
flow: {name}
streams:
  - name: s
    source: {{json_files: {{path: in, schema: "k string, v bigint"}}}}
    operations:
      - filter: v > {least}
      - output
"""


class Running:
    """Stands for the streams of a flow."""

    def __init__(self, runtime: Streams, flow: Any) -> None:
        self._runtime, self.flow, self.running, self.batches = runtime, flow, True, []

    def stop(self) -> None:
        self._runtime.log.append(("stop", self.flow.name))
        if not self.running:
            raise LostRowsError(self.flow.name, "files 1 to 3")


class Streams:
    """Stands for the runtime: what was started and stopped, in order."""

    def __init__(self, lake: Lake) -> None:
        self.lake, self.log, self.fails = lake, [], []
        self.latest: dict[str, Running] = {}

    def stream(self, flow: Any, **_: Any) -> Running:
        self.log.append(("start", flow.name, flow.streams["s"].operations[0].label))
        if self.fails:
            raise self.fails.pop(0)
        self.latest[flow.name] = Running(self, flow)
        return self.latest[flow.name]

    def catch_up(self, flow: Any, **_: Any) -> None:
        self.log.append(("catch up", flow.name))

    def news(self) -> list[tuple[str, ...]]:
        found, self.log = self.log, []
        return found


@pytest.fixture
def streams(lake_root: str) -> Streams:
    return Streams(Lake(lake_root))


@pytest.fixture
def flows(tmp_path: Path) -> Path:
    folder = tmp_path / "flows"
    folder.mkdir()
    return folder


def write(flows: Path, file: str, name: str, least: int = 0) -> None:
    (flows / file).write_text(FLOW.format(name=name, least=least))


def watched(streams: Any, flows: Path) -> FlowFolder:
    return FlowFolder(streams, flows, settle_seconds=0)


def what(happened: list[flow_folder.Happening]) -> list[tuple[str, str | None]]:
    return [(one.what, one.flow) for one in happened]


def test_files_are_added_changed_and_removed_each_for_itself(streams: Streams, flows: Path) -> None:
    """BUG 3.4 of the original: flows were only ever added; a removed flow kept running. Here it stops, and it alone."""
    folder = watched(streams, flows)
    assert folder.look() == []
    write(flows, "a.yaml", "first")
    write(flows, "b.yml", "second")
    assert what(folder.look()) == [("started", "first"), ("started", "second")]
    streams.news()
    assert folder.look() == []
    write(flows, "a.yaml", "first", least=5)
    assert what(folder.look()) == [("changed", "first")]
    assert streams.news() == [("stop", "first"), ("start", "first", "filter v > 5")]
    (flows / "a.yaml").unlink()
    assert what(folder.look()) == [("stopped", "first")]
    assert streams.news() == [("stop", "first")]
    assert set(folder.running) == {"second"}
    assert what(folder.stop()) == [("stopped", "second")]


def test_a_faulty_file_is_told_once_and_the_running_version_goes_on(
    streams: Streams, flows: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = watched(streams, flows)
    write(flows, "a.yaml", "first")
    folder.look()
    streams.news()
    (flows / "a.yaml").write_text((flows / "a.yaml").read_text().replace("- output", "- outptu"))
    (found,) = folder.look()
    assert (found.what, found.file) == ("refused", flows / "a.yaml")
    assert "line 7, streams[0].operations[1]" in found.reason
    assert f"file='{flows / 'a.yaml'}'" in caplog.text
    assert "line=7" in caplog.text
    assert folder.look() == []
    assert streams.news() == []
    assert set(folder.running) == {"first"}
    write(flows, "a.yaml", "first", least=1)
    assert what(folder.look()) == [("changed", "first")]


def test_what_cannot_run_on_spark_is_refused_before_anything_stops(streams: Streams, flows: Path) -> None:
    folder = watched(streams, flows)
    write(flows, "a.yaml", "first")
    folder.look()
    streams.news()
    text = (flows / "a.yaml").read_text()
    (flows / "a.yaml").write_text(text.replace('{json_files: {path: in, schema: "k string, v bigint"}}', '"v bigint"'))
    (found,) = folder.look()
    assert found.what == "refused"
    assert "has a schema and no source" in found.reason
    assert streams.news() == []
    assert folder.look() == []


def test_of_two_files_of_one_name_the_running_one_stays(streams: Streams, flows: Path) -> None:
    folder = watched(streams, flows)
    write(flows, "a.yaml", "same")
    folder.look()
    write(flows, "b.yaml", "same", least=3)
    (found,) = folder.look()
    assert (found.what, found.file) == ("refused", flows / "b.yaml")
    assert f"{flows / 'a.yaml'}, {flows / 'b.yaml'}" in found.reason
    assert folder.look() == []
    (flows / "a.yaml").write_text("flow: [")
    assert [one.file for one in folder.look()] == [flows / "a.yaml"]
    streams.news()
    (flows / "a.yaml").unlink()
    assert what(folder.look()) == [("changed", "same")]
    assert streams.news() == [("stop", "same"), ("start", "same", "filter v > 3")]


def test_two_new_files_of_one_name_are_both_refused(streams: Streams, flows: Path) -> None:
    folder = watched(streams, flows)
    write(flows, "a.yaml", "same")
    write(flows, "b.yaml", "same", least=3)
    assert [one.file for one in folder.look()] == [flows / "a.yaml", flows / "b.yaml"]
    assert streams.news() == []


def test_a_renamed_file_stops_nothing(streams: Streams, flows: Path) -> None:
    folder = watched(streams, flows)
    write(flows, "a.yaml", "first")
    folder.look()
    streams.news()
    (flows / "a.yaml").rename(flows / "b.yaml")
    assert folder.look() == []
    assert streams.news() == []


def test_a_flow_that_gets_another_name_is_another_flow(streams: Streams, flows: Path) -> None:
    folder = watched(streams, flows)
    write(flows, "a.yaml", "first")
    folder.look()
    write(flows, "a.yaml", "other")
    assert what(folder.look()) == [("stopped", "first"), ("started", "other")]


def test_a_file_that_is_being_written_waits(streams: Streams, flows: Path) -> None:
    folder = FlowFolder(streams, flows, settle_seconds=30)  # type: ignore[arg-type]
    write(flows, "a.yaml", "first")
    assert folder.look() == []
    os.utime(flows / "a.yaml", (time.time() - 60, time.time() - 60))
    assert what(folder.look()) == [("started", "first")]
    (flows / "a.yaml").write_text("")
    assert folder.look() == []
    assert set(folder.running) == {"first"}


def test_a_change_that_does_not_start_brings_the_former_flow_back(streams: Streams, flows: Path) -> None:
    folder = watched(streams, flows)
    write(flows, "a.yaml", "first")
    folder.look()
    streams.news()
    write(flows, "a.yaml", "first", least=5)
    streams.fails = [MissingPathError("s", "in")]
    assert what(folder.look()) == [("refused", "first"), ("started", "first")]
    assert streams.news() == [
        ("stop", "first"),
        ("start", "first", "filter v > 5"),
        ("start", "first", "filter v > 0"),
    ]
    assert folder.look() == []


def test_a_flow_that_dies_is_told_and_started_again_after_a_while(
    streams: Streams, flows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(flow_folder.time, "monotonic", lambda: now[0])
    folder = watched(streams, flows)
    write(flows, "a.yaml", "first")
    write(flows, "b.yaml", "second")
    folder.look()
    for pause in (1, 2, 4):
        streams.latest["first"].running = False
        (found,) = folder.look()
        assert found.what == "died"
        assert "files 1 to 3" in found.reason
        now[0] += pause - 0.1
        assert folder.look() == []
        now[0] += 0.2
        assert what(folder.look()) == [("started", "first")]
    assert ("stop", "second") not in streams.news()


def test_a_folder_that_is_gone_for_a_while_stops_nothing(streams: Streams, flows: Path) -> None:
    folder = watched(streams, flows)
    write(flows, "a.yaml", "first")
    folder.look()
    flows.rename(flows.with_name("away"))
    (found,) = folder.look()
    assert found.what == "refused"
    assert set(folder.running) == {"first"}
    flows.with_name("away").rename(flows)
    assert folder.look() == []
    with pytest.raises(MissingPathError):
        watched(streams, flows / "none")


def test_the_end_drains_all(streams: Streams, flows: Path) -> None:
    folder, ended = watched(streams, flows), threading.Event()
    write(flows, "a.yaml", "first")
    watcher = threading.Thread(target=folder.watch, args=(ended,), kwargs={"poll_seconds": 0.01})
    watcher.start()
    while not folder.running:
        time.sleep(0.01)
    ended.set()
    watcher.join(10)
    assert streams.news()[-1] == ("stop", "first")
    assert folder.running == {}


def test_once_runs_each_flow_to_its_end(streams: Streams, flows: Path) -> None:
    write(flows, "a.yaml", "first")
    (flows / "b.yaml").write_text("flow: second\n")
    assert what(watched(streams, flows).once()) == [("refused", None), ("started", "first")]
    assert streams.news() == [("catch up", "first")]


def test_hostile_files_are_told_each_for_itself_and_all_other_flows_go_on(streams: Streams, flows: Path) -> None:
    folder = watched(streams, flows)
    write(flows, "a.yaml", "first")
    folder.look()
    streams.news()
    (flows / "b.yaml").write_text("[" * 5000)
    os.mkfifo(flows / "c.yaml")
    (flows / "d.yaml").symlink_to("/dev/zero")
    (flows / "e.yaml").write_text(FLOW.format(name="e", least="(" * 300 + "1" + ")" * 300))
    (flows / "f.yaml").write_bytes(b"\xff\xfe\x00")
    (flows / "g.yaml").write_text("x" * 1_000_000)
    write(flows, "h.yaml", "last")
    happened = folder.look()
    refused = [one.file for one in happened if one.what == "refused"]
    assert refused == [flows / f"{letter}.yaml" for letter in "bcdefg"]
    assert set(folder.running) == {"first", "last"}
    assert streams.news() == [("start", "last", "filter v > 0")]
    assert folder.look() == []


def test_a_file_that_raises_what_nobody_foresaw_is_that_files_fault(
    streams: Streams, flows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = watched(streams, flows)
    write(flows, "a.yaml", "first")
    folder.look()
    for raised in (RecursionError("deep"), MemoryError(), SystemExit(3), KeyError("x")):

        def fails(*_: Any, raised: BaseException = raised) -> None:
            raise raised

        with monkeypatch.context() as patch:
            patch.setattr("pipelines.execution.flow_folder.load_flow", fails)
            (flows / "b.yaml").write_text(f"# {raised!r}")
            (told,) = folder.look()
        assert (told.what, type(raised).__name__ in told.reason) == ("refused", True)
    assert set(folder.running) == {"first"}
