"""Damaged files of a checkpoint, the engine's own and Spark's: said in a sentence, and mended where that is safe."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from pipelines import logs
from pipelines.places.location import Place
from pipelines.sources.offsets import KEPT_START, listings, offset_behind, offset_lines
from pipelines.state.damage import DamagedError

T = TypeVar("T")
logger = logs.logger(__name__)

_BACKUP = "bring it back from a backup"
_OTHERWISE = (
    'or move the checkpoint away and run the flow with on_fresh_checkpoint="continue" (goes on behind the last txid with all '
    'that the source now holds, what was counted included) or "reset" (empties the flow\'s states and starts over)'
)
_TABLES_AND_SPARK = "the flow's tables and Spark's part of the checkpoint"
OWN = {
    "epoch.json": (_TABLES_AND_SPARK, f"{_BACKUP}; {_OTHERWISE}"),
    "attempts.json": (
        _TABLES_AND_SPARK,
        f"{_BACKUP}, or remove it: attempts are counted again, and a batch that was just left out comes again, "
        "or is refused where a replay has put its rows into a state",
    ),
    "tables.json": (_TABLES_AND_SPARK, "remove it: the next start notes the tables again"),
    "partitions.json": (_TABLES_AND_SPARK, "remove it: the flow then runs with the number that is asked for"),
    "start.json": (
        "the flow's tables, the channels included",
        f"{_BACKUP}: it says where the query takes up its channels; {_OTHERWISE}",
    ),
    "repartition.json": (
        "the flow's tables, and the copy of the checkpoint under copies/",
        f"{_BACKUP}: it says how far a repartition has come; or put the copy's `spark` in the place of the checkpoint's and "
        "remove it",
    ),
}
"""The engine's files: what is intact without each, and what to do."""
_LOGS = ("offsets", "commits")


class DamagedCheckpointError(DamagedError):
    """A file of a checkpoint is damaged; `flow` and `group` are the query's."""

    def __init__(self, flow: str, group: str, path: Place, problem: str, intact: str, *, hint: str) -> None:
        self.flow, self.group, self.file = flow, group, path
        super().__init__(path, problem, intact, hint=hint)
        self.args = (f'flow "{flow}", query "{group}": {self.args[0]}',)


def read_own(flow: str, file: Place, parse: Callable[[Any], T]) -> T | None:
    """Return one of the engine's files beside a checkpoint, None if there is none."""
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return None
    return parsed(flow, file, data, parse)


def parsed(flow: str, file: Place, data: bytes, parse: Callable[[Any], T]) -> T:
    """Return what one of the engine's files says."""
    try:
        return parse(json.loads(data))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        problem = "it is empty" if not data.strip() else f"it does not say what it should ({error})"
        intact, hint = OWN[file.name]
        raise DamagedCheckpointError(flow, file.parent.name, file, problem, intact, hint=hint) from None


def spark_damages(flow: str, spark: Place, *, newest: int | None = None) -> Iterator[DamagedCheckpointError]:
    """Yield the damaged files of Spark's part: its logs of planned and of finished batches, and those of its file sources.

    Args:
        newest: look at so many of each log only, for a start: Spark reads no others.
    """
    planned = any(True for _ in _batches(spark / "offsets"))
    metadata = spark / "metadata"
    if planned and not (metadata.exists() and _is_json(metadata.read_bytes())):
        problem = "it is missing" if not metadata.exists() else "it is empty or cut off"
        hint = f"{_BACKUP} (one line: the id of the query); {_OTHERWISE}"
        yield _spark_damage(flow, metadata, problem, "the tables and the logs of the checkpoint", hint)
    if planned and not (spark.parent / "epoch.json").exists():
        intact, hint = OWN["epoch.json"]
        yield DamagedCheckpointError(
            flow, spark.parent.name, spark.parent / "epoch.json", "it is missing", intact, hint=hint
        )
    for name in _LOGS:
        files = sorted(_batches(spark / name))
        yield from _torn(flow, files if newest is None else files[-newest:])
    marked = max((batch for batch, _ in _batches(spark / "commits")), default=-1)
    if marked > _last_plan(spark):
        # Spark would begin with the batch before it once more.
        yield _spark_damage(flow, spark / "offsets" / str(marked), "it is missing")
    yield from _listing_damages(flow, spark, newest)


def _listing_damages(flow: str, spark: Place, newest: int | None) -> Iterator[DamagedCheckpointError]:
    """Yield the damaged files of the sources' logs, and the listings that are missing: Spark reads all behind a compact file."""
    last, sources = _last_plan(spark), spark / "sources"
    logs = {int(log.name) for log in sources.iterdir() if log.name.isdigit()} if sources.is_dir() else set()
    with suppress(ValueError):  # the plan is torn itself, here and below
        logs.update(range(len(offset_lines(spark, last)) - 2))
    for index in sorted(logs):
        log, taken = sources / str(index), range(0)
        with suppress(ValueError):
            taken = listings(spark, last, index)
        files = sorted(_batches(log))
        since = 0 if newest is None else min([taken.start, *(number for number, _ in files[-newest:])])
        yield from _torn(flow, [(number, file) for number, file in files if number >= since])
        there = {number for number, _ in files}
        compact = max((number for number, file in files if file.name.endswith(".compact")), default=-1)
        for number in range(compact + 1, max(taken.stop, *there, 0)) if taken.stop else ():
            if number not in there:
                yield _spark_damage(flow, log / str(number), "it is missing")


