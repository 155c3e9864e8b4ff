"""Reading the file source's log in a Spark checkpoint: which files each batch took.

Format (Spark's CompactibleFileStreamLog): one file a listing, first line `v1`, then a JSON object a line with `path`
and `batchId`, which is the listing's number; every tenth file is `N.compact` and holds all entries up to N. A process
that dies between listing and planning leaves a listing without a batch, and the next batch takes two: the offset log
says which.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path


def log_offset(checkpoint: Path, batch: int, index: int = 0) -> int:
    """The last listing that the batches up to `batch` took, -1 for none.

    `index` says which source of the query: the offset log has a line each, `-` while one has given nothing yet.
    Of a batch id that the offset log does not hold (a repartition left it out) it is that of the one before.
    """
    offsets = checkpoint / "offsets"
    known = [int(p.name) for p in offsets.iterdir() if p.name.isdigit()] if offsets.is_dir() else []
    earlier = [number for number in known if number <= batch]
    if not earlier:
        return -1
    lines = (offsets / str(max(earlier))).read_text(encoding="utf-8").splitlines()
    line = lines[2 + index] if len(lines) > 2 + index else "-"
    return int(json.loads(line)["logOffset"]) if line != "-" else -1


def files_of_batches(log: Path, first: int, last: int) -> Iterator[str]:
    """Addresses of the files of the listings `first..last`, as Spark wrote them."""
    if not log.is_dir() or last < first:
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


def _entries(file: Path, first: int, last: int) -> Iterator[str]:
    for line in file.read_text(encoding="utf-8").splitlines()[1:]:
        entry = json.loads(line)
        if first <= entry["batchId"] <= last:
            yield entry["path"]
