"""Values between Spark and a user's Python code: what the user is given is plain Python (`graph.plain_values`), whatever way
it came. No Spark here: this runs in the workers. Errors of that code name the step, the line that defined it and the row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipelines.graph import nodes
from pipelines.graph.plain_values import plain_list
from pipelines.graph.row_values import to_arrow

# A row may hold whole documents; the message is one line that a person reads.
_SHOWN = 500
_MODULE = re.compile(r"[\w.]+")


class LackingModuleError(RuntimeError):
    """User code could not import a module where it ran: by its class it is told apart from what a record says."""

    def __init__(self, module: str, failure: str) -> None:
        self.module = module
        super().__init__(f"{module}: {failure}")


@dataclass(frozen=True)
class Where:
    """A step as messages name it. It travels to the workers."""

    label: str
    at: str

    @classmethod
    def of(cls, node: nodes.Node) -> Where:
        return cls(node.label, str(node.at))

    def failed(self, row: Any, error: BaseException) -> RuntimeError:
        """Return the error of user code that was given `row`.

        `reason_of` shows the line of a worker's trace that starts with `RuntimeError: `, so it is one line.
        """
        return self.error(f"failed on {shown(row)}", error)

    def failed_on_all(self, tuples: list[Any], error: BaseException) -> RuntimeError:
        """Return the error of user code that was given a batch's tuples at once."""
        if len(tuples) == 1:
            return self.failed(tuples[0], error)
        return self.error(f"failed on {len(tuples)} tuples, the first {shown(tuples[0])}", error)

    def unfit(self, row: Any, error: BaseException) -> RuntimeError:
        """Return what user code gave does not fit the output fields' types."""
        return self.error(f"gave {shown(row)}, which does not fit its output fields", error)

    def error(self, what: str, error: BaseException | str) -> RuntimeError:
        known = isinstance(error, RuntimeError) and str(error).startswith(f"{self.label} (defined at")
        if isinstance(error, RuntimeError) and (known or isinstance(error, LackingModuleError)):
            return error
        reason = error if isinstance(error, str) else repr(error)
        failure = f"{self.label} (defined at {self.at}) {what}: {' '.join(reason.split())}"
        # Python's import names the module; an error that user code makes up from a text does not.
        if isinstance(error, ModuleNotFoundError) and _MODULE.fullmatch(error.name or ""):
            return LackingModuleError(str(error.name), failure)
        return RuntimeError(failure)


def shown(row: Any) -> str:
    """Return a row in a message: one line, cut where it is very long."""
    text = " ".join(repr(row).splitlines())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


Row = tuple[Any, ...]

# Rows an Arrow batch on the way back to Spark: its own size for the way there.
BATCH_ROWS = 10_000


def plain_columns(batch: pa.RecordBatch, positions: Iterable[int]) -> list[list[Any]]:
    """Return columns of a batch as lists of plain values."""
    return [plain_list(batch.column(position)) for position in positions]


def plain_rows(batch: pa.RecordBatch, positions: Sequence[int]) -> Iterator[Row]:
    """Yield the rows of a batch, of some columns."""
    if not positions:
        return iter([()] * batch.num_rows)
    return zip(*plain_columns(batch, positions), strict=True)


def freezes(kind: pa.DataType) -> bool:
    """Check whether keys of a type need `freeze`."""
    return pa.types.is_floating(kind) or pa.types.is_nested(kind)


class RowsOut:
    """Rows on their way back to Spark.

    Args:
        schema: of the batches that Spark expects.
        where: the step, for errors about values that do not fit.
        own: how many leading columns are the engine's: the user's values are those behind.
    """

    def __init__(self, schema: pa.Schema, where: Where, own: int = 0) -> None:
        self._schema, self._where, self._own = schema, where, own
        self._rows: list[Row] = []

    def add(self, row: Row) -> None:
        self._rows.append(row)

    def full(self) -> Iterator[pa.RecordBatch]:
        """Yield a batch, if there are rows enough for one."""
        if len(self._rows) >= BATCH_ROWS:
            yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows that wait."""
        rows, self._rows = self._rows, []
        for start in range(0, len(rows), BATCH_ROWS):
            yield self._batch(rows[start : start + BATCH_ROWS])

    def _batch(self, rows: list[Row]) -> pa.RecordBatch:
        try:
            return self._arrays(rows)
        except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError) as error:
            for row in rows:
                try:
                    self._arrays([row])
                except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError) as unfit:
                    raise self._where.unfit(row[self._own :], unfit) from unfit
            raise self._where.unfit(rows[0][self._own :], error) from error

    def _arrays(self, rows: list[Row]) -> pa.RecordBatch:
        columns = zip(*rows, strict=True) if len(self._schema) else ()
        arrays = [
            pa.array(values, type=field.type) if at < self._own else to_arrow(values, field.type)
            for at, (values, field) in enumerate(zip(columns, self._schema, strict=True))
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