def _torn(flow: str, files: Iterable[tuple[int, Place]]) -> Iterator[DamagedCheckpointError]:
    for _, file in files:
        if not _is_whole(file):
            yield _spark_damage(
                flow, file, "it is empty" if not file.stat().st_size else "it is cut off or overwritten"
            )


def _spark_damage(
    flow: str,
    file: Place,
    problem: str,
    intact: str = "the tables, and the other batches' files",
    hint: str = f"{_BACKUP}; {_OTHERWISE}",
) -> DamagedCheckpointError:
    spark = next(parent for parent in file.parents if parent.name == "spark")
    return DamagedCheckpointError(flow, spark.parent.name, file, problem, intact, hint=hint)


def _batches(folder: Place) -> Iterator[tuple[int, Place]]:
    """Yield the files of one of Spark's logs with their batches; a compact file has all of what was before it."""
    for file in folder.iterdir() if folder.is_dir() else ():
        number = file.name.removesuffix(".compact")
        if number.isdigit():
            yield int(number), file


def _is_whole(file: Place) -> bool:
    """Return whether a file has Spark's form: a version line, then JSON by line (`-`, or nothing, in some logs)."""
    data = file.read_bytes()
    # Kafka's first offsets begin with a zero byte.
    lines = data.removeprefix(b"\0").split(b"\n")
    if not (lines[0].startswith(b"v") and lines[0][1:].isdigit()):
        return False
    if file.parent.name == "offsets" and len(lines) < 3:
        return False
    if file.parent.name == "commits" and len(lines) < 2:
        return False
    return all(line in (b"", b"-") or _is_json(line) for line in lines[1:])


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def make_whole(flow: str, spark: Place, in_a_table: Callable[[int], bool]) -> set[int]:
    """Remove what a loss of power has left of the last batch where that is safe; else refuse.

    A mark of the last batch that is cut off goes: the batch comes again, which is exact. So does a plan that is cut off, or that
    lacks a listing, of a batch that is not marked and in no table: Spark plans it again. A listing that no plan names goes alone.
    What Delta sources keep of their first plan goes with it.

    Args:
        in_a_table: whether a table holds a batch (Spark's id).

    Returns:
        The batches (Spark's ids) that are planned again.
    """
    planned_again = set()
    # What goes changes what is damaged behind it.
    while (damage := next(spark_damages(flow, spark, newest=2), None)) is not None:
        log, name, last = damage.file.parent, damage.file.name.removesuffix(".compact"), _last_plan(spark)
        if not name.isdigit():
            raise damage
        batch, is_mark = _batch_of(spark, log, int(name), last), log.name == "commits"
        done = batch is not None and not is_mark and ((spark / "commits" / str(batch)).exists() or in_a_table(batch))
        if batch is not None and (batch < last or done):
            raise damage
        gone = [damage.file] if is_mark else _from(log, int(name))
        if batch is not None and not is_mark:
            gone = [spark / "offsets" / str(batch), *gone]
            planned_again.add(batch)
        for path in gone:
            _remove(path)
        logger.warning("checkpoint mended", flow=flow, file=str(damage.file), problem=damage.problem)
    _forget_starts(spark)
    return planned_again


def _forget_starts(spark: Place) -> None:
    """Remove the first offsets that Delta sources keep aside where no plan is left that has one: the next may begin elsewhere.

    Topics' ids stay: with them Kafka's own note of where the topic began.
    """
    last = _last_plan(spark)
    gone = [file for file in spark.glob(f"{KEPT_START}*") if _is_of_no_plan(spark, file.name, last)]
    for file in gone:
        file.unlink(missing_ok=True)


def _is_of_no_plan(spark: Place, kept: str, last: int) -> bool:
    index = kept.removeprefix(KEPT_START) or "0"
    return index.isdigit() and offset_behind(spark, last, int(index)) is None


def _last_plan(spark: Place) -> int:
    return max((batch for batch, _ in _batches(spark / "offsets")), default=-1)


def _batch_of(spark: Place, log: Place, number: int, last: int) -> int | None:
    """Return the batch that a file of a log belongs to, or any earlier one than the last; None: a listing that no plan names."""
    if log.name in _LOGS:
        return number
    taken, offset = listings(spark, last, int(log.name)), offset_behind(spark, last, int(log.name))
    if offset is not None and not taken.stop:  # the log of another source has but where it began
        return number
    if number >= taken.stop:
        return None
    return last if number >= taken.start else last - 1


def _from(log: Place, first: int) -> list[Place]:
    """Return the files of a log from a number on, the last first: Spark goes on with none behind one that is missing."""
    return [file for number, file in sorted(_batches(log), reverse=True) if number >= first]


def _remove(file: Place) -> None:
    """Remove a file of Spark's with its checksum."""
    for path in (file, file.with_name(f".{file.name}.crc")):
        path.unlink(missing_ok=True)
