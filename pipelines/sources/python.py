"""A source that a user writes, with Spark's Python data source API."""

from __future__ import annotations

import inspect
import re
from itertools import count
from types import new_class
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pipelines.errors import DefinitionError, SourceError, TrideltaError
from pipelines.places.location import Place
from pipelines.sources.base import Source, shown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Where Spark runs a data source: in a worker of the driver, whose frames the traceback shows, and in the workers of tasks,
# which show the user's frames alone; there the JVM's part names the reader.
_WORKER = re.compile(
    r'File "[^"]*/pyspark/sql/(?:streaming/python_streaming_source_runner|worker/(?:plan_data_source_read|create_data_source))'
)
_READER, _THROWN = "datasources.v2.python.", "thrown from the Python worker"
_numbers = count(1)
_names: WeakKeyDictionary[type[Any], str] = WeakKeyDictionary()


class PythonSource(Source):
    """A class of the user's as a source: a `pyspark.sql.datasource.DataSource`.

    Gives: the fields of `schema`.
    Positions: one, `python:<class>`. A class with a `reader` alone can be backfilled; with a stream it has no slices.
    Transactional: as the class is. Spark keeps the offsets of a batch before it runs and asks for the same offsets on a
    replay (`read(partition)` of `partitions(start, end)`, `readBetweenOffsets(start, end)`). If the same offsets may give
    other rows say `transactional=False`, and persist into opaque states. A `catch_up` that has a batch to replay runs that one
    alone (Spark's rule for Python sources); the next run takes what has come since. Spark knows the class by a name of its own,
    whatever its `name()` says.

    Args:
        source: the class. `streamReader` or `simpleStreamReader` makes it a stream, `reader` lets it be read whole.
        schema: DDL of the rows that it gives.
        transactional: whether the same offsets always give the same rows.
        max_parallelism: in how many tasks its tuples can start at most; None: no limit.
        options: what the class finds in its `options`, as text.

    Raises:
        DefinitionError: if it is not such a class, or can neither be streamed nor read.
    """

    transactional: bool = True

    def __init__(
        self,
        source: type[Any],
        schema: str,
        *,
        transactional: bool = True,
        max_parallelism: int | None = None,
        **options: Any,
    ) -> None:
        from pyspark.sql.datasource import DataSource

        if not (isinstance(source, type) and issubclass(source, DataSource)):
            raise DefinitionError(f"PythonSource: {source!r} is not a subclass of pyspark.sql.datasource.DataSource")
        self.source, self.options = source, {name: str(value) for name, value in options.items()}
        self.transactional, self.max_parallelism = transactional, max_parallelism
        self.streams = any(_overrides(source, DataSource, way) for way in ("streamReader", "simpleStreamReader"))
        self.reads = _overrides(source, DataSource, "reader")
        if not self.streams and not self.reads:
            raise DefinitionError(
                f"PythonSource: {source.__name__} ({_place(source)}) has no reader and no stream reader",
                hint="define streamReader, simpleStreamReader or reader",
            )
        self.sliceable = self.reads and not self.streams
        super().__init__(schema)

    def __repr__(self) -> str:
        return f"PythonSource({self.source.__name__})"

    def check(self, name: str, spark: SparkSession) -> None:
        """Check that the class can be constructed and gives its readers.

        Raises:
            SourceError: names the class, the file and the line.
        """
        from pyspark.errors import PySparkNotImplementedError

        from pipelines.state.schema import struct_of

        try:
            made, schema = self.source(options=dict(self.options)), struct_of(self.schema)
            self.source.name()
            if self.reads:
                made.reader(schema)
            if self.streams:
                try:
                    made.streamReader(schema)
                except PySparkNotImplementedError:
                    made.simpleStreamReader(schema)
        except Exception as error:
            frames = inspect.getinnerframes(error.__traceback__) if error.__traceback__ else []
            where = next((f"{f.filename}:{f.lineno}" for f in reversed(frames) if _is_users(f.filename)), None)
            raise self._failed(name, where, f"{type(error).__name__}: {error}") from error

    def stream(self, spark: SparkSession) -> DataFrame:
        """Return a streaming frame.

        Raises:
            SourceError: if the class has no stream.
        """
        from pyspark.sql import functions as F

        if not self.streams:
            raise SourceError(
                f"{self.source.__name__} ({_place(self.source)}) has a reader and no stream reader: it cannot be streamed",
                hint="define streamReader or simpleStreamReader, or run the flow as a backfill",
            )
        reader = spark.readStream.format(self._registered(spark)).schema(self.schema).options(**self.options)
        return self._with_position(reader.load(), F.lit(self._position))

    def bounded(self, spark: SparkSession) -> tuple[DataFrame, frozenset[str]]:
        from pyspark.sql import functions as F

        if not self.sliceable:
            return super().bounded(spark)
        reader = spark.read.format(self._registered(spark)).schema(self.schema).options(**self.options)
        return self._with_position(reader.load(), F.lit(self._position)), frozenset({self._position})

    def _registered(self, spark: SparkSession) -> str:
        """Make the class known to Spark under a name of its own. Return the name.

        Spark looks a class up by name, and not before it reads: of two with the name that users gave them the last one that was
        registered, by whichever flow of the application, would be read in the place of both.
        """
        own = under_own_name(self.source)
        spark.dataSource.register(own)
        return str(own.name())

    @property
    def _position(self) -> str:
        return f"python:{self.source.__name__}"

    def positions(self, checkpoint: Place, first: int, last: int, index: int = 0) -> frozenset[str]:
        return frozenset({self._position}) if self.streams and first <= last else frozenset()

    def fault(self, name: str, error: BaseException) -> TrideltaError | None:
        """Return an exception of the class itself, by the traceback that Spark passes on from its worker for data sources."""
        trace = _trace(shown(error))
        own = [frame for frame in re.finditer(r'File "([^"]+)", line (\d+)', trace) if _is_users(frame[1])]
        if not own:
            return None
        raised = re.search(r"^(?:\w+\.)*([A-Z]\w*(?::.*)?)$", trace[own[-1].end() :], re.MULTILINE)
        return self._failed(name, f"{own[-1][1]}:{own[-1][2]}", raised[1] if raised else "it raised an exception")

    def _failed(self, name: str, where: str | None, reason: str) -> SourceError:
        return SourceError(
            f'source "{name}": {self.source.__name__} failed at {where or _place(self.source)}: {reason}',
            hint="correct the class and run the flow again: it continues with the same batch",
        )


