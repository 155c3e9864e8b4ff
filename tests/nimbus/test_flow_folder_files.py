"""What a watched folder makes of its files; the flows themselves do not run here."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines import Lake
from pipelines.errors import LockedError, LostRowsError, MissingPathError
from pipelines.flowmix import load_flow
from pipelines.nimbus import flow_folder
from pipelines.nimbus.deployed import CATALOG, YAML
from pipelines.nimbus.errors import NotAliveError, NoTransitionError, RegistryError, SubmitError, VersionError
from pipelines.nimbus.flow_folder import FlowFolder
from pipelines.nimbus.registry.records import Content, Version
from pipelines.nimbus.status import ClusterStatus, FlowStatus
from tests.nimbus.looks import RUNNING, cluster, flow

FLOW = """\
flow: {name}
streams:
  - name: s
    source: {{json_files: {{path: in, schema: "k string, v bigint"}}}}
    operations:
      - filter: v > {least}
      - output
"""


class Deployed:
    """Stands for Nimbus: what was deployed and removed, in order; everything takes effect at once."""

    def __init__(self, lake: Lake) -> None:
        self.lake, self.log, self.fails = lake, [], []
        self.flows: dict[str, FlowStatus] = {}
        self.comes_up = "failed"
        self.texts: dict[str, dict[int, Path]] = {}
        self.labels: dict[str, dict[int, str]] = {}
        self.copies: dict[tuple[str, int], int] = {}

    def deploy(self, name: str, *, file: Path, **settings: Any) -> tuple[FlowStatus, str]:
        verb = "update" if name in self.flows else "submit"
        label, labels = load_flow(file).streams["s"].operations[0].label, self.labels.setdefault(name, {})
        if name in self.flows and labels.get(self.version(name)) == label:
            return self.flows[name], "unchanged"
        self.log.append((verb, name, label))
        self.texts.setdefault(name, {})[self.version(name) + 1] = file
        labels[self.version(name) + 1] = label
        return self._put(name, settings), {"submit": "submitted", "update": "updated"}[verb]

    def roll_back(self, name: str, to: int, *, seen: FlowStatus | None = None) -> FlowStatus:
        if seen is not None and seen.version != self.version(name):
            raise VersionError(name, seen.version, "another has taken its place", self.version(name))
        self.log.append(("roll back", name, to))
        self.comes_back(name, to)
        return self.flows[name]

    def comes_back(self, name: str, to: int) -> None:
        """An earlier version is the current one, as a new one."""
        self.copies[name, self.version(name) + 1] = to
        self.labels[name][self.version(name) + 1] = self.labels[name][to]
        self._put(name, self.flows[name].settings)

    def updates(self, name: str) -> None:
        """Somebody else updates it."""
        self.labels[name][self.version(name) + 1] = "of another"
        self._put(name, self.flows[name].settings)

    def version(self, name: str) -> int:
        return self.flows[name].version if name in self.flows else 0

    def _put(self, name: str, settings: Any) -> FlowStatus:
        number = self.version(name) + 1
        task = replace(RUNNING, version=number)
        if self.fails:
            task = replace(task, state=self.comes_up, last_error=str(self.fails.pop(0)))
        self.flows[name] = flow(name, task, version=number, settings=settings)
        return self.flows[name]

    def kill(self, name: str) -> None:
        self.flow(name)
        self.log.append(("kill", self.flows.pop(name).name))

    def dies(self, name: str, reason: str) -> None:
        (task,) = self.flows[name].tasks
        self.flows[name] = replace(self.flows[name], tasks=(replace(task, state="failed", last_error=reason),))

    def lives(self, name: str) -> None:
        (task,) = self.flows[name].tasks
        self.flows[name] = replace(self.flows[name], tasks=(replace(task, state="running", last_error=None),))

    def cluster(self) -> ClusterStatus:
        return cluster(*self.flows.values())

    def flow(self, name: str) -> FlowStatus:
        if name not in self.flows:
            raise NotAliveError(name)
        return self.flows[name]

    def history(self, name: str) -> list[Any]:
        return []

    def versions(self, name: str) -> list[Version]:
        file = str(next(iter(self.texts[name].values())))
        return [
            Version(number, Content({"kind": YAML, "file": file}, {}), 0.0, copy_of=self.copies.get((name, number)))
            for number in range(1, self.version(name) + 1)
        ]

    def news(self) -> list[tuple[str, ...]]:
        found, self.log = self.log, []
        return found


@pytest.fixture
def streams(lake_root: str) -> Deployed:
    return Deployed(Lake(lake_root))


@pytest.fixture
def flows(tmp_path: Path) -> Path:
    folder = tmp_path / "flows"
    folder.mkdir()
    return folder


def write(flows: Path, file: str, name: str, least: int = 0) -> None:
    (flows / file).write_text(FLOW.format(name=name, least=least))


def watched(streams: Any, flows: Path) -> FlowFolder:
    return FlowFolder(streams, flows, settle_seconds=0)


def cut_off(streams: Deployed, call: str, *, done: bool = True) -> None:
    """The answer to the next call is cut off; what it asks for is done, or not."""
    made = getattr(streams, call)

    def once(*args: Any, **options: Any) -> None:
        delattr(streams, call)
        if done:
            made(*args, **options)
        raise RegistryError("postgresql://x", "does not answer")

    setattr(streams, call, once)


def running(folder: FlowFolder) -> set[str]:
    return {name for name, one in folder.deployed.items() if not one.awaited}


def what(happened: list[flow_folder.Happening]) -> list[tuple[str, str | None]]:
    return [(one.what, one.flow) for one in happened]


def test_files_are_added_changed_and_removed_each_for_itself(streams: Deployed, flows: Path) -> None:
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
    assert streams.news() == [("update", "first", "filter v > 5")]
    (flows / "a.yaml").unlink()
    assert what(folder.look()) == [("stopped", "first")]
    assert streams.news() == [("kill", "first")]
    assert running(folder) == {"second"}
    assert what(folder.stop()) == [("stopped", "second")]


def test_a_faulty_file_is_told_once_and_the_running_version_goes_on(
    streams: Deployed, flows: Path, caplog: pytest.LogCaptureFixture
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
    assert running(folder) == {"first"}
    write(flows, "a.yaml", "first", least=1)
    assert what(folder.look()) == [("changed", "first")]


def test_what_cannot_run_on_spark_is_refused_before_anything_stops(streams: Deployed, flows: Path) -> None:
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


def test_of_two_files_of_one_name_the_running_one_stays(streams: Deployed, flows: Path) -> None:
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
    assert streams.news() == [("update", "same", "filter v > 3")]


def test_two_new_files_of_one_name_are_both_refused(streams: Deployed, flows: Path) -> None:
    folder = watched(streams, flows)
    write(flows, "a.yaml", "same")
    write(flows, "b.yaml", "same", least=3)
    assert [one.file for one in folder.look()] == [flows / "a.yaml", flows / "b.yaml"]
    assert streams.news() == []


def test_a_renamed_file_stops_nothing(streams: Deployed, flows: Path) -> None:
    folder = watched(streams, flows)
    write(flows, "a.yaml", "first")
    folder.look()
    streams.news()
    (flows / "a.yaml").rename(flows / "b.yaml")
    assert folder.look() == []
    assert streams.news() == []


def test_a_flow_that_gets_another_name_is_another_flow(streams: Deployed, flows: Path) -> None:
    folder = watched(streams, flows)
    write(flows, "a.yaml", "first")
    folder.look()
    write(flows, "a.yaml", "other")
    assert what(folder.look()) == [("stopped", "first"), ("started", "other")]


def test_a_file_that_is_being_written_waits(streams: Deployed, flows: Path) -> None:
    folder = FlowFolder(streams, flows, settle_seconds=30)  # type: ignore[arg-type]
    write(flows, "a.yaml", "first")
    assert folder.look() == []
    os.utime(flows / "a.yaml", (time.time() - 60, time.time() - 60))
    assert what(folder.look()) == [("started", "first")]
    (flows / "a.yaml").write_text("")
    assert folder.look() == []
    assert running(folder) == {"first"}


def test_a_change_that_does_not_start_brings_the_former_flow_back(streams: Deployed, flows: Path) -> None:
    folder = watched(streams, flows)
    write(flows, "a.yaml", "first")
    folder.look()
    streams.news()
    write(flows, "a.yaml", "first", least=5)
    streams.fails = [MissingPathError("s", "in")]
    assert what(folder.look() + folder.look()) == [("refused", "first"), ("started", "first")]
    assert streams.news() == [("update", "first", "filter v > 5"), ("roll back", "first", 1)]
    assert folder.look() == []


@pytest.mark.parametrize("fails", [False, True])
def test_a_change_that_waits_for_a_compaction_before_its_partitions_change_is_not_taken_back(
    streams: Deployed, flows: Path, fails: bool
) -> None:
    """It says for whom it waits; where its state cannot be dealt out again it fails."""
    folder = watched(streams, flows)
    write(flows, "a.yaml", "first")
    folder.look()
    write(flows, "a.yaml", "first", least=5)
    streams.comes_up, streams.fails = "repartitioning", [LockedError("first", "rewrite.lock", 1.0)]
    folder.look()
    streams.news()
    assert what(folder.look() + folder.look()) == []
    assert streams.news() == []
    if fails:
        streams.dies("first", "a damaged copy")
        assert what(folder.look() + folder.look()) == [("refused", "first"), ("started", "first")]
    else:
        streams.lives("first")
        assert what(folder.look()) == [("changed", "first")]


@pytest.mark.parametrize(
    "error",
    [
        NoTransitionError("ROLL_BACK", "REBALANCING", "first"),
        VersionError("first", 2, "another has taken its place", 3),
    ],
    ids=["rebalances", "updates"],
)
def test_a_change_that_fails_while_somebody_rebalances_or_updates_its_flow_ends_nothing(
    streams: Deployed, flows: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    folder = watched(streams, flows)
    write(flows, "a.yaml", "first")
    write(flows, "b.yaml", "second")
    folder.look()
    write(flows, "a.yaml", "first", least=5)
    streams.fails = [MissingPathError("s", "in")]

    def held(flow: str, to: int | None = None, **_: object) -> None:
        raise error

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(streams, "roll_back", held)
        folder.look()
        folder.look()
        assert running(folder) == {"second"}
    assert what(folder.look() + folder.look()) == [("refused", "first"), ("started", "first")]
    assert running(folder) == {"first", "second"}


def test_an_update_that_comes_behind_a_look_is_not_taken_back(
    streams: Deployed, flows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody mends what has failed in the moment in which the folder rolls it back."""
    folder = watched(streams, flows)
    write(flows, "a.yaml", "first")
    folder.look()
    write(flows, "a.yaml", "first", least=5)
    streams.fails = [MissingPathError("s", "in")]
    streams.news()
    looks = streams.cluster

    def look_and_then_another_updates() -> ClusterStatus:
        seen = looks()
        monkeypatch.setattr(streams, "cluster", looks)
        streams.updates("first")
        return seen

    monkeypatch.setattr(streams, "cluster", look_and_then_another_updates)
    (refused,) = folder.look()
    assert (refused.what, refused.reason) == ("refused", str(MissingPathError("s", "in")))
    assert what([one for _ in range(3) for one in folder.look()]) == [("started", "first")]
    assert streams.news() == [("update", "first", "filter v > 5")]
    assert streams.version("first") == 3
    # The file is asked again when it changes.
    write(flows, "a.yaml", "first", least=6)
    assert what(folder.look()) == [("changed", "first")]


