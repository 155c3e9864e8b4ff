"""A process that writes to a table in a bucket, as one host of several.

`python -m tests.places.racing_writer LAKE NAME OWN SHARED` commits OWN batches that nobody else knows of, and in between tries
each of SHARED batches that others try as well. It prints which of these it committed, as JSON.
"""

from __future__ import annotations

import json
import sys

import pyarrow as pa

from pipelines.errors import BehindStateError
from pipelines.places.location import Location
from pipelines.state.kinds import ROWS, TRANSACTIONAL
from pipelines.state.turns import LateWriterError
from tests.state.small_kinds import APP, SmallTable, record


def own_app(name: str) -> str:
    return f"{name}/counts/1"


def race(lake: Location, name: str, own: int, shared: int) -> list[int]:
    """Write. Return the shared batches that were committed here."""
    state, done = SmallTable(lake, ROWS, TRANSACTIONAL), list[int]()
    for number in range(own):
        rows = pa.Table.from_pylist([{"word": name, "n": number}], schema=state.arrow)
        state.writer.append_arrow(rows, record(number), own_app(name))
        txid = number * shared // own
        if (number + 1) * shared // own > txid and try_shared(state, txid):
            done.append(txid)
    return done


def try_shared(state: SmallTable, txid: int) -> bool:
    """Commit a batch unless it is committed, as a driver that knows of no other."""
    known = state.writer.committed(APP)
    if known is not None and known >= txid:
        return False
    try:
        state.commit(txid, ("shared", txid))
    except (LateWriterError, BehindStateError):
        return False
    return True


if __name__ == "__main__":
    print(json.dumps(race(Location.of(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
