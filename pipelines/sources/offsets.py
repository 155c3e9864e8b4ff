"""The offsets of sources in a Spark checkpoint, and the file source's log: which files each batch took.

Format of an offset: `v1`, metadata, then one line per source (`-` while it has given nothing).
Format of the file source's log (Spark's CompactibleFileStreamLog): one file per listing, first line `v1`, then one JSON
object per line with `path` and `batchId`, which is the listing's number; every tenth file is `N.compact` and holds all
entries up to N. A process that dies between listing and planning leaves a listing without a batch, and the next batch takes
two: the offset log says which.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from pipelines.places.location import Place

KEPT_START = "tridelta_start"
"""Beside Spark's logs, which are cleared: the plan with a Delta source's first offset. Its index follows, if that is not 0."""
_FEW = 4
"""Listings that are read by their names, without a look at the folder: a batch takes one."""


def offset_lines(checkpoint: Place, batch: int) -> list[str]:
    """Return the lines of a batch's entry: the version, Spark's own, then one per source; none if there is no entry."""
    file = checkpoint / "offsets" / str(batch)
    return file.read_text(encoding="utf-8").split("\n") if file.is_file() else []


def json_offsets(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield what the lines of an entry say of its sources, as far as they say it in JSON."""
    return (json.loads(line) for line in lines[2:] if line.startswith("{"))


def last_number(folder: Place) -> int:
    """Return the highest batch id that a log has a file of, -1 for none."""
    return (
        max((int(file.name) for file in folder.iterdir() if file.name.isdigit()), default=-1) if folder.is_dir() else -1
    )


def offset_of(checkpoint: Place, batch: int, index: int) -> Any:
    """Return a source's offset after a batch; None if there is none."""
    file = checkpoint / "offsets" / str(batch)
    return read_offset(file, index) if file.is_file() else None


def read_offset(file: Place, index: int) -> Any:
    """Return a source's offset from a file of Spark's offset log; None if it has given nothing yet."""
    lines = file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    line = lines[2 + index] if len(lines) > 2 + index else "-"
    return None if line == "-" else json.loads(line)


def offset_behind(checkpoint: Place, batch: int, index: int) -> Any:
    """Return a source's offset after a batch; None if it had given nothing.

    For a batch id that the offset log does not hold (a repartition left it out) it is that of the one before.
    """
    try:
        # By its name, where it can be: a folder of a store is listed for more than a file costs.
        return read_offset(checkpoint / "offsets" / str(batch), index)
    except FileNotFoundError:
        earlier = [file for number, file in offset_files(checkpoint).items() if number <= batch]
        return read_offset(earlier[-1], index) if earlier else None


def offset_files(checkpoint: Place) -> dict[int, Place]:
    """Return the files of the offset log by the number of their batch, in order."""
    folder = checkpoint / "offsets"
    files = [file for file in folder.iterdir() if file.name.isdigit()] if folder.is_dir() else []
    return {int(file.name): file for file in sorted(files, key=lambda file: int(file.name))}


def offset_in_table(checkpoint: Place, table_id: str) -> dict[str, Any] | None:
    """Return where the last batch that Spark has planned ends in a Delta table; None if it has planned no such batch."""
    planned = list(offset_files(checkpoint).values())
    offsets = json_offsets(planned[-1].read_text("utf-8").split("\n") if planned else ())
    return next((offset for offset in offsets if offset.get("reservoirId") == table_id), None)


def log_offset(checkpoint: Place, batch: int, index: int = 0) -> int:
    """Return the last listing that the batches up to `batch` took (as `offset_behind`), -1 for none.

    Args:
        index: which source of the query it is, from 0.
    """
    offset = offset_behind(checkpoint, batch, index)
    return -1 if offset is None else int(offset["logOffset"])


def listings(checkpoint: Place, batch: int, index: int) -> range:
    """Return the listings that a batch took of a file source; `range(0)` for another source, or one that has given nothing."""
    offset = offset_behind(checkpoint, batch, index)
    if not isinstance(offset, dict) or "logOffset" not in offset:
        return range(0)
    return range(log_offset(checkpoint, batch - 1, index) + 1, int(offset["logOffset"]) + 1)


def files_of_batches(log: Place, first: int, last: int) -> Iterator[str]:
    """Yield the addresses of the files of the listings `first..last`, as Spark wrote them."""
    if last < first:
        return
    if last - first < _FEW:
        try:
            named = [path for number in range(first, last + 1) for path in _entries(log / str(number), first, last)]
        except FileNotFoundError:
            pass  # it is in a compact file
        else:
            yield from named
            return
    if not log.is_dir():
        return
    compacts = sorted(int(p.stem) for p in log.glob("*.compact") if p.stem.isdigit())
    # The newest compact file that is not past `last` holds everything before it; one past it holds all of them too.
    covering = [number for number in compacts if number >= last][:1] or compacts[-1:]
    done = -1
    for number in covering:
        done = number
        yield from _entries(log / f"{number}.compact", first, last)
    for file in sorted((p for p in log.iterdir() if p.name.isdigit()), key=lambda p: int(p.name)):
        if max(done, first - 1) < int(file.name) <= last:
            yield from _entries(file, first, last)


def files_by_listing(log: Place) -> dict[int, list[str]]:
    """Return the addresses of the files of each listing as Spark reads them when it starts: a compact file has all before it."""
    for _ in range(_FEW):
        with suppress(FileNotFoundError):  # a stream has put it into a compact file meanwhile
            return _read_whole(log)
    return _read_whole(log)


def _read_whole(log: Place) -> dict[int, list[str]]:
    names = [file.name for file in log.iterdir()] if log.is_dir() else []
    compact = max((int(name[:-8]) for name in names if name.endswith(".compact") and name[:-8].isdigit()), default=-1)
    behind = sorted(int(name) for name in names if name.isdigit() and int(name) > compact)
    found: dict[int, list[str]] = {}
    for name in [*([f"{compact}.compact"] if compact >= 0 else []), *map(str, behind)]:
        for line in filter(None, (log / name).read_text(encoding="utf-8").split("\n")[1:]):
            entry = json.loads(line)
            found.setdefault(entry["batchId"], []).append(entry["path"])
    return found


def last_file(log: Place) -> str | None:
    """Return the address of the last file in the file source's log, as Spark wrote it; None if there is none, or it is torn."""
    names = [file.name for file in log.iterdir()] if log.is_dir() else []
    numbers = {int(stem): name for name in names if (stem := name.removesuffix(".compact")).isdigit()}
    with suppress(ValueError, TypeError, LookupError):
        lines = (log / numbers[max(numbers)]).read_text(encoding="utf-8").rstrip("\n").split("\n")
        return str(json.loads(lines[-1])["path"])
    return None


def _entries(file: Place, first: int, last: int) -> Iterator[str]:
    for line in filter(None, file.read_text(encoding="utf-8").split("\n")[1:]):
        entry = json.loads(line)
        if first <= entry["batchId"] <= last:
            yield entry["path"]