@pytest.mark.parametrize("back", [False, True], ids=["updates", "rolls back"])
def test_nor_is_one_that_comes_between_two_looks_at_a_change_that_does_not_run(
    streams: Deployed, flows: Path, back: bool
) -> None:
    folder = watched(streams, flows)
    write(flows, "a.yaml", "first")
    folder.look()
    write(flows, "a.yaml", "first", least=5)
    streams.comes_up, streams.fails = "starting", [""]
    folder.look()
    streams.news()
    if back:
        streams.comes_back("first", 1)
    else:
        streams.updates("first")
    assert what([one for _ in range(4) for one in folder.look()]) == [("started", "first")]
    assert streams.news() == []
    assert streams.version("first") == 3


def test_a_change_that_cannot_be_rolled_back_is_refused_once(
    streams: Deployed, flows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a rebalance has set does not fit the former version."""
    asked: list[str] = []

    def unfit(name: str, to: int, **_: object) -> FlowStatus:
        asked.append(name)
        raise SubmitError(name, "setting rebalance: busy below overloaded")

    monkeypatch.setattr(streams, "roll_back", unfit)
    folder = watched(streams, flows)
    write(flows, "a.yaml", "first")
    folder.look()
    write(flows, "a.yaml", "first", least=5)
    streams.fails = [MissingPathError("s", "in")]
    happened = [one for _ in range(4) for one in folder.look()]
    assert what(happened) == [("refused", "first")]
    assert "there is nothing at in" in happened[0].reason
    assert asked == ["first"]
    # It is the one that is tried again, by its worker.
    streams.lives("first")
    assert what(folder.look()) == [("changed", "first")]


def test_a_change_that_has_failed_is_tried_again_later_and_later(
    streams: Deployed, flows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(flow_folder.time, "monotonic", lambda: now[0])
    folder = watched(streams, flows)
    write(flows, "a.yaml", "first")
    folder.look()
    write(flows, "a.yaml", "first", least=5)
    for pause in (10, 20, 40):
        streams.fails = [MissingPathError("s", "in")]
        streams.news()
        folder.look()
        assert what(folder.look()) == [("started", "first")]
        assert [verb for verb, *_ in streams.news()] == ["update", "roll back"]
        now[0] += pause - 0.1
        assert folder.look() == []
        now[0] += 0.2
    assert what(folder.look()) == [("changed", "first")]


def test_a_flow_that_dies_is_told_and_so_is_its_next_start(streams: Deployed, flows: Path) -> None:
    """Its worker starts it again, after 1, 2, 4, ... seconds."""
    folder = watched(streams, flows)
    write(flows, "a.yaml", "first")
    write(flows, "b.yaml", "second")
    folder.look()
    streams.news()
    for _ in range(3):
        streams.dies("first", str(LostRowsError("s", "files 1 to 3")))
        (found,) = folder.look()
        assert found.what == "died"
        assert "files 1 to 3" in found.reason
        assert folder.look() == []
        streams.lives("first")
        assert what(folder.look()) == [("started", "first")]
    assert streams.news() == []


def test_a_watch_takes_over_what_one_that_was_killed_has_deployed(streams: Deployed, flows: Path) -> None:
    write(flows, "a.yaml", "first")
    write(flows, "b.yaml", "second")
    watched(streams, flows).look()
    (flows / "b.yaml").unlink()
    streams.news()
    folder = watched(streams, flows)
    assert what(folder.look()) == [("started", "first"), ("stopped", "second")]
    assert ("kill", "second") in streams.news()


def test_a_flow_that_somebody_else_has_deployed_is_refused(streams: Deployed, flows: Path) -> None:
    streams.flows["first"] = flow("first")
    folder = watched(streams, flows)
    write(flows, "a.yaml", "first")
    (found,) = folder.look()
    assert (found.what, found.file) == ("refused", flows / "a.yaml")
    assert "already alive" in found.reason
    assert folder.look() == []
    assert folder.stop() == []
    assert streams.news() == []


def test_a_folder_that_is_gone_for_a_while_stops_nothing(streams: Deployed, flows: Path) -> None:
    folder = watched(streams, flows)
    write(flows, "a.yaml", "first")
    folder.look()
    flows.rename(flows.with_name("away"))
    (found,) = folder.look()
    assert found.what == "refused"
    assert running(folder) == {"first"}
    flows.with_name("away").rename(flows)
    assert folder.look() == []
    with pytest.raises(MissingPathError):
        watched(streams, flows / "none")


@pytest.mark.parametrize(
    "definition", [{"kind": CATALOG, "name": "other"}, {"kind": YAML, "file": "/elsewhere/o.yaml"}]
)
def test_a_flow_is_not_the_watchs_own_by_its_owner_alone(
    streams: Deployed, flows: Path, definition: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any form may write that setting."""
    streams._put("other", {"owner": f"tridelta watch {flows}"})
    monkeypatch.setattr(streams, "versions", lambda name: [Version(1, Content(definition, {}), 0.0)])
    folder = watched(streams, flows)
    assert (folder.look(), folder.stop(), folder.deployed, list(streams.flows)) == ([], [], {}, ["other"])


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("ends", [False, True])
def test_a_removal_whose_answer_was_cut_off_is_asked_for_again(
    streams: Deployed, flows: Path, ends: bool, done: bool
) -> None:
    folder = watched(streams, flows)
    write(flows, "a.yaml", "first")
    folder.look()
    if not ends:
        (flows / "a.yaml").unlink()
    cut_off(streams, "kill", done=done)
    look = folder.stop if ends else folder.look
    with pytest.raises(RegistryError):
        look()
    assert what(look()) == [("stopped", "first")]
    assert (streams.flows, folder.deployed) == ({}, {})


@pytest.mark.parametrize("done", [False, True])
def test_a_flow_whose_submission_was_cut_off_is_the_watchs_own(streams: Deployed, flows: Path, done: bool) -> None:
    folder = watched(streams, flows)
    folder.look()
    write(flows, "a.yaml", "first")
    cut_off(streams, "deploy", done=done)
    with pytest.raises(RegistryError):
        folder.look()
    assert what(folder.look()) == [("started", "first")]
    write(flows, "a.yaml", "first", least=5)
    assert what(folder.look()) == [("changed", "first")]
    assert streams.news()[-1] == ("update", "first", "filter v > 5")
    assert what(folder.stop()) == [("stopped", "first")]


@pytest.mark.parametrize("back", [False, True])
def test_a_change_whose_answer_was_cut_off_is_rolled_back_too(streams: Deployed, flows: Path, back: bool) -> None:
    folder = watched(streams, flows)
    write(flows, "a.yaml", "first")
    folder.look()
    write(flows, "a.yaml", "first", least=5)
    streams.fails = [MissingPathError("s", "in")]
    cut_off(streams, "deploy")
    with pytest.raises(RegistryError):
        folder.look()
    streams.news()
    if back:
        # Its author has taken it back meanwhile.
        write(flows, "a.yaml", "first")
        assert what(folder.look()) == [("changed", "first")]
        assert streams.news() == [("update", "first", "filter v > 0")]
    else:
        assert what(folder.look() + folder.look()) == [("refused", "first"), ("started", "first")]
        assert streams.news() == [("roll back", "first", 1)]


def test_a_roll_back_whose_answer_was_cut_off_is_told_and_waits_as_any(
    streams: Deployed, flows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(flow_folder.time, "monotonic", lambda: now[0])
    folder = watched(streams, flows)
    write(flows, "a.yaml", "first")
    folder.look()
    write(flows, "a.yaml", "first", least=5)
    streams.fails = [MissingPathError("s", "in")]
    cut_off(streams, "roll_back")
    with pytest.raises(RegistryError):
        folder.look()
    assert [verb for verb, *_ in streams.news()] == ["submit", "update", "roll back"]
    happened = [one for _ in range(3) for one in folder.look()]
    assert what(happened) == [("refused", "first"), ("started", "first")]
    assert "there is nothing at in" in happened[0].reason
    assert streams.news() == []
    # The file still says so: it is tried again, later.
    now[0] += 10.1
    assert what(folder.look()) == [("changed", "first")]
    assert streams.news() == [("update", "first", "filter v > 5")]


def test_a_roll_back_that_was_cut_off_is_not_undone_for_what_was_said_against_the_change(
    streams: Deployed, flows: Path
) -> None:
    """What the registry has against a flow is taken back by the worker that loads the former version, and not at once."""
    folder = watched(streams, flows)
    write(flows, "a.yaml", "first")
    folder.look()
    write(flows, "a.yaml", "first", least=5)
    streams.comes_up, streams.fails = "starting", ["", ""]
    folder.look()
    streams.flows["first"] = replace(streams.flows["first"], problem="cannot be loaded")
    cut_off(streams, "roll_back")
    with pytest.raises(RegistryError):
        folder.look()
    streams.flows["first"] = replace(streams.flows["first"], problem="cannot be loaded")
    streams.news()
    assert what([one for _ in range(3) for one in folder.look()]) == [("refused", "first")]
    streams.lives("first")
    assert what(folder.look()) == [("started", "first")]
    assert streams.news() == []
    assert streams.version("first") == 3


class Keeper:
    """Stands for a supervisor."""

    def __init__(self, *looks: bool) -> None:
        self.ending, self.log, self.empties, self.looks = threading.Event(), [], False, list(looks)

    def stand_in(self) -> bool:
        self.log.append("stands in")
        return True

    def look(self) -> bool:
        self.log.append("looks")
        return self.looks.pop(0) if self.looks else True

    def end(self) -> None:
        self.log.append("ends")


def test_the_end_drains_all(streams: Deployed, flows: Path) -> None:
    folder, keeper = watched(streams, flows), Keeper()
    write(flows, "a.yaml", "first")
    watcher = threading.Thread(target=flow_folder.watch, args=(folder, keeper), kwargs={"poll_seconds": 0.01})
    watcher.start()
    while not running(folder):
        time.sleep(0.01)
    keeper.ending.set()
    watcher.join(10)
    assert streams.news()[-1] == ("kill", "first")
    assert folder.deployed == {}
    assert (keeper.log[0], keeper.log[-1], set(keeper.log[1:-1])) == ("stands in", "ends", {"looks"})


def test_the_end_drains_a_flow_whose_submission_was_cut_off(streams: Deployed, flows: Path) -> None:
    folder, keeper = watched(streams, flows), Keeper()
    write(flows, "a.yaml", "first")
    cut_off(streams, "deploy")
    with pytest.raises(RegistryError):
        folder.look()
    keeper.ending.set()
    flow_folder.watch(folder, keeper, poll_seconds=0.01)
    assert streams.news()[-1] == ("kill", "first")
    assert streams.flows == {}


def test_a_watch_goes_on_where_another_supervisor_has_taken_its_name(streams: Deployed, flows: Path) -> None:
    """As after the laptop has slept: no flow is drained, and it stands in again once the other one has ended."""
    folder, keeper = watched(streams, flows), Keeper(False)
    write(flows, "a.yaml", "first")
    watcher = threading.Thread(target=flow_folder.watch, args=(folder, keeper), kwargs={"poll_seconds": 0.01})
    watcher.start()
    while keeper.log.count("looks") < 2:
        time.sleep(0.01)
    assert running(folder) == {"first"}
    keeper.ending.set()
    watcher.join(10)
    assert keeper.log[:5] == ["stands in", "looks", "ends", "stands in", "looks"]


class Once:
    """Stands for the runtime of a single run."""

    def __init__(self, lake: Lake) -> None:
        self.lake, self.log = lake, []

    def catch_up(self, flow: Any, **_: Any) -> None:
        self.log.append(("catch up", flow.name))


def test_once_runs_each_flow_to_its_end(lake_root: str, flows: Path) -> None:
    write(flows, "a.yaml", "first")
    (flows / "b.yaml").write_text("flow: second\n")
    runtime = Once(Lake(lake_root))
    assert what(flow_folder.run_once(runtime, flows)) == [("refused", None), ("started", "first")]  # type: ignore[arg-type]
    assert runtime.log == [("catch up", "first")]


def test_hostile_files_are_told_each_for_itself_and_all_other_flows_go_on(streams: Deployed, flows: Path) -> None:
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
    assert running(folder) == {"first", "last"}
    assert streams.news() == [("submit", "last", "filter v > 0")]
    assert folder.look() == []


def test_a_file_that_raises_what_nobody_foresaw_is_that_files_fault(
    streams: Deployed, flows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = watched(streams, flows)
    write(flows, "a.yaml", "first")
    folder.look()
    for raised in (RecursionError("deep"), MemoryError(), SystemExit(3), KeyError("x")):

        def fails(*_: Any, raised: BaseException = raised) -> None:
            raise raised

        with monkeypatch.context() as patch:
            patch.setattr("pipelines.nimbus.flow_folder.load_flow", fails)
            (flows / "b.yaml").write_text(f"# {raised!r}")
            (told,) = folder.look()
        assert (told.what, type(raised).__name__ in told.reason) == ("refused", True)
    assert running(folder) == {"first"}
