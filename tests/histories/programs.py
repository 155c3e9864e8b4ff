"""Programs: a flow's shape and the operations over it, as plain data that can be kept in a file."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.histories import chance, lives, operations
from tests.histories.model import BEFORE, CHANNEL, LOG, SUMS, Group, Model, Rules, Sink
from tests.histories.play import Play
from tests.histories.world import FILES, TABLE, WINDOWS, Killed, World
from tests.lakes import lake_place, removed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.histories.child import Drivers

OPERATIONS: dict[str, Callable[..., Any]] = {
    "arrive": operations.arrive,
    "rewrite": operations.rewrite,
    "cut_file": operations.cut_file,
    "remove_file": operations.remove_file,
    "catch_up": operations.catch_up,
    "stream": operations.stream,
    "skip": operations.skip,
    "backfill": operations.backfill,
    "cut_off": operations.cut_off,
    "compact": operations.compaction,
    "optimize": operations.optimize,
    "optimize_source": operations.optimize_source,
    "replay": operations.replay,
    "rescale": operations.rescale,
    "change": operations.change,
    "fresh": lives.fresh,
    "restore_checkpoint": lives.restore_checkpoint,
    "restore_table": lives.restore_table,
    "older_spark": lives.older_spark,
    "frozen": lives.frozen,
    "killed": lives.killed,
    "stopped": lives.stopped,
}
"""By the name that programs use."""

Operation = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Program:
    """A shape and some operations.

    Attributes:
        shape: `key` (type), `sliced`, `source` (files if it does not say), `files` (their format), `window` (its size, if any),
            and `streams`: by name the states, each `[name, form, kind, place]`. Or `chance` (topology, flow) and `seed`: one that
            is drawn by lot itself.
        operations: name and arguments of each.
    """

    shape: dict[str, Any]
    operations: tuple[Operation, ...]

    def lines(self) -> list[str]:
        """A line per operation, as one reads it."""
        return [f"{name} {json.dumps(given) if given else ''}".rstrip() for name, given in self.operations]

    def dump(self) -> str:
        return json.dumps({"shape": self.shape, "operations": [list(one) for one in self.operations]})

    @staticmethod
    def load(text: str) -> Program:
        found = json.loads(text)
        return Program(found["shape"], tuple((name, given) for name, given in found["operations"]))


@dataclass(frozen=True)
class Finding:
    """Where a program went another way than the model: the operation's number, and what was seen."""

    at: int
    operation: str
    error: BaseException

    @property
    def kind(self) -> str:
        """What a shrunk program must show, too: any difference of this sort."""
        what = getattr(self.error, "what", "")
        return f"{type(self.error).__name__} {what.split(' ')[0]}"

    def __str__(self) -> str:
        return f"operation {self.at} ({self.operation}): {type(self.error).__name__}: {str(self.error)[:1500]}"


# Spark gives a worker of Python ten seconds to start, which a crowded machine may not; that says nothing of a table.
_BUSY, _TIMES = "failed to connect back", 3


def run(spark: SparkSession, program: Program, drivers: Drivers | None = None) -> Finding | None:
    """Run a program over a lake of its own; the first difference, or None.

    Args:
        drivers: processes for the lives that a real signal ends; None: they end by an exception in this one.
    """
    for _ in range(_TIMES):
        home = Path(tempfile.mkdtemp(prefix="tridelta-history-"))
        try:
            finding = _run(spark, program, home, drivers)
        finally:
            shutil.rmtree(home, ignore_errors=True)
            removed(lake_place(home))
        if finding is None or _BUSY not in str(finding.error):
            return finding
    return finding


def _run(spark: SparkSession, program: Program, home: Path, drivers: Drivers | None) -> Finding | None:
    at, name = -1, "beginning"
    try:
        for at, (name, step) in enumerate(_steps(spark, program, home, drivers)):  # noqa: B007 - told of where it ended
            step()
    except (Exception, Killed) as error:
        return Finding(at, name, error)
    return None


def _steps(
    spark: SparkSession, program: Program, home: Path, drivers: Drivers | None
) -> Iterator[tuple[str, Callable[[], None]]]:
    if "chance" in program.shape:
        yield from chance.steps(spark, home, program.shape, program.operations)
        return
    play = _play(spark, program.shape, home, drivers)
    for name, given in (*program.operations, ("catch_up", {})):
        yield name, partial(play.do, OPERATIONS[name], given)


def states_of(shape: dict[str, Any]) -> dict[str, list[Sink]]:
    """The states of each stream, in the order in which the flow names them: those before the gate come first."""
    states = {
        stream: sorted((Sink(*one) for one in sinks), key=lambda sink: sink.at != BEFORE)
        for stream, sinks in shape["streams"].items()
    }
    states["left"] += [Sink("further", LOG, by="day")]
    if shape.get("window"):
        states["left"].append(Sink(WINDOWS, CHANNEL, at=BEFORE))
        states[WINDOWS] = [Sink("sums", SUMS)]
    return states


def world_of(spark: SparkSession, shape: dict[str, Any], home: Path) -> World:
    """The lake and the sources of a shape."""
    return World(
        spark,
        home,
        key=shape["key"],
        sliced=shape["sliced"],
        states=states_of(shape),
        window=shape.get("window", 0),
        source=shape.get("source", FILES),
        kind=shape.get("files", "json"),
    )


def _play(spark: SparkSession, shape: dict[str, Any], home: Path, drivers: Drivers | None) -> Play:
    world = world_of(spark, shape, home)
    groups = [
        Group(
            stream,
            sinks,
            sliced=shape["sliced"] and stream != WINDOWS,
            window=world.window if stream == WINDOWS else 0,
            table=world.source == TABLE,
        )
        for stream, sinks in states_of(shape).items()
    ]
    return Play(world, Model(groups, Rules(per_batch=shape.get("per_batch", 1))), shape, drivers)
