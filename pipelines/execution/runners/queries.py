"""Query streams answered (the DRPC use): by the plain interpreter where nothing needs Spark, else by one Spark job.

A query that looks up some keys and folds what it finds is milliseconds of work, and a Spark job hundreds of them. The
interpreter (`pipelines.planner.plain`) has the same operations; only SQL text, functions of Columns without a plain form and
gates need Spark. Each request is a batch of its own (Trident rules 8); many requests in one Spark job are its slices.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkException

from pipelines.bounds import shown
from pipelines.errors import BatchError, ReadPointError, SourceSchemaError, TrideltaError, UnknownQueryError
from pipelines.execution.protocol.failures import reason_of
from pipelines.graph import nodes
from pipelines.graph.arrow_types import arrow_type
from pipelines.graph.bolts import batch_groups, node_tasks
from pipelines.graph.dialects import SPARK
from pipelines.graph.fields import parse_ddl
from pipelines.planner.compile import Compiler
from pipelines.planner.plain import PlainContext, Table, entering, needs_spark, plain, read, step
from pipelines.planner.plain.queries import fixed_view
from pipelines.planner.plan import answer_node
from pipelines.planner.values import Where
from pipelines.sources.fixed import FixedBatches, arrow_rows
from pipelines.spark.arrow_frame import arrow_frame, plain_dicts, to_arrow
from pipelines.state.far_times import plain_rows
from pipelines.state.literals import of_text
from pipelines.state.schema import SLICE_COLUMN
from pipelines.trident.states import FixedState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pipelines.state.lake import Lake
    from pipelines.state.table import StateTable
    from pipelines.state.views import StateView
    from pipelines.trident.topology import TridentTopology

Row = dict[str, Any]
Arguments = Sequence[Sequence[Any]]
"""The tuples of one request, in the order of the query's schema."""

# Above so many argument tuples Spark's cores beat one interpreter: some 100 microseconds a tuple against half a second of jobs.
PLAIN_TUPLES = 5_000


class ArgumentsError(TrideltaError):
    """A query stream is asked with more or fewer arguments than it takes, or with one of another type."""

    def __init__(self, query: str, problem: str, takes: str) -> None:
        self.query, self.problem, self.takes = query, problem, takes
        super().__init__(f'query "{query}": {problem}', hint=f"give one argument for each of: {takes}")


