"""A user's own source, by Spark's Python data source API: transactional and opaque ones, and what its errors say."""
# ruff: noqa: N802 - the methods' names are Spark's

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)

from pipelines import Lake, Runtime
from pipelines.errors import DefinitionError, NotSliceableError, PoisonBatchError, SourceError, TrideltaError
from pipelines.sources import PythonSource
from pipelines.sources.python import under_own_name
from pipelines.trident import OPAQUE, Count, DeltaState, TridentTopology

pytestmark = pytest.mark.slow

SCHEMA = "n bigint, reading bigint"


class Counter(DataSource):
    """Numbers up to `last`, five a batch; `fail` names the method that raises."""

    @classmethod
    def name(cls) -> str:
        return "counter"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return CounterStream(self.options)


class Range(InputPartition):
    def __init__(self, first: int, behind: int) -> None:
        self.first, self.behind = first, behind


class CounterStream(DataSourceStreamReader):
    def __init__(self, options: Any) -> None:
        self.last, self.fail, self.at = int(options["last"]), options.get("fail"), 0

    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def latestOffset(self) -> dict[str, int]:
        if self.fail == "latestOffset":
            raise ValueError("no answer")
        return {"n": self.last}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [Range(start["n"], end["n"])]

    def read(self, partition: Any) -> Iterator[tuple[int, int]]:
        if self.fail == "read":
            raise KeyError("torn")
        for n in range(partition.first, partition.behind):
            yield n, 0


class Sensor(DataSource):
    """Every reading of the same offset is another one: `readings` counts them in a file."""

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:
        return SensorStream(Path(self.options["readings"]))


class SensorStream(SimpleDataSourceStreamReader):
    def __init__(self, readings: Path) -> None:
        self.readings = readings

    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[int, int]], dict[str, int]]:
        behind = max(start["n"], 3)
        return self.readBetweenOffsets(start, {"n": behind}), {"n": behind}

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[tuple[int, int]]:
        reading = len(self.readings.read_text()) if self.readings.exists() else 0
        return iter([(n, reading) for n in range(start["n"], end["n"])])


class Days(DataSource):
    """Rows of two days, to be read whole."""

    def reader(self, schema: Any) -> DataSourceReader:
        return DaysReader()


class DaysReader(DataSourceReader):
    def read(self, partition: Any) -> Iterator[tuple[str, int]]:
        yield from [("d1", 1), ("d1", 2), ("d2", 3)]


class Broken(DataSource):
    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        raise RuntimeError("no credentials")


class StopError(BaseException):
    pass


def flow(source: PythonSource, **state: Any) -> TridentTopology:
    topology = TridentTopology("own")
    topology.new_stream("tuples", source).partition_persist(DeltaState("rows", **state))
    return topology


def stop_after_commit(spark: SparkSession, lake: Lake, topology: TridentTopology) -> None:
    def stop(moment: str, state: str, txid: int) -> None:
        if moment == "committed":
            raise StopError

    with pytest.raises(StopError):
        Runtime(spark, lake, listeners=[stop]).catch_up(topology)


def held(lake: Lake) -> list[tuple[int, int]]:
    return sorted((row["n"], row["reading"]) for row in lake.state("rows").scan().to_pylist())


