"""Reading the file source's log in a Spark checkpoint: which files each batch took.

Format (Spark's CompactibleFileStreamLog): one file a batch, first line `v1`, then a JSON object a line with `path` and
`batchId`; every tenth file is `N.compact` and holds all entries up to N.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path


def files_of_batches(log: Path, first: int, last: int) -> Iterator[str]:
    """Addresses of the files that the batches `first..last` took, as Spark wrote them."""
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
