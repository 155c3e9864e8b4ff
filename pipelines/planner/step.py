"""The compilation of one node: the node, the frames of its parents, and what its own frame must carry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql import functions as F

from pipelines.errors import UnknownStateError
from pipelines.graph import nodes
from pipelines.graph.dialects import SPARK
from pipelines.state.schema import SLICE_COLUMN, struct_of
from pipelines.trident.user_code import MapGet, SnapshotGet, TupleCollectionGet

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

    from pipelines.state.table import StateTable

TASK = "_task"
"""Hidden column: the logical partition of a tuple, from 0. Only where something needs it and there is more than one."""
ORDER = "_order"
"""Hidden column: grows in the order of the tuples' arrival. Only where something needs it."""
BUILT_IN_QUERIES = (MapGet, SnapshotGet, TupleCollectionGet)
"""The query functions that Spark runs as joins."""
REPLAYED = "_replayed"
"""Hidden column: which quarantined row a tuple comes from, as far as one can say. Only in a replay."""
HIDDEN_COLUMNS = (SLICE_COLUMN, TASK, ORDER, REPLAYED)


class Context(Protocol):
    """The run that a plan serves.

    A context may have more, which is used if it is there: `txid: int | None` (of a stream's batch),
    `numbered: bool` (the slices' names are the numbers of fixed batches),
    `map_base(node) -> DataFrame | None` (keys and stored values of a map state as they were before the batch),
    `base_view(node) -> StateView | None` (the same, to be opened in the workers for a state updater),
    `emitted(node) -> DataFrame | None` (what an updater emitted, kept since its state was committed),
    `takes(node, types)` (called with what a window of the stream itself takes in),
    `view(name) -> StateView` (a state for a query function; else it is opened at the version of `state`) and
    `checked: bool` (the start's dry plan has checked what was written, so a batch need not).

    Attributes:
        slices: of a bounded run its slices, each of which is a batch; None for a stream's batch.
    """

    slices: tuple[str, ...] | None

    def gate(self, node: nodes.GateNode, frame: DataFrame) -> DataFrame:
        """Let a frame pass a gate."""

    def shared(self, node: nodes.Node, frame: DataFrame) -> DataFrame:
        """Return a frame that two consumers read."""

    def state(self, name: str, behind: bool = True) -> tuple[StateTable, int | None]:
        """Return a state to query and the version to read it at; `behind`: as the batch leaves it, else as it found it."""


def is_checked(context: Context) -> bool:
    """Check whether the start's dry plan has checked what was written."""
    return getattr(context, "checked", False)