@pytest.mark.exhaustive
def test_a_transactional_source_gives_a_replay_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Rules 7, IPartitionedTridentSpout: a replay reads what the stored offsets say."""
    lake = Lake(tmp_path)
    source = PythonSource(Counter, SCHEMA, last=5)
    assert (source.transactional, source.sliceable) == (True, False)
    stop_after_commit(spark, lake, flow(source))
    # More has come since; the batch that runs again still ends where it did.
    runtime, later = Runtime(spark, lake), flow(PythonSource(Counter, SCHEMA, last=8))
    batches = [*runtime.catch_up(later).batches, *runtime.catch_up(later).batches]
    assert [(batch.txid, batch.received) for batch in batches] == [(0, 5), (1, 3)]
    assert held(lake) == [(n, 0) for n in range(8)]


@pytest.mark.exhaustive
def test_an_opaque_source_gives_other_rows_and_its_state_replaces_them(spark: SparkSession, tmp_path: Path) -> None:
    """Rules 6 and 7, IOpaquePartitionedTridentSpout: opaque spout + opaque state is exactly once; others are refused."""
    lake, readings = Lake(tmp_path / "lake"), tmp_path / "readings"
    source = PythonSource(Sensor, SCHEMA, transactional=False, readings=readings)
    with pytest.raises(DefinitionError, match="transactional states"):
        Runtime(spark, lake).catch_up(flow(source))
    topology = flow(source, kind=OPAQUE)
    readings.write_text("1")
    stop_after_commit(spark, lake, topology)
    assert held(lake) == [(n, 1) for n in range(3)]
    readings.write_text("12")
    assert [batch.txid for batch in Runtime(spark, lake).catch_up(topology).batches] == [0]
    assert held(lake) == [(n, 2) for n in range(3)]


def test_a_source_that_reads_whole_has_slices(spark: SparkSession, tmp_path: Path) -> None:
    lake, topology = Lake(tmp_path), TridentTopology("days")
    source = PythonSource(Days, "day string, n bigint")
    rows = topology.new_stream("rows", source, slice_by="day")
    rows.group_by("day").persistent_aggregate(DeltaState("days"), Count(), "rows")
    runtime = Runtime(spark, lake)
    for _ in range(2):
        assert not runtime.backfill(topology, ["d1", "d2"]).failed
    assert {row["day"]: row["rows"] for row in lake.state("days").scan().to_pylist()} == {"d1": 2, "d2": 1}
    with pytest.raises(SourceError, match=r"Days \(.*test_python_source.py:\d+\) has a reader and no stream reader"):
        runtime.catch_up(topology)
    with pytest.raises(NotSliceableError):
        TridentTopology("own").new_stream("tuples", PythonSource(Counter, SCHEMA, last=1), slice_by="n")


@pytest.mark.exhaustive
def test_errors_name_the_class_the_file_and_the_line(spark: SparkSession, tmp_path: Path) -> None:
    at = r"failed at .*test_python_source.py:\d+: "
    with pytest.raises(SourceError, match=f"Broken {at}RuntimeError: no credentials"):
        PythonSource(Broken, SCHEMA).check("s", spark)
    with pytest.raises(SourceError, match=f"Counter {at}KeyError: 'last'"):
        PythonSource(Counter, SCHEMA).check("s", spark)
    with pytest.raises(TrideltaError, match=f"Counter {at}ValueError: no answer"):
        Runtime(spark, Lake(tmp_path / "a")).catch_up(flow(PythonSource(Counter, SCHEMA, last=5, fail="latestOffset")))
    lake = Lake(tmp_path / "b")
    with pytest.raises(PoisonBatchError, match=f"Counter {at}KeyError: 'torn'"):
        Runtime(spark, lake, max_attempts=1).catch_up(flow(PythonSource(Counter, SCHEMA, last=5, fail="read")))
    Runtime(spark, lake).catch_up(flow(PythonSource(Counter, SCHEMA, last=5)))
    assert held(lake) == [(n, 0) for n in range(5)]


class Evens(DataSource):
    @classmethod
    def name(cls) -> str:
        return "numbers"

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:
        return NumbersStream([0, 2, 4])


class Odds(Evens):
    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:
        return NumbersStream([1, 3])


class NumbersStream(SimpleDataSourceStreamReader):
    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers

    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[int, int]], dict[str, int]]:
        end = {"n": len(self.numbers)}
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[tuple[int, int]]:
        return iter([(n, 0) for n in self.numbers[start["n"] : end["n"]]])


def test_two_sources_of_one_name_are_both_read(spark: SparkSession, tmp_path: Path) -> None:
    topology = TridentTopology("own")
    streams = [topology.new_stream(kind.__name__.lower(), PythonSource(kind, SCHEMA)) for kind in (Evens, Odds)]
    topology.merge(*streams).partition_persist(DeltaState("rows"))
    Runtime(spark, Lake(tmp_path)).catch_up(topology)
    assert held(Lake(tmp_path)) == [(n, 0) for n in range(5)]


def test_each_class_has_a_name_of_its_own_for_spark() -> None:
    def another() -> type[DataSource]:
        class Counter(DataSource):
            def reader(self, schema: Any) -> DataSourceReader:
                return DaysReader()

        return Counter

    classes: list[type[Any]] = [Counter, Evens, Odds, another(), another()]
    names = [under_own_name(each).name().lower() for each in classes]
    assert len(set(names)) == len(classes)
    assert [under_own_name(each).name().lower() for each in classes] == names
    for each, name in zip(classes, names, strict=True):
        # As Spark sends it to its workers.
        sent = CloudPickleSerializer().loads(CloudPickleSerializer().dumps(under_own_name(each)))
        assert sent.name().lower() == name
        assert inspect.ismethod(sent.name)
        assert (sent.__name__, sent(options={}).options) == (each.__name__, {})


def test_what_is_no_source() -> None:
    class Nothing(DataSource):
        pass

    with pytest.raises(DefinitionError, match=r"Nothing \(.*\) has no reader and no stream reader"):
        PythonSource(Nothing, SCHEMA)
    with pytest.raises(DefinitionError, match="is not a subclass"):
        PythonSource(int, SCHEMA)