def under_own_name(source: type[Any]) -> type[Any]:
    """Return a class that does what another does, and whose name for Spark no other class of this process has."""
    # Spark takes names for the same that differ in case alone, so the number tells them apart.
    name = _names.setdefault(source, f"tridelta_{source.__name__}_{next(_numbers)}")
    # It is sent to the workers whole: they find nothing of it by its place, where its base is.
    body = {"name": classmethod(lambda _: name), "__module__": source.__module__, "__qualname__": source.__qualname__}
    return new_class(source.__name__, (source,), {}, lambda members: members.update(body))


def _overrides(source: type[Any], base: type[Any], name: str) -> bool:
    return getattr(source, name) is not getattr(base, name)


def _trace(text: str) -> str:
    """Return the traceback of the data source in what Spark says of an error; empty if it says of none."""
    inside = list(_WORKER.finditer(text))
    if inside:
        return text[inside[-1].end() :].partition("\n")[2]
    if _READER in text:
        return text.partition(_THROWN)[2].partition(_THROWN)[0]
    return ""


def _is_users(file: str) -> bool:
    return "/pyspark/" not in file and "/pipelines/sources/" not in file


def _place(source: type[Any]) -> str:
    try:
        return f"{inspect.getsourcefile(source)}:{inspect.getsourcelines(source)[1]}"
    except (OSError, TypeError):
        return source.__module__
