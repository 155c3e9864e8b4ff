"""Where a query cannot begin anew exactly it is refused, and says what to do."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pipelines import Lake
from pipelines.errors import ChangeoverError, ChannelReadersError, StateBehindError, StateSchemaError
from pipelines.execution.batch.poison import PoisonRows
from pipelines.execution.checkpoint.belonging import Belonging
from pipelines.execution.checkpoint.changeover import Changeover
from pipelines.execution.checkpoint.engine_files import CONTINUE, REFUSE, RESET, Checkpoint, Epoch
from pipelines.execution.checkpoint.window_begin import WindowPlaceError, state_files
from pipelines.execution.protocol.coordinator import AttemptRecord, BatchState
from pipelines.execution.runners.epochs import Epochs
from pipelines.flowmix import Count, Flow, Policy, Sum
from pipelines.flowmix.compile import as_topology
from pipelines.places.location import Place
from pipelines.sources import FixedBatches
from pipelines.sources.channels import Start
from pipelines.state.record import BATCH, REPLAY, BatchRecord

ONCE = {"trigger": Policy.count(1), "evict": Policy.count(1)}


def two_windows(lake: Lake) -> Changeover:
    stream = Flow("f").stream("s", FixedBatches("k string", [])).aggregate(Count("n"), **ONCE)
    return Changeover(lake, as_topology(stream.aggregate(Count("n"), **ONCE).persist("t").build()))


def deployed(lake: Lake, *, version: int, index: int = -1, starting: bool = False, query: str = "s__1") -> Place:
    """A lake in which the source has brought two batches, and the query behind it, with one window, has finished batch 0."""
    name = "f__s__s" if query == "s__1" else "f__s__s__99"
    channel = str(lake.channel_path(name))
    for txid in range(2):
        rows = pa.table({"_event_id": [None, "e"], "_event_clock": [1000 * txid, 1000 * txid + 5], "_txid": [txid] * 2})
        rows = rows.cast(pa.schema([("_event_id", pa.string()), ("_event_clock", pa.int64()), ("_txid", pa.int64())]))
        _append(channel, rows, BatchRecord(kind=BATCH, flow="f", epoch=1, txid=txid, received=1, rows=2))
    offset = {"reservoirId": str(DeltaTable(channel).metadata().id), "reservoirVersion": version, "index": index}
    _checkpoint(lake, "s", [{"logOffset": 0}, {"logOffset": 1}])
    folder = _checkpoint(lake, query, [{**offset, "isStartingVersion": starting}])
    (folder / "spark" / "state" / "0").mkdir(parents=True)
    (folder / "spark" / "state" / "0" / "kept").write_bytes(b"")
    return folder


def _checkpoint(lake: Lake, query: str, offsets: list[dict[str, Any]]) -> Place:
    folder = lake.checkpoint_path("f", query)
    for part in ("offsets", "commits"):
        (folder / "spark" / part).mkdir(parents=True)
    for batch, offset in enumerate(offsets):
        (folder / "spark" / "offsets" / str(batch)).write_bytes(f"v1\n{{}}\n{json.dumps(offset)}".encode())
        (folder / "spark" / "commits" / str(batch)).write_bytes(b"v1\n{}")
    (folder / "spark" / "metadata").write_bytes(b"{}")
    (folder / "epoch.json").write_bytes(b'{"number": 1, "first_txid": 0}')
    return folder


def _append(path: str, rows: pa.Table, record: BatchRecord) -> None:
    from pipelines.state.commits import properties

    write_deltalake(path, rows, mode="append", commit_properties=properties(record, None))


def test_a_fresh_checkpoint_goes_on_behind_what_was_read(lake_root: str) -> None:
    lake = Lake(lake_root)
    folder = deployed(lake, version=1)
    assert two_windows(lake).make() == (CONTINUE, ["s__1"])
    assert json.loads((folder / "start.json").read_text()) == {"channels": {"f__s__s": 0}, "clock": 0, "behind": 1}
    assert not (folder / "spark").exists()
    # Cut off here, the next start knows that this is no checkpoint that was lost.
    assert two_windows(lake).make() == (CONTINUE, [])


@pytest.mark.parametrize(("index", "starting"), [(3, False), (-1, True)])
def test_in_the_middle_of_a_commit_it_is_refused(lake_root: str, index: int, starting: bool) -> None:
    lake = Lake(lake_root)
    folder = deployed(lake, version=1, index=index, starting=starting)
    with pytest.raises(ChangeoverError, match="in the middle of a commit") as caught:
        two_windows(lake).make()
    assert caught.value.query == "s__1"
    assert (folder / "spark").exists()
    assert not (folder / "start.json").exists()


def test_rows_left_in_a_channel_that_is_gone_are_not_passed_over(lake_root: str) -> None:
    lake = Lake(lake_root)
    deployed(lake, version=1, query="s__2")
    stream = Flow("f").stream("s", FixedBatches("k string", [])).aggregate(Count("n"), **ONCE).persist("between")
    topology = as_topology(stream.aggregate(Count("n"), **ONCE).persist("t").build())
    with pytest.raises(ChangeoverError, match=r'not read all of "f__s__s__99"'):
        Changeover(lake, topology).make()


def test_a_lost_checkpoint_is_not_taken_for_a_fresh_one(lake_root: str) -> None:
    lake = Lake(lake_root)
    folder = deployed(lake, version=2)
    _append(str(lake.state_path("t")), pa.table({"n": [1]}), BatchRecord(kind=BATCH, flow="f", epoch=1, txid=0))
    two_windows(lake).make()
    (folder / "epoch.json").write_bytes(b'{"number": 2, "first_txid": 1}')
    assert two_windows(lake).make()[0] == REFUSE


@pytest.mark.parametrize(("rows", "said"), [(1, REFUSE), (0, CONTINUE)])
def test_a_checkpoint_that_is_lost_beside_rows_of_a_replay_alone_is_not_taken_for_a_fresh_one(
    lake_root: str, rows: int, said: str
) -> None:
    """A replay that was refused once more has put none in."""
    lake = Lake(lake_root)
    folder = deployed(lake, version=2)
    _append(
        str(lake.state_path("t")), pa.table({"n": [1] * rows}), BatchRecord(kind=REPLAY, flow="f", replay=1, rows=rows)
    )
    shutil.rmtree(str(folder / "spark"))
    assert two_windows(lake).make() == (said, [])


def placed(lake: Lake, windows: str, *states: str) -> Changeover:
    stream: Any = Flow("f", windows=windows).stream("s", FixedBatches("k string, v bigint, timestamp bigint", []))
    stream = stream.partition("k").aggregate(Sum("v", "sum"), **ONCE)
    for state in states or ("t",):
        stream = stream.persist(state)
    return Changeover(lake, as_topology(stream.build()))


def test_windows_do_not_go_over_from_the_batch_to_a_channel(lake_root: str) -> None:
    lake = Lake(lake_root)
    placed(lake, "batch").check()
    folder = _checkpoint(lake, "s", [{"logOffset": 0}])
    state_files(folder).write("begun-0", b"")
    placed(lake, "batch").check()
    with pytest.raises(WindowPlaceError, match="would begin empty") as refused:
        placed(lake, "channels").check()
    assert (refused.value.flow, refused.value.query, refused.value.in_batch) == ("f", "s", False)


@pytest.mark.parametrize("noted", [True, False])
def test_what_windows_wrote_behind_a_channel_lacks_nothing_where_they_go_over_into_the_batch(
    lake_root: str, noted: bool
) -> None:
    lake = Lake(lake_root)
    folder = deployed(lake, version=2)
    _append(str(lake.state_path("t")), pa.table({"n": [1]}), BatchRecord(kind=BATCH, flow="f", epoch=1, txid=0))
    Belonging(Checkpoint("f", lake.checkpoint_path("f", "s")), lake).note([lake.channel("f__s__s")])
    if noted:
        Belonging(Checkpoint("f", folder), lake).note([lake.state("t")])
    assert placed(lake, "batch").refusals() == {}
    # Neither query has written this one.
    assert "would lack some or all" in placed(lake, "batch", "t", "new").refusals().pop("new")
    # They have ended in the batch: then nothing goes over.
    state_files(lake.checkpoint_path("f", "s")).write("ended", b"")
    assert placed(lake, "batch").refusals().keys() == {"t"}


def test_a_lost_table_of_windows_that_go_over_is_refused(lake_root: str) -> None:
    lake = Lake(lake_root)
    folder = deployed(lake, version=2)
    _append(str(lake.state_path("t")), pa.table({"n": [1]}), BatchRecord(kind=BATCH, flow="f", epoch=1, txid=0))
    Belonging(Checkpoint("f", lake.checkpoint_path("f", "s")), lake).note([lake.channel("f__s__s")])
    Belonging(Checkpoint("f", folder), lake).note([lake.state("t")])
    shutil.rmtree(str(lake.state_path("t")))
    assert placed(lake, "batch").refusals() == {"t": "the table is gone"}


def test_first_windows_may_begin_and_a_lost_folder_is_no_beginning(lake_root: str) -> None:
    lake = Lake(lake_root)
    folder = _checkpoint(lake, "s", [{"logOffset": 0}])
    placed(lake, "batch").check()
    named = BatchRecord(kind=BATCH, flow="f", epoch=1, txid=0, windows={"file": "000000000000-1-aa", "hash": ""})
    _append(str(lake.state_path("t")), pa.table({"n": [1]}), named)
    with pytest.raises(WindowPlaceError, match="would begin empty"):
        placed(lake, "batch").check()
    # Where a changed definition had none for a while, that is no longer needed.
    state_files(folder).write("ended", b"")
    with pytest.raises(StateSchemaError):
        placed(lake, "batch").check()


def test_a_table_of_another_query_is_not_taken_for_this_ones(lake_root: str) -> None:
    """Both count their epochs from one: what the other has written was not planned by this checkpoint."""
    lake = Lake(lake_root)
    folder = _checkpoint(lake, "s", [{"logOffset": 0}, {"logOffset": 1}, {"logOffset": 2}])
    checkpoint = Checkpoint("f", folder)
    stream: Any = Flow("f").stream("s", FixedBatches("k string, v bigint, timestamp bigint", []))
    now = Changeover(lake, as_topology(stream.persist("own").persist("t").build()))
    for table, txid in (("own", 2), ("t", 1)):
        _append(
            str(lake.state_path(table)), pa.table({"n": [1]}), BatchRecord(kind=BATCH, flow="f", epoch=1, txid=txid)
        )
    Belonging(checkpoint, lake).note([lake.state("own")])
    now.make()
    assert checkpoint.epoch == Epoch(2, 0, 3)
    now.make()
    assert checkpoint.epoch == Epoch(2, 0, 3)


def test_txids_are_not_raised_past_a_batch_whose_plan_is_lost(lake_root: str) -> None:
    """It comes again: under another txid, what quarantine has of it would count twice, and nobody would release it."""
    lake = Lake(lake_root)
    folder = _checkpoint(lake, "s", [{"logOffset": 0}, {"logOffset": 1}, {"logOffset": 2}])
    checkpoint = Checkpoint("f", folder)
    stream: Any = Flow("f").stream("s", FixedBatches("k string, v bigint, timestamp bigint", []))
    now = Changeover(lake, as_topology(stream.persist("own").persist("t").build()))
    for table, txid in (("own", 2), ("t", 5)):
        _append(
            str(lake.state_path(table)), pa.table({"n": [1]}), BatchRecord(kind=BATCH, flow="f", epoch=1, txid=txid)
        )
    Belonging(checkpoint, lake).note([lake.state("own")])
    attempts = checkpoint.attempts()
    attempts.put("s/1", 3, AttemptRecord(0, 1, BatchState.POISON, plan="lost"))
    with pytest.raises(ChangeoverError, match="batch 3 has failed or was skipped, and its plan is lost"):
        now.make()
    assert (checkpoint.epoch, checkpoint.attempts().get("s/1")) == (Epoch(1, 0), attempts.get("s/1"))
    for part in ("offsets", "commits"):
        (folder / "spark" / part / "3").write_bytes((folder / "spark" / part / "2").read_bytes())
    now.make()
    assert checkpoint.epoch == Epoch(2, 2, 4)


class Starting(Epochs):
    """A start of the query `s`, with its checkpoint and its states, and without Spark."""

    def __init__(self, lake: Lake, *states: str) -> None:
        sinks = [SimpleNamespace(name=name, table=lake.state(name), is_late=False) for name in states]
        quarantine = SimpleNamespace(table=lake.table(lake.quarantine_path("f"), "quarantine of f"))
        self._group: Any = SimpleNamespace(
            topology=SimpleNamespace(name="f"),
            name="s",
            sinks=sinks,
            gates=None,
            quarantine=quarantine,
            rejected="true",
        )
        self._checkpoint, self._wait = Checkpoint("f", lake.checkpoint_path("f", "s")), 0.0
        self._belonging = Belonging(self._checkpoint, lake)

    def begin(self, on_fresh: str) -> None:
        with self._checkpoint.running(0.0):
            self.open(on_fresh)

    def change_windows(self, on_fresh: str) -> None:
        self.check(on_fresh)


class Reset(Epochs):
    """A start of a query with a fresh checkpoint and `reset`, without Spark. `emptied` has the tables that it has emptied."""

    def __init__(self, lake: Lake, flow: Flow, query: str, channel: str) -> None:
        topology, self.emptied = as_topology(flow), list[str]()
        writer = SimpleNamespace(reset=lambda record, app_id: self.emptied.append(app_id))
        table = lake.table(lake.channel_path(channel), channel)
        sink = SimpleNamespace(name=channel, table=table, writer=writer, is_channel=True)
        quarantine = SimpleNamespace(table=lake.table(lake.quarantine_path("f"), "quarantine of f"))
        self._group: Any = SimpleNamespace(
            topology=topology,
            name=query,
            sinks=[sink],
            quarantine=SimpleNamespace(table=quarantine.table),
            rejected="true",
            lake=lake,
        )
        self._checkpoint, self._wait, self._windows = Checkpoint("f", lake.checkpoint_path("f", query)), 0.0, None
        self._attempts_in = None

    def begin(self) -> Epoch:
        return self._fresh_epoch(RESET)


def test_a_query_does_not_begin_anew_before_those_that_have_read_its_channels(lake_root: str) -> None:
    """They would count all that it sends once more."""
    lake = Lake(lake_root)
    reader = deployed(lake, version=2)
    (lake.checkpoint_path("f", "s") / "spark" / "metadata").unlink()
    stream = Flow("f").stream("s", FixedBatches("k string", [])).aggregate(Count("n"), **ONCE)
    start = Reset(lake, stream.persist("t").build(), "s", "f__s__s")
    with pytest.raises(ChannelReadersError, match="s__1") as caught:
        start.begin()
    assert (caught.value.readers, start.emptied) == (("s__1",), [])
    (reader / "spark" / "metadata").unlink()
    assert start.begin() == Epoch(2, 0)
    assert start.emptied == ["f/f__s__s/2"]


def test_an_epoch_behind_a_changeover_has_a_number_of_its_own(lake_root: str) -> None:
    """Nothing was committed before. By the old number, Spark's part that is lost later would seem to be gone on purpose."""
    lake = Lake(lake_root)
    folder, checkpoint = deployed(lake, version=2), Checkpoint("f", lake.checkpoint_path("f", "s__1"))
    assert two_windows(lake).make() == (CONTINUE, ["s__1"])
    assert checkpoint.starts_over
    start = Reset(lake, Flow("f").stream("s", FixedBatches("k string", [])).persist("t").build(), "s__1", "f__t")
    start._poison = PoisonRows(start._group)
    epoch = start._fresh_epoch(CONTINUE)
    (folder / "spark").mkdir()
    (folder / "spark" / "metadata").write_bytes(b"{}")
    checkpoint.goes_on()
    _append(str(lake.state_path("t")), pa.table({"n": [1]}), BatchRecord(kind=BATCH, flow="f", epoch=2, txid=0))
    shutil.rmtree(str(folder / "spark"))
    assert (two_windows(lake).make(), epoch) == ((REFUSE, []), Epoch(2, 0))


