"""Tables as bytes on their way through the shuffle and in the state store: Arrow IPC streams."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa


def to_ipc(table: pa.Table, compression: str | None = None) -> bytes:
    """Return a table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def from_ipc(blobs: Iterable[bytes]) -> pa.Table:
    """Return the tables of some IPC streams of one schema as one table."""
    return pa.concat_tables([pa.ipc.open_stream(blob).read_all() for blob in blobs])
