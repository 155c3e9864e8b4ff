"""Damaged files of a checkpoint, the engine's own and Spark's: said in a sentence, and mended where that is safe."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from pipelines import logs
from pipelines.places.location import Place, by_name
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
        yield from _log_damages(flow, spark / name, newest)
    for folder in by_name((spark / "sources").glob("*")) if (spark / "sources").is_dir() else ():
        yield from _log_damages(flow, folder, newest)


def _log_damages(flow: str, folder: Place, newest: int | None) -> Iterator[DamagedCheckpointError]:
    files = sorted(_batches(folder))[slice(None) if newest is None else slice(-newest, None)]
    for _, file in files:
        if not _is_whole(file):
            problem = "it is empty" if not file.stat().st_size else "it is cut off or overwritten"
            hint = f"{_BACKUP}; {_OTHERWISE}"
            yield _spark_damage(flow, file, problem, "the tables, and the other batches' files", hint)


def _spark_damage(flow: str, file: Place, problem: str, intact: str, hint: str) -> DamagedCheckpointError:
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

    A mark of the last batch that is cut off goes: the batch comes again, which is exact. So does a plan that is cut off of a
    batch that is not marked and in no table: Spark plans it again.

    Args:
        in_a_table: whether a table holds a batch (Spark's id).

    Returns:
        The batches (Spark's ids) that are planned again.
    """
    anew = set()
    for damage in spark_damages(flow, spark, newest=2):
        file = damage.file
        last = max((batch for batch, _ in _batches(spark / "offsets")), default=-1)
        if not file.name.isdigit() or int(file.name) < last:
            raise damage
        batch, is_mark = int(file.name), file.parent.name == "commits"
        if not is_mark and ((spark / "commits" / str(batch)).exists() or in_a_table(batch)):
            raise damage
        for path in (file,) if is_mark else (file, spark / "offsets" / str(batch)):
            _remove(path)
        if not is_mark:
            anew.add(batch)
        logger.warning("checkpoint mended", flow=flow, file=str(file), problem=damage.problem)
    return anew


def _remove(file: Place) -> None:
    """Remove a file of Spark's with its checksum."""
    for path in (file, file.with_name(f".{file.name}.crc")):
        path.unlink(missing_ok=True)
