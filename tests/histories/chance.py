"""Programs over topologies and flows that are drawn by lot themselves: the reference engine says what must come out.

Their sources hold all batches from the start. Runs are killed, cut short and brought back; at any time each state holds what
the reference engine gives for the batches up to the state's own txid.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from unittest import mock

from deltalake import DeltaTable

from pipelines import Lake, Runtime
from pipelines.errors import TrideltaError
from pipelines.execution.batch import driver_windows, windows_change
from pipelines.execution.checkpoint import window_begin
from pipelines.execution.checkpoint.window_begin import StateFiles, WindowPlaceError
from pipelines.flowmix.compile import topology_of
from pipelines.flowmix.flow import BATCH
from pipelines.graph import nodes
from pipelines.maintenance import compact
from pipelines.places.location import Place
from pipelines.testing import engines, flows, run_flow, run_topology
from pipelines.testing.flow_reference import FlowReference, read_script
from pipelines.trident import TridentTopology
from tests.conformance.random_flows import FlowMaker
from tests.conformance.random_topologies import Maker
from tests.histories.comparing import Difference
from tests.histories.world import ATTEMPTS, MOMENTS, STEPS, Killed, Witness, copied, put_back, told_of_steps
from tests.lakes import lake_place, removed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPOLOGY, FLOW = "topology", "flow"
FILES_OF_STATE = ("writing", "written", "removing", "removed")
"""Moments of the files that hold windows which run in the batches of their sources."""


class _ToldFiles:
    """Files of windows' state, each of which tells before it is written, when it is, and before and behind its end."""

    def __init__(self, files: StateFiles, tell: Callable[[str, str, int], None]) -> None:
        self._files, self._tell = files, tell

    def write(self, name: str, data: bytes) -> None:
        self._tell("writing", name, -1)
        self._files.write(name, data)
        self._tell("written", name, -1)

    def read(self, name: str) -> bytes:
        return self._files.read(name)

    def names(self) -> Sequence[str]:
        return self._files.names()

    def remove(self, name: str) -> None:
        self._tell("removing", name, -1)
        self._files.remove(name)
        self._tell("removed", name, -1)

    def settle(self) -> None:
        self._files.settle()