@dataclass(frozen=True)
class Answer:
    """The answer to one request: its rows, or its error. `seconds` are of the request, or its share of a common job."""

    rows: list[Row] = field(default_factory=list)
    error: str | None = None
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class QueryRunner:
    """Answers one query stream. It may be shared by threads.

    Args:
        spark: gives the session, if the query needs one.
        txid: read the states of the topology's batch group as of this txid; None: as of their last commit. Each is read at one
            version a request.

    Raises:
        UnknownQueryError: the topology has no such query stream.
        ReadPointError: the states that it asks count txids of more than one sequence.
    """

    def __init__(
        self,
        lake: Lake,
        topology: TridentTopology,
        name: str,
        spark: Callable[[], SparkSession],
        txid: int | None = None,
    ) -> None:
        if name not in topology.queries:
            raise UnknownQueryError(topology.name, name, tuple(topology.queries))
        self._lake, self._topology, self._name, self._spark = lake, topology, name, spark
        self._spout = topology.queries[name]
        graph = topology.graph
        self._last = answer_node(graph, self._spout.id)
        self._txids = {} if txid is None else _read_as_of(topology, self._last, txid)
        self.needs_spark = needs_spark(graph.ancestors(self._last.id))

    def arguments(self, texts: Sequence[str]) -> tuple[Any, ...]:
        """Return arguments from the command line, each as its column's type; arrays, maps and structs are given as JSON."""
        columns = parse_ddl(self._spout.schema)
        if len(texts) != len(columns):
            problem = f"it takes {len(columns)} argument{'s' * (len(columns) != 1)}, got {len(texts)}"
            raise ArgumentsError(self._name, problem, self._spout.schema)
        return tuple(self._typed(name, kind, text) for (name, kind), text in zip(columns, texts, strict=True))

    def _typed(self, name: str, kind: str, text: str) -> Any:
        known = arrow_type(kind)
        try:
            if known is None:
                return json.loads(text)
            # A decimal's digits are kept; of a double the text is as good.
            return (
                _of_json(json.loads(text, parse_float=str), known)
                if pa.types.is_nested(known)
                else of_text(text, known)
            )
        except (pa.ArrowNotImplementedError, ValueError, OverflowError, RecursionError):
            problem = f"{name} is {kind}, got {shown(text)}"
            raise ArgumentsError(self._name, problem, self._spout.schema) from None

    def ask(self, arguments: Arguments) -> list[Row]:
        """Return the rows that answer one request.

        Raises:
            ArgumentsError: its tuples do not fit the query's schema.
        """
        with self._fitting(arguments):
            many = len(arguments) > PLAIN_TUPLES
        if self.needs_spark or many:
            return self._by_spark([arguments])[0]
        return self._plainly(arguments)

    def ask_each(self, requests: Sequence[Arguments]) -> list[Answer]:
        """Return one answer per request, in their order: an error is that of its request alone.

        With Spark one job answers them all; if it fails, or a gate judges each as a whole, each is asked by itself.
        """
        if self.needs_spark and len(requests) > 1:
            started = time.monotonic()
            try:
                results = self._by_spark(requests)
            except (TrideltaError, PySparkException):
                pass  # one of them; which one is found by asking each
            else:
                share = (time.monotonic() - started) / len(requests)
                return [Answer(rows, seconds=share) for rows in results]
        return [self._answer(request) for request in requests]

    def _answer(self, request: Arguments) -> Answer:
        started = time.monotonic()
        try:
            rows = self.ask(request)
        except TrideltaError as error:
            return Answer(error=str(error), seconds=time.monotonic() - started)
        return Answer(rows, seconds=time.monotonic() - started)

    @contextmanager
    def _fitting(self, arguments: Arguments) -> Iterator[None]:
        """Name the arguments, and not a file, where they are read and do not fit."""
        try:
            yield
        except (SourceSchemaError, TypeError, ValueError) as error:
            problem = f"it takes a list of tuples: {error}"
            if isinstance(error, SourceSchemaError):
                problem = f"a tuple does not fit: {error.problem}"
            raise ArgumentsError(self._name, f"{problem}; got {shown(repr(arguments))}", self._spout.schema) from None

    # --- without Spark ----------------------------------------------------------------------------------------------

    def _plainly(self, arguments: Arguments) -> list[Row]:
        graph, views = self._topology.graph, _Views(self._lake, self._topology, self._txids)
        context = PlainContext(
            label=f"query {self._name}", tasks=node_tasks(graph), view=views, state_types=views.types
        )
        tables: dict[int, Table] = {}
        for node in graph.ancestors(self._last.id):
            if isinstance(node, nodes.QuerySpoutNode):
                with self._fitting(arguments):
                    given = arguments if node is self._spout else ()
                    tables[node.id] = read(node.schema, given, context.tasks_of(node.id), self._name)
            else:
                tables[node.id] = self._step(node, entering(node, graph, tables, context), context)
        return [{name: plain(value) for name, value in row.items()} for row in tables[self._last.id].dicts()]

    def _step(self, node: nodes.Node, tables: list[Table], context: PlainContext) -> Table:
        try:
            return step(node, tables, context)
        except TrideltaError:
            raise
        except Exception as error:
            where, row = Where.of(node), _offending(node, tables, context)
            raise self._failed(
                str(where.error("failed", error) if row is None else where.failed(row, error))
            ) from error

    def _failed(self, reason: str) -> BatchError:
        text = f'query "{self._name}" of flow "{self._topology.name}" failed: {reason}'
        return BatchError(text, hint="correct the arguments or the flow")

    # --- by Spark ---------------------------------------------------------------------------------------------------

    def _by_spark(self, requests: Sequence[Arguments]) -> list[list[Row]]:
        numbers = [str(number) for number in range(len(requests))]
        several = len(requests) > 1
        frames = [self._frame(request) for request in requests]
        try:
            if several:
                frames = [
                    table.append_column(SLICE_COLUMN, pa.array([number] * table.num_rows, pa.string()))
                    for number, table in zip(numbers, frames, strict=True)
                ]
            frame = arrow_frame(self._spark(), pa.concat_tables(frames))
            context = _SparkContext(self._lake, self._txids, tuple(numbers) if several else None)
            compiled = Compiler(self._topology.graph, (self._last.id,), context, {self._spout.id: frame})
            result = compiled.frames()[self._last.id]
            kept = [*self._fields(), *([SLICE_COLUMN] if several else [])]
            # Arrow's times are in UTC; those of `collect` are in the zone of this host.
            found = to_arrow(result.select(*map(SPARK.name, kept)))
        except PySparkException as error:
            raise self._failed(reason_of(error)) from error
        rows = self._plain_rows(found)
        if not several:
            return [rows]
        answers: dict[str, list[Row]] = {number: [] for number in numbers}
        for row in rows:
            answers[row.pop(SLICE_COLUMN)].append(row)
        return list(answers.values())

    def _frame(self, request: Arguments) -> pa.Table:
        schema = self._spout.schema
        with self._fitting(request):
            return arrow_rows(self._name, schema, FixedBatches(schema, [request]).batches[0])

    def _plain_rows(self, found: pa.Table) -> list[Row]:
        try:
            return plain_dicts(found)
        except (OverflowError, ValueError):
            plain_rows(found, f"query {self._name}", ())  # to name the value
            raise

    def _fields(self) -> Sequence[str]:
        last = self._last
        return [name for name, _ in parse_ddl(self._spout.schema)] if last is self._spout else last.fields