@dataclass(frozen=True)
class Step:
    """One node on its way to a frame.

    Attributes:
        tasks: in how many logical partitions the node works.
        before: in how many each of its parents does.
        needed: the hidden columns, beside the slice, that a consumer asks of the node's frame.
    """

    node: Any
    frames: tuple[DataFrame, ...]
    graph: nodes.Graph
    context: Context
    tasks: int
    before: tuple[int, ...]
    needed: frozenset[str]

    @property
    def frame(self) -> DataFrame:
        """The frame of the one parent."""
        return self.frames[0]

    @property
    def txid(self) -> int:
        """The batch's txid; 0 where there is none."""
        return getattr(self.context, "txid", None) or 0

    @property
    def numbered(self) -> bool:
        """Check whether the slices are the batches of a stream by their numbers."""
        return getattr(self.context, "numbered", False)

    @property
    def kept(self) -> list[Column]:
        """The hidden columns of the parent's frame, for operations that pass each tuple on."""
        return columns(hidden(self.frame))

    @property
    def kept_slice(self) -> list[Column]:
        """The slice of the parent's frame, for operations that give the tuples another order and place."""
        return columns([SLICE_COLUMN] if SLICE_COLUMN in self.frame.columns else [])

    def parent(self, number: int = 0) -> nodes.Node:
        return self.graph[self.node.parents[number]]

    def batch(self, *, partitioned: bool = False) -> list[str]:
        """Return the hidden columns that tell batches, or partitions of batches, apart."""
        wanted = (SLICE_COLUMN, TASK) if partitioned else (SLICE_COLUMN,)
        return [name for name in wanted if name in self.frame.columns]

    def wanted(self, keys: Sequence[str]) -> list[tuple[Any, ...]] | None:
        """Return the values of `batch()` columns that must give a row even without tuples, or None if that is not known.

        Not known are the slices of a stream's batch: those are there that have tuples.
        """
        slices = self.context.slices
        values: list[tuple[Any, ...]] = [()]
        if SLICE_COLUMN in keys:
            if slices is None:
                return None
            values = [(slice_name,) for slice_name in slices]
        return [(*prefix, task) for prefix in values for task in range(self.tasks)] if TASK in keys else values

    def stored(self) -> tuple[StateTable, int | None] | None:
        """Return the table of the node's state and the version to read it at; None if there is no such table yet."""
        try:
            table, version = self.context.state(self.node.state.name)
        except UnknownStateError:
            return None
        return (table, version) if table.exists() else None

    def with_task(self, frame: DataFrame, by: Sequence[str]) -> DataFrame:
        """Add the task of each tuple, if it is needed: by a hash of fields, or without any the batch's."""
        if TASK not in self.needed:
            return frame
        task = task_by(frame, by, self.tasks) if by else self.batch_task(frame)
        return frame.withColumn(TASK, task)

    def batch_task(self, frame: DataFrame) -> Column:
        """Return the task that takes a whole batch (Trident rules 1.5, batchGlobal)."""
        if self.context.slices is None:
            return F.lit(self.txid % self.tasks)
        named = SLICE_COLUMN in frame.columns
        slice_ = F.col(SLICE_COLUMN) if named else F.lit(next(iter(self.context.slices), ""))
        return F.pmod(slice_.cast("int") if named and self.numbered else F.hash(slice_), F.lit(self.tasks))


def column(name: str) -> Column:
    """Return a column by its exact name."""
    return F.col(f"`{name}`")


def columns(names: Iterable[str]) -> list[Column]:
    return [column(name) for name in names]


def hidden(frame: DataFrame) -> list[str]:
    """Return the engine's columns that a frame carries."""
    return [name for name in HIDDEN_COLUMNS if name in frame.columns]


def task_by(frame: DataFrame, by: Sequence[str], tasks: int) -> Column:
    """Return the task of a tuple by a hash of its fields. Fields with maps or variants in them have no hash and are left out."""
    types = {field.name: field.dataType for field in frame.schema.fields}
    hashed = [column(name) for name in by if hashable(types[name])]
    return F.pmod(F.hash(*hashed), F.lit(tasks)) if hashed else F.lit(0)


def hashable(kind: DataType) -> bool:
    """Return whether Spark hashes values of a type: maps and variants it does not, nor what holds them."""
    from pyspark.sql.types import ArrayType, MapType, StructType, VariantType

    if isinstance(kind, ArrayType):
        return hashable(kind.elementType)
    if isinstance(kind, StructType):
        return all(hashable(field.dataType) for field in kind.fields)
    return not isinstance(kind, MapType | VariantType)


def type_of(text: str) -> DataType:
    """Return a Spark SQL type by its text."""
    return struct(f"x {text}").fields[0].dataType


def text_of(kind: DataType) -> str:
    """Return a type's text, which `type_of` reads. PySpark's own leaves names of fields bare that need quotes."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        return f"struct<{','.join(f'{SPARK.name(field.name)}:{text_of(field.dataType)}' for field in kind)}>"
    if isinstance(kind, ArrayType):
        return f"array<{text_of(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{text_of(kind.keyType)},{text_of(kind.valueType)}>"
    return kind.simpleString()


def struct(ddl: str) -> StructType:
    return struct_of(ddl)