class Drawn:
    """A topology or flow of a seed in a lake of its own.

    Args:
        spark: the session.
        home: a folder of its own.
        kind: `topology` or `flow`.
        seed: of the maker.
        windows: of a flow, where the windows of its sources run.
    """

    def __init__(self, spark: SparkSession, home: Path, kind: str, seed: int, windows: str = "channels") -> None:
        self.spark, self.home, self.kind, self.seed, self.windows = spark, home, kind, seed, windows
        self.lake = Lake(lake_place(home / "lake"))
        self.copies: list[tuple[Place, dict[str, int]]] = []
        self._by_txid: dict[int, Any] = {}
        if kind == TOPOLOGY:
            self.made: Any = Maker(seed).build()
            self.topology = engines.with_batches(self.made.topology, self.made.batches)
        else:
            self.made = FlowMaker(seed, windows).build()
            self.topology = _topology_of_flow(self.made, spark)

    @property
    def states(self) -> list[nodes.PersistNode]:
        return [node for node in self.topology.persists if not isinstance(node, nodes.ChannelNode)]

    def do(self, operation: str, given: dict[str, Any]) -> None:
        """One operation, and the comparison behind it.

        Raises:
            Difference
        """
        OPERATIONS[operation](self, **given)
        self.lake = Lake(self.lake.root)
        self.compare()
        self._keep_copy()

    def run(self, kill: int | None, max_batches: int | None) -> BaseException | None:
        """A catch-up in a life of its own."""
        witness = Witness(kill, moments=(*MOMENTS, *FILES_OF_STATE))
        runtime = Runtime(self.spark, Lake(self.lake.root), listeners=[witness], max_attempts=ATTEMPTS)
        whole = window_begin.state_files
        told = lambda checkpoint: _ToldFiles(whole(checkpoint), witness)  # noqa: E731 - as long as its name
        try:
            with (
                mock.patch.object(driver_windows, "state_files", told),
                mock.patch.object(windows_change, "state_files", told),
            ):
                runtime.catch_up(self.topology, max_batches=max_batches)
        except (Exception, Killed) as error:
            return error
        return None

    # --- comparing --------------------------------------------------------------------------------------------------

    def compare(self) -> None:
        """Every state of a topology, as of the last batch that it has itself."""
        if self.kind != TOPOLOGY:
            return
        for node in self.states:
            name = node.state.name
            last = self.lake.state(name).last_txid() if name in self.lake.states() else None
            if last is None:
                continue
            found, wanted = engines._rows(self.lake, node), self.expected(last)[name]
            if found != wanted:
                raise Difference(f"state {name} of {self.made.story}", found, wanted)

    def expected(self, txid: int) -> Any:
        """What the reference engine gives for the batches up to a txid."""
        if txid not in self._by_txid:
            batches = {name: every[: txid + 1] for name, every in self.made.batches.items()}
            self._by_txid[txid] = run_topology(self.made.topology, batches, "reference", self.spark)
        return self._by_txid[txid]

    def finish(self) -> None:
        """Run to the end; a flow's outputs are compared only here, for a window may wait for further events.

        Raises:
            Difference
        """
        error = self.run(None, None)
        if error is not None:
            raise Difference(f"end of {self.made.story}", repr(error), "no error") from error
        self.lake = Lake(self.lake.root)
        self.compare()
        if self.kind != FLOW:
            return
        exits = flows._exits(self.made.flow)
        events = {name: flows._received(self.lake, table, schema) for name, table, schema in exits}
        found = flows._shown(self.made.flow, events)
        wanted = run_flow(self.made.flow, self.made.script, engine="reference", spark=self.spark)
        if found != wanted:
            raise Difference(f"outputs of {self.made.story}", found, wanted)

    # --- copies -----------------------------------------------------------------------------------------------------

    def txids(self) -> dict[str, int]:
        """The last txid of each state and channel."""
        tables = [self.lake.written_by(node) for node in self.topology.persists]
        return {table.name: -1 if (last := table.last_txid()) is None else last for table in tables if table.exists()}

    def _keep_copy(self) -> None:
        folder = self.lake.root / "checkpoints"
        if folder.is_dir() and (not self.copies or self.copies[-1][1] != self.txids()):
            target = lake_place(self.home / "copies" / str(len(self.copies)))
            copied(folder, target)
            self.copies.append((target, self.txids()))


def _topology_of_flow(made: Any, spark: SparkSession) -> TridentTopology:
    """The flow with its script for sources, as the test kit runs it."""
    entries = read_script(made.flow, made.script, "event", FlowReference(made.flow, None, spark).source_sql)
    # Of one time an earlier batch comes first where streams meet; the reference engine has but one.
    script_source = partial(flows.ScriptSource, end=entries.end, whole_times=len(made.flow.inputs) > 1)
    twin = copy.copy(made.flow)
    twin.streams = MappingProxyType(
        {
            name: replace(stream, source=script_source(stream, entries.items.get(name, [])))
            if stream.source is not None
            else stream
            for name, stream in made.flow.streams.items()
        }
    )
    return topology_of(twin, ordered=True)


# --- operations -----------------------------------------------------------------------------------------------------


def catch_up(drawn: Drawn, kill: int | None = None, max_batches: int | None = None) -> None:
    """Some batches, perhaps killed at the moment of a number."""
    error = drawn.run(kill, max_batches)
    if error is not None and not isinstance(error, Killed):
        raise Difference(f"end of {drawn.made.story}", repr(error), "no error") from error