def _of_json(value: Any, kind: pa.DataType) -> Any:
    """Return what JSON gives with its texts as the type has them: dates, decimals and the like."""
    if isinstance(value, list) and pa.types.is_list(kind):
        return [_of_json(item, kind.value_type) for item in value]
    if isinstance(value, dict) and pa.types.is_map(kind):
        return {_of_json(name, kind.key_type): _of_json(item, kind.item_type) for name, item in value.items()}
    if isinstance(value, dict) and pa.types.is_struct(kind):
        types = {field.name: field.type for field in kind}
        return {name: _of_json(item, types.get(name, pa.string())) for name, item in value.items()}
    if not isinstance(value, str):
        return value
    try:
        return of_text(value, kind)
    except ValueError:
        if not pa.types.is_integer(kind):
            raise
        # JSON's 1.0 and 1e3 are whole.
        return of_text(value, pa.float64())


def _offending(node: nodes.Node, tables: list[Table], context: PlainContext) -> Any:
    """Return the row on which a step failed, found by trying each; None if it is no single row's fault."""
    if len(tables) == 1:
        for number, row in enumerate(tables[0].rows):
            try:
                step(node, [tables[0].take([number])], context)
            except Exception:
                return row
    return None


def _read_as_of(topology: TridentTopology, last: nodes.Node, txid: int) -> dict[str, int]:
    """Return by name the states that a txid is about, among those that a query asks; it reads the others at their last commit.

    Each batch group counts its own txids. So it is about the states that a stream of the topology writes; a query that asks
    none of these may ask one of another flow.

    Raises:
        ReadPointError: it may be about states of several batch groups.
    """
    graph = topology.graph
    queries = [node for node in graph.ancestors(last.id) if isinstance(node, nodes.StateQueryNode)]
    fixed = {node.state.name for node in topology.static_states if isinstance(node.state, FixedState)}
    asked = dict.fromkeys(node.state for node in queries if node.state not in fixed)
    group_of = {member: group.name for group in batch_groups(graph) for member in group.nodes}
    own = {node.state.name: group_of[node.id] for node in topology.persists if node.state.name in asked}
    found = list(own or asked)
    if len(set(own.values()) if own else asked) > 1:
        # A table's commits do not name their group (ADR 0134): those of another flow may be of one.
        whose = "other flows, which may have txids of their own"
        if own:
            whose = "several batch groups of the flow, each with txids of its own"
        shown = ", ".join(f'"{name}"' for name in found)
        raise ReadPointError(
            found[0],
            f"txid {txid}",
            f"the query asks states of {whose}: {shown}",
            hint="ask without a txid, or read each state as of its own: tridelta state STATE --txid N",
        )
    return dict.fromkeys(found, txid)


class _Views:
    """The states of one request for the interpreter, each at one version.

    Args:
        txids: by state as of which txid it is read; the others are read at their last commit.
    """

    def __init__(self, lake: Lake, topology: TridentTopology, txids: Mapping[str, int]) -> None:
        self._lake, self._txids = lake, txids
        self._fixed = {n.state.name: n.state for n in topology.static_states if isinstance(n.state, FixedState)}
        self._opened: dict[str, StateView] = {}

    def __call__(self, name: str) -> StateView:
        if name not in self._opened:
            self._opened[name] = fixed_view(self._fixed[name]) if name in self._fixed else self._view(name)
        return self._opened[name]

    def _view(self, name: str) -> StateView:
        return self._lake.state(name).view(txid=self._txids.get(name))

    def types(self, name: str) -> Mapping[str, str | None]:
        return self._fixed[name].types if name in self._fixed else dict(self._lake.state(name).declared.columns)


class _SparkContext:
    """The context of a query's plan: the states of one request, each at one version.

    Args:
        txids: as of `_Views`.
    """

    def __init__(self, lake: Lake, txids: Mapping[str, int], slices: tuple[str, ...] | None) -> None:
        self._lake, self._txids, self.slices = lake, txids, slices
        self._read: dict[str, tuple[StateTable, int]] = {}

    def gate(self, node: nodes.GateNode, frame: DataFrame) -> DataFrame:
        from pipelines.quality.compiled import compile_gate

        compiled = compile_gate(node.gate, frame.schema, node.fields)
        annotated = compiled.annotate(frame, within=(SLICE_COLUMN,) if self.slices else ())
        if compiled.needs_cut:
            if self.slices:
                # Whoever asks them together then asks each.
                raise BatchError(f'gate "{node.gate.name}" judges one request at a time')
            compiled.judge(annotated).raise_if_refused("the query")
        return compiled.kept(annotated)

    def shared(self, node: nodes.Node, frame: DataFrame) -> DataFrame:
        return frame

    def state(self, name: str, behind: bool = True) -> tuple[StateTable, int | None]:
        if name not in self._read:
            table = self._lake.state(name)
            txid = self._txids.get(name)
            version = table.version() if txid is None else table.commits.version_of(txid)
            self._read[name] = table, version
        return self._read[name]