@pytest.mark.parametrize("cut", ["behind the epoch", "before the epoch"])
def test_a_start_that_is_cut_off_before_its_first_batch_begins_anew_once_more(
    lake_root: str, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    """Spark has made no checkpoint yet, and the tables hold what the one before has brought."""
    lake = Lake(lake_root)
    folder, checkpoint = deployed(lake, version=2), Checkpoint("f", lake.checkpoint_path("f", "s__1"))
    _append(str(lake.state_path("t")), pa.table({"n": [1]}), BatchRecord(kind=BATCH, flow="f", epoch=1, txid=0))
    assert two_windows(lake).make() == (CONTINUE, ["s__1"])
    said = checkpoint.start
    start = Reset(lake, Flow("f").stream("s", FixedBatches("k string", [])).persist("t").build(), "s__1", "f__t")
    start._poison, start._group.sinks[0].table = PoisonRows(start._group), lake.state("t")
    write = Checkpoint.write

    def killed(checkpoint: Checkpoint, name: str, value: Any) -> None:
        if name == "epoch.json":
            raise KeyboardInterrupt
        write(checkpoint, name, value)

    for number in (2, 3):
        with monkeypatch.context() as patch:
            if cut == "before the epoch":
                patch.setattr(Checkpoint, "write", killed)
                with pytest.raises(KeyboardInterrupt):
                    start._fresh_epoch(CONTINUE)
            else:
                assert start._fresh_epoch(CONTINUE) == Epoch(number, 1)
        assert two_windows(lake).make() == (CONTINUE, [])
        assert checkpoint.start == said
    # Nor does one that Spark's checkpoint has outlived, before its first batch.
    number = start._fresh_epoch(CONTINUE).number
    assert number == (4 if cut == "behind the epoch" else 2)
    (folder / "spark").mkdir()
    (folder / "spark" / "metadata").write_bytes(b"{}")
    assert two_windows(lake).make() == (CONTINUE, [])
    (folder / "spark" / "metadata").unlink()
    assert two_windows(lake).make() == (CONTINUE, [])
    # Earlier releases go by this alone, and take an epoch that was begun for none that was put aside.
    assert json.loads((folder / "start.json").read_text())["behind"] == 1
    checkpoint.goes_on()
    assert two_windows(lake).make() == (REFUSE, [])
    assert checkpoint.start == said


def test_a_checkpoint_that_goes_on_behind_a_changeover_that_was_cut_off_is_not_gone_on_purpose(lake_root: str) -> None:
    """As on a store, where Spark's part is copied first; the former definition runs on, and its checkpoint is lost."""
    lake = Lake(lake_root)
    folder, checkpoint = deployed(lake, version=2), Checkpoint("f", lake.checkpoint_path("f", "s__1"))
    checkpoint.begin_at(Start({"f__s__s": 0}))
    _append(str(lake.state_path("t")), pa.table({"n": [1]}), BatchRecord(kind=BATCH, flow="f", epoch=1, txid=0))
    checkpoint.goes_on()
    shutil.rmtree(str(folder / "spark"))
    assert two_windows(lake).make() == (REFUSE, [])


@pytest.mark.parametrize("holds", [True, False])
def test_a_reset_reads_all_of_the_channels_however_it_is_cut_off(lake_root: str, holds: bool) -> None:
    """What a changeover had left out, the states that are emptied have behind them; new ones do not."""
    lake = Lake(lake_root)
    deployed(lake, version=2)
    if holds:
        _append(
            str(lake.channel_path("f__t")), pa.table({"n": [1]}), BatchRecord(kind=BATCH, flow="f", epoch=1, txid=0)
        )
    start = Reset(lake, Flow("f").stream("s", FixedBatches("k string", [])).persist("t").build(), "s__1", "f__t")
    start._checkpoint.begin_at(Start({"f__s__s": 1}))
    (start._checkpoint.spark / "metadata").unlink()
    start._poison = SimpleNamespace(forget_all=lambda: None)

    def killed(record: BatchRecord, app_id: str) -> None:
        raise KeyboardInterrupt

    if holds:
        start._group.sinks[0].writer.reset = killed
        with pytest.raises(KeyboardInterrupt):
            start.begin()
    else:
        start.begin()
    assert start._checkpoint.start is None


def test_a_reset_beside_a_checkpoint_that_is_there_takes_no_new_state(lake_root: str) -> None:
    """It empties nothing there: the state would lack what the flow has read."""
    lake = Lake(lake_root)
    _checkpoint(lake, "s", [{"logOffset": 0}])
    for state in ("t", "back"):
        record = BatchRecord(kind=BATCH, flow="f", epoch=1, txid=0)
        _append(str(lake.state_path(state)), pa.table({"n": [1]}), record)
    Starting(lake, "t").begin(REFUSE)
    put_back = Starting(lake, "t", "back")
    for on_fresh in (REFUSE, RESET):
        for begin in (put_back.begin, put_back.change_windows):
            with pytest.raises(StateBehindError, match='"back" was added or put back'):
                begin(on_fresh)
    put_back.change_windows(CONTINUE)
    put_back.begin(CONTINUE)
    Starting(lake, "t", "back").begin(REFUSE)


def planned(lake: Lake, state: BatchState, *, plan: bool = True) -> Checkpoint:
    """The query behind the channel, stopped by batch 1, of which an operator has said what is to be done."""
    folder = deployed(lake, version=1)
    checkpoint = Checkpoint("f", folder)
    offset = folder / "spark" / "offsets" / "1"
    offset.write_bytes((folder / "spark" / "offsets" / "0").read_bytes())
    checkpoint.attempts().put("s__1/1", 1, AttemptRecord(0, 3, state, plan=checkpoint.plan(1)))
    if not plan:
        offset.unlink()
    return checkpoint


@pytest.mark.parametrize("plan", [True, False])
def test_nothing_begins_again_in_front_of_a_batch_that_is_still_to_be_left_out(lake_root: str, plan: bool) -> None:
    """Its rows would come again, and nobody would know that they were left out."""
    lake = Lake(lake_root)
    checkpoint = planned(lake, BatchState.SKIPPED, plan=plan)
    with pytest.raises(ChangeoverError, match="batch 1 was skipped") as caught:
        two_windows(lake).make()
    assert "tridelta run f;" in (caught.value.hint or "")
    assert "tridelta rollback f" in (caught.value.hint or "")
    assert checkpoint.epoch == Epoch(1, 0)
    assert not (checkpoint.folder / "start.json").exists()
    (checkpoint.spark / "offsets" / "1").write_bytes((checkpoint.spark / "offsets" / "0").read_bytes())
    (checkpoint.spark / "commits" / "1").write_bytes(b"v1\n{}")
    assert two_windows(lake).make() == (CONTINUE, ["s__1"])


@pytest.mark.parametrize("state", [BatchState.POISON, BatchState.FAILED])
def test_what_quarantine_has_of_a_batch_that_comes_again_is_named(lake_root: str, state: BatchState) -> None:
    """The next epoch reads its rows under another txid, which would release nothing."""
    lake = Lake(lake_root)
    checkpoint = planned(lake, state)
    attempts = checkpoint.attempts()
    attempts.put("s__1/1", 2, AttemptRecord(0, 1, state, plan="lost"))
    assert checkpoint.comes_again == []
    assert two_windows(lake).make() == (CONTINUE, ["s__1"])
    assert two_windows(lake).make() == (CONTINUE, [])
    assert checkpoint.comes_again == [1, 2]
    checkpoint.begin(Epoch(2, 1))
    # Until its first batch it may begin once more, and nobody has kept any since.
    assert checkpoint.comes_again == [1, 2]
    checkpoint.goes_on()
    assert checkpoint.comes_again == []


def waiting(lake: Lake, *kept: tuple[int, str]) -> Checkpoint:
    """The query behind the channel has read both commits, whose events wait at 5 and 1005; quarantine has some by txid."""
    folder = deployed(lake, version=2)
    channel = str(lake.channel_path("f__s__s"))
    rows = pa.table({"_event_id": ["x", "y"], "_event_clock": pa.array([2000, 3000]), "_txid": pa.array([2, 2])})
    _append(channel, rows, BatchRecord(kind=BATCH, flow="f", epoch=1, txid=2, received=2, rows=2))
    for part in ("offsets", "commits"):
        source = lake.checkpoint_path("f", "s") / "spark" / part
        (source / "2").write_bytes((source / "1").read_bytes())
    offset = json.loads((folder / "spark" / "offsets" / "0").read_text().split("\n")[2]) | {"reservoirVersion": 3}
    (folder / "spark" / "offsets" / "0").write_bytes(f"v1\n{{}}\n{json.dumps(offset)}".encode())
    refused = [
        {"stage": "batch", "batch_group": "s__1", "_txid": txid, "row": f'{{"_event_id":"{id_}","_event_clock":9000}}'}
        for txid, id_ in kept
    ]
    # What failed behind windows is what these had made, and another query's is another's.
    refused += [{"stage": "batch", "batch_group": "s__1", "_txid": 0, "row": '{"n":1}'}]
    refused += [{"stage": "batch", "batch_group": "s", "_txid": 0, "row": '{"_event_id":"x","_event_clock":9000}'}]
    write_deltalake(str(lake.quarantine_path("f")), pa.Table.from_pylist(refused))
    return Checkpoint("f", folder)


@pytest.mark.parametrize(
    ("kept", "left_out"),
    [
        ([(0, "x"), (0, "y")], {"f__s__s": [2]}),
        # A commit that an earlier release has cut: what waited is not lost.
        ([(0, "x")], {}),
        # It is not finished: it comes again.
        ([(1, "x"), (1, "y")], {}),
        ([], {}),
    ],
)
def test_what_was_kept_from_windows_is_not_taken_for_what_waits(
    lake_root: str, kept: list[tuple[int, str]], left_out: dict[str, list[int]]
) -> None:
    lake = Lake(lake_root)
    checkpoint = waiting(lake, *kept)
    checkpoint.attempts().put("s__1/1", 1, AttemptRecord(0, 1, BatchState.POISON))
    assert two_windows(lake).make() == (CONTINUE, ["s__1"])
    assert checkpoint.start == Start({"f__s__s": 2}, 1000, left_out)


def test_what_was_left_out_once_stays_out_without_quarantine(lake_root: str) -> None:
    """Its rows leave there with their age."""
    lake = Lake(lake_root)
    checkpoint = waiting(lake, (0, "of another batch"))
    checkpoint.begin_at(Start({"f__s__s": 1}, 0, {"f__s__s": [2]}))
    two_windows(lake).make()
    assert checkpoint.start == Start({"f__s__s": 2}, 1000, {"f__s__s": [2]})