def go_over(drawn: Drawn, kill: int | None = None, max_batches: int | None = None) -> None:
    """Windows on channels go over into the batches of their sources, or none of them; perhaps killed at a moment."""
    if drawn.kind != FLOW or drawn.windows == BATCH:
        return
    before, drawn.topology = drawn.topology, _topology_of_flow(FlowMaker(drawn.seed, BATCH).build(), drawn.spark)
    error = drawn.run(kill, max_batches)
    if isinstance(error, WindowPlaceError):
        if list((drawn.lake.root / "checkpoints").rglob("begun-*")):
            raise Difference(f"windows of {drawn.made.story} go over", "some of them", "all or none") from error
        drawn.topology = before
    elif error is not None and not isinstance(error, Killed):
        raise Difference(f"windows of {drawn.made.story} go over", repr(error), "no error") from error
    else:
        drawn.windows = BATCH


def compaction(drawn: Drawn, open_generations: int | None = None, kill: int | None = None) -> None:
    """Fold and merge all tables of the flow, perhaps killed around one of its steps."""
    with suppress(Killed), told_of_steps(Witness(kill, moments=tuple(STEPS))):
        compact(drawn.spark, drawn.lake, drawn.topology, open_generations=open_generations, lock_wait_seconds=20)


def optimize(drawn: Drawn) -> None:
    """A stranger's OPTIMIZE of all states."""
    for name in drawn.lake.states():
        DeltaTable(str(drawn.lake.state_path(name))).optimize.compact()


def restore(drawn: Drawn, back: int = 1) -> None:
    """An older copy of all checkpoints: refused if some table has got batches since, and then put right again."""
    if len(drawn.copies) <= back or drawn.copies[-1 - back][1] == drawn.txids():
        return
    folder, aside = drawn.lake.root / "checkpoints", lake_place(drawn.home / "aside")
    copied(folder, aside)
    put_back(drawn.copies[-1 - back][0], folder)
    before = drawn.txids()
    error = drawn.run(None, None)
    # A batch that was begun and not finished is gone through again: that is no older life of its query.
    begun = _begun(drawn.copies[-1 - back][0])
    drawn.lake = Lake(drawn.lake.root)
    if not isinstance(error, TrideltaError):
        if error is not None or not begun:
            raise Difference("older checkpoints brought back", repr(error), "refused at the start") from error
    else:
        moved = {name for name, txid in drawn.txids().items() if before.get(name) != txid}
        if (moved and not begun) or getattr(error, "state", "") in moved:
            raise Difference("older checkpoints, refused", drawn.txids(), before)
        for query in _queries(aside):
            restored = folder / str(query.relative_to(aside))  # type: ignore[arg-type]
            if len(_commits(restored)) <= len(_commits(query)):
                put_back(query, restored)
    removed(aside)


def _queries(checkpoints: Place) -> list[Place]:
    """The checkpoints of the queries in a folder of checkpoints."""
    flows: list[Place] = [*checkpoints.iterdir()]
    return [query for flow in flows for query in list[Place](flow.iterdir())]


def _numbers(folder: Place) -> set[str]:
    """The names of the batches in a folder of Spark's."""
    files: list[Place] = [*folder.iterdir()] if folder.is_dir() else []
    return {file.name for file in files if file.name.isdigit()}


def _commits(checkpoint: Place) -> set[str]:
    return _numbers(checkpoint / "spark" / "commits")


def _begun(checkpoints: Place) -> list[Place]:
    """The queries of which in a copy of checkpoints some batch was planned and not finished."""
    return [q for q in _queries(checkpoints) if _numbers(q / "spark" / "offsets") - _commits(q)]


OPERATIONS: dict[str, Callable[..., None]] = {
    "catch_up": catch_up,
    "go_over": go_over,
    "compact": compaction,
    "optimize": optimize,
    "restore": restore,
}


def steps(
    spark: SparkSession, home: Path, shape: dict[str, Any], operations: Any
) -> Iterator[tuple[str, Callable[[], None]]]:
    """The operations over a drawn topology or flow, each to be called, and the end."""
    drawn = Drawn(spark, home, shape["chance"], shape["seed"], shape.get("windows", "channels"))
    for name, given in operations:
        yield name, partial(drawn.do, name, given)
    yield "finish", drawn.finish
