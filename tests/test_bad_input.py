"""Bad input: one clear sentence and the next step, and nothing lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.catalog import flow
from pipelines.errors import (
    BatchError,
    DefinitionError,
    FieldError,
    FreshCheckpointError,
    LockedError,
    MissingPathError,
    PoisonBatchError,
    ReadPointError,
    SourceSchemaError,
    StateSchemaError,
    TrideltaError,
    UnknownFlowError,
    UnknownQueryError,
    UnknownStateError,
)
from pipelines.execution.batch import stream_batch
from pipelines.execution.batch.poison import NoPoisonBatchError
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.quality import fail
from pipelines.sources import CsvFiles, FixedBatches, JsonFiles, ParquetFiles, Source, TextFiles
from pipelines.state.slices import made_slices
from pipelines.trident import Count, DeltaState, MapGet, Max, Split, Sum, TridentTopology

pytestmark = pytest.mark.slow

SCHEMA = "k string, n bigint, day string"
GOOD = '{"k":"a","n":1,"day":"d1"}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "in"
    made.mkdir()
    return made


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture
def runtime(spark: SparkSession, lake: Lake) -> Runtime:
    return Runtime(spark, lake)


def counting(source: Source, *, slice_by: str | None = None, state: str = "by_k") -> TridentTopology:
    topology = TridentTopology("counting")
    stream = topology.new_stream("rows", source, slice_by=slice_by)
    stream.group_by("k").persistent_aggregate(DeltaState(state), [Count("rows"), Sum("n", "total")])
    return topology


def counts(lake: Lake, state: str = "by_k") -> dict[str, tuple[int, int]]:
    return {row["k"]: (row["rows"], row["total"]) for row in lake.state(state).scan().to_pylist()}


def quarantined(lake: Lake, flow: str = "counting") -> list[tuple[str, str, str]]:
    """Stage, rule and row of what a flow refused."""
    try:
        rows = lake.quarantine(flow).scan().to_pylist()
    except UnknownStateError:
        return []
    return sorted((row["stage"], row["rule"], row["row"]) for row in rows)


def assert_clear(error: TrideltaError, *, hint: bool = True) -> None:
    """One sentence and the next step: no stack trace of Java's or Python's, no class names, no SQLSTATE."""
    text = str(error)
    assert len(text.splitlines()) == (2 if hint else 1), text
    assert bool(error.hint) is hint
    for noise in ("\tat ", "Traceback", "JVM stacktrace", "SQLSTATE", "org.apache", "java.", "py4j"):
        assert noise not in text, text


# --- refused before the start ---------------------------------------------------------------------------------------


def test_a_missing_folder(runtime: Runtime, tmp_path: Path) -> None:
    topology = counting(JsonFiles(tmp_path / "nowhere", SCHEMA))
    for run in (runtime.catch_up, runtime.stream, runtime.run_bounded):
        with pytest.raises(MissingPathError) as caught:
            run(topology)  # type: ignore[operator]
        assert (caught.value.source, caught.value.path) == ("rows", str(tmp_path / "nowhere"))
        assert_clear(caught.value)


def _json(folder: Path) -> Source:
    (folder / "a.json").write_text('{"carrier":"AA","delay":1}\n')
    return JsonFiles(folder, SCHEMA)


def _csv(folder: Path) -> Source:
    (folder / "a.csv").write_text("k,n\na,1\n")
    return CsvFiles(folder, SCHEMA)


def _parquet(folder: Path) -> Source:
    pq.write_table(pa.table({"k": ["a"], "day": ["d"]}), folder / "a.parquet")
    return ParquetFiles(folder, SCHEMA)


def _no_parquet(folder: Path) -> Source:
    (folder / "a.parquet").write_text("not at all")
    return ParquetFiles(folder, SCHEMA)


@pytest.mark.parametrize(
    ("make", "seen"), [(_json, ("carrier", "delay")), (_csv, ("k", "n")), (_parquet, ("k", "day")), (_no_parquet, ())]
)
def test_a_wrong_schema(runtime: Runtime, folder: Path, make: Callable[[Path], Source], seen: tuple[str, ...]) -> None:
    with pytest.raises(SourceSchemaError) as caught:
        runtime.catch_up(counting(make(folder)))
    assert (caught.value.source, caught.value.declared, caught.value.seen) == ("rows", ("k", "n", "day"), seen)
    assert str(folder) in caught.value.path
    assert_clear(caught.value)


def test_a_field_that_does_not_exist(folder: Path) -> None:
    stream = TridentTopology("t").new_stream("rows", JsonFiles(folder, SCHEMA))
    with pytest.raises(FieldError) as caught:
        stream.group_by("dya")
    assert (caught.value.field, caught.value.available) == ("dya", ("k", "n", "day"))
    assert 'did you mean "day"' in str(caught.value)
    with pytest.raises(FieldError):
        TridentTopology("t").new_stream("rows", JsonFiles(folder, SCHEMA), slice_by="date")


def test_unknown_names(runtime: Runtime, lake: Lake, folder: Path) -> None:
    (folder / "a.json").write_text(GOOD)
    topology = counting(JsonFiles(folder, SCHEMA))
    topology.new_query_stream("words").each("args", Split(), "k").state_query("by_k", "k", MapGet(), "rows")
    with pytest.raises(UnknownFlowError) as no_flow:
        flow("flihgts")
    with pytest.raises(UnknownStateError) as no_table:
        runtime.query(topology, "words", [("a",)])
    runtime.catch_up(topology)
    with pytest.raises(UnknownStateError, match="by_k") as no_state:
        lake.state("by_q")
    with pytest.raises(UnknownQueryError, match="words") as no_query:
        runtime.query(topology, "word", [("a",)])
    with pytest.raises(ReadPointError) as no_batch:
        lake.state("by_k").get([{"k": "a"}], txid=7)
    assert no_state.value.known == ("by_k",)
    assert no_query.value.known == ("words",)
    for error in (no_flow.value, no_table.value, no_state.value, no_batch.value):
        assert_clear(error)
    assert_clear(no_query.value, hint=False)


def test_fixed_batches_of_another_shape(spark: SparkSession, tmp_path: Path) -> None:
    for row in [("a",), ("a", 1, "d", 2), {"k": "a", "m": 1}, "a"]:
        with pytest.raises(SourceSchemaError) as caught:
            FixedBatches(SCHEMA, [[row]])
        assert caught.value.declared == ("k", "n", "day")
        assert_clear(caught.value)
    source = FixedBatches(SCHEMA, [[("a", "one", "d")]]).prepare("rows", tmp_path / "spool")
    with pytest.raises(SourceSchemaError) as caught:
        source.check("rows", spark)
    assert_clear(caught.value)


@pytest.mark.parametrize("slice_", ["?", "*", ""])
def test_reserved_slices(runtime: Runtime, folder: Path, slice_: str) -> None:
    with pytest.raises(DefinitionError, match="reserved"):
        runtime.backfill(counting(JsonFiles(folder, SCHEMA), slice_by="day"), [slice_])


def test_a_backfill_of_a_flow_without_slices(runtime: Runtime, folder: Path) -> None:
    with pytest.raises(TrideltaError, match="slice_by") as caught:
        runtime.backfill(counting(JsonFiles(folder, SCHEMA)), ["d1"])
    assert_clear(caught.value)


def test_a_state_of_another_schema(runtime: Runtime, lake: Lake, folder: Path) -> None:
    (folder / "a.json").write_text(GOOD)
    runtime.catch_up(counting(JsonFiles(folder, SCHEMA)))
    other = TridentTopology("counting")
    stream = other.new_stream("rows", JsonFiles(folder, SCHEMA))
    stream.group_by("k").persistent_aggregate(DeltaState("by_k"), [Count("rows"), Max("n", "total")])
    sliced = counting(JsonFiles(folder, SCHEMA), slice_by="day")
    for topology, problem in ((other, 'value "total"'), (sliced, "sliced")):
        with pytest.raises(StateSchemaError) as caught:
            runtime.catch_up(topology)
        assert caught.value.state == "by_k"
        assert problem in caught.value.problem
        assert_clear(caught.value)
    assert counts(lake) == {"a": (1, 1)}


def test_two_runs_at_once(spark: SparkSession, runtime: Runtime, lake: Lake, folder: Path) -> None:
    (folder / "a.json").write_text(GOOD)
    topology, hasty = counting(JsonFiles(folder, SCHEMA)), Runtime(spark, lake, lock_wait_seconds=0.2)
    running = runtime.stream(topology, trigger_seconds=0.2)
    try:
        for run in (hasty.catch_up, hasty.stream):
            with pytest.raises(LockedError) as caught:
                run(topology)
            assert caught.value.flow == "counting"
            assert_clear(caught.value)
    finally:
        running.stop()
    hasty.catch_up(topology)
    assert counts(lake) == {"a": (1, 1)}


def test_a_flow_that_cannot_start_in_one_of_its_streams(spark: SparkSession, lake: Lake) -> None:
    """None of its streams is left running, and no lock."""
    topology = TridentTopology("pair")
    for name in ("first", "second"):
        rows = topology.new_stream(name, FixedBatches("k string", [[("a",)]]))
        rows.group_by("k").persistent_aggregate(DeltaState(f"by_{name}"), [Count("rows")])
    hasty = Runtime(spark, lake, lock_wait_seconds=0.2)
    with Checkpoint("pair", lake.checkpoint_path("pair", "second")).running(1), pytest.raises(LockedError):
        hasty.stream(topology)
    assert not spark.streams.active
    hasty.catch_up(topology)
    assert [lake.state(f"by_{name}").scan()["rows"].to_pylist() for name in ("first", "second")] == [[1], [1]]


# --- records that do not fit ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("slice_by", [None, "day"])
def test_json_records_that_do_not_fit(runtime: Runtime, lake: Lake, folder: Path, slice_by: str | None) -> None:
    torn, wrong, end = '{"k":"a","n":1,"da', '{"k":"a","n":1,"day":{"x":1', '{"k":"b","n":"two","day":"d1"}'
    (folder / "a.json").write_text("\n".join([GOOD, torn, GOOD, end, wrong]))
    report = runtime.catch_up(counting(JsonFiles(folder, SCHEMA), slice_by=slice_by))
    assert (report.received, report.quarantined) == (5, 3)
    assert counts(lake) == {"a": (2, 2)}
    assert quarantined(lake) == sorted(("source", "malformed", row) for row in (torn, wrong, end))
    assert {row["file"] for row in lake.quarantine("counting").scan().to_pylist()} == {f"file:{folder}/a.json"}


def test_a_wrong_type_in_a_field_that_nobody_reads(runtime: Runtime, lake: Lake, folder: Path) -> None:
    """One answer for the row: in the state or in quarantine, never both."""
    (folder / "a.json").write_text(GOOD + '\n{"k":"a","n":"one","day":"d1"}\n')
    topology = TridentTopology("counting")
    topology.new_stream("rows", JsonFiles(folder, SCHEMA)).group_by("k").persistent_aggregate(
        DeltaState("by_k"), [Count("rows")]
    )
    runtime.catch_up(topology)
    assert lake.state("by_k").scan().to_pylist() == [{"k": "a", "rows": 1}]
    assert len(quarantined(lake)) == 1


def test_csv_lines_that_do_not_fit(runtime: Runtime, lake: Lake, folder: Path) -> None:
    (folder / "a.csv").write_text("k,n,day\na,1,d1\na,many,d1\na\na,2,d1,more\na,3,d1\n")
    report = runtime.catch_up(counting(CsvFiles(folder, SCHEMA)))
    assert (report.received, report.quarantined) == (5, 3)
    assert counts(lake) == {"a": (2, 4)}
    assert [row for _, _, row in quarantined(lake)] == ["a", "a,2,d1,more", "a,many,d1"]


def test_a_row_without_its_slice(runtime: Runtime, lake: Lake, folder: Path) -> None:
    none = '{"k":"a","n":5,"day":null}'
    (folder / "a.json").write_text(GOOD + "\n" + none + '\n{"k":"a","n":7}\n')
    topology = counting(JsonFiles(folder, SCHEMA), slice_by="day")
    runtime.catch_up(topology)
    expected = [("source", "no_slice", none), ("source", "no_slice", '{"k":"a","n":7,"day":null}')]
    assert (counts(lake), quarantined(lake)) == ({"a": (1, 1)}, expected)
    runtime.backfill(topology, ["d1"])
    assert (counts(lake), quarantined(lake)) == ({"a": (1, 1)}, expected)


@pytest.mark.parametrize("reserved", ["*", "?", "!", ""])
def test_a_row_with_a_reserved_slice(runtime: Runtime, lake: Lake, folder: Path, reserved: str) -> None:
    """The engine keeps rows of its own under these names."""
    (folder / "a.json").write_text(f'{GOOD}\n{{"k":"a","n":5,"day":"{reserved}"}}\n')
    runtime.catch_up(counting(JsonFiles(folder, SCHEMA), slice_by="day"))
    expected = [("source", "no_slice", f'{{"k":"a","n":5,"day":"{reserved}"}}')]
    assert (counts(lake), quarantined(lake)) == ({"a": (1, 1)}, expected)


HOSTILE = [
    "a/b",
    "..",
    "../../x",
    "a\nb",
    "a ",
    " a",
    "a'b\"c`d",
    "a%2Fb\\",
    "a=b",
    "a\u2028b\u2029c\x85d",
    "日" * 27,
    "x" * 248,
    "/" * 82,
]
UNFIT = ["x" * 249, "/" * 83, "日" * 28, "a\0b", "__HIVE_DEFAULT_PARTITION__"]


@pytest.mark.parametrize(
    "by_spark",
    [pytest.param(False, id="by the driver"), pytest.param(True, id="by Spark", marks=pytest.mark.exhaustive)],
)
def test_slices_with_names_of_any_kind(
    runtime: Runtime, lake: Lake, folder: Path, by_spark: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot name a folder goes to quarantine row by row, and keeps nothing else from being counted."""
    hostile = HOSTILE
    if by_spark:
        monkeypatch.setattr(stream_batch, "DRIVER_BYTES", -1)
    rows = [{"k": str(n), "n": 1, "day": day} for n, day in enumerate([*hostile, *UNFIT])]
    (folder / "a.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    topology = counting(JsonFiles(folder, SCHEMA), slice_by="day")
    report = runtime.catch_up(topology)
    assert (report.received, report.quarantined) == (len(rows), len(UNFIT))
    kept = {str(n): (1, 1) for n in range(len(hostile))}
    assert counts(lake) == kept
    found = [(rule, json.loads(row)["day"]) for _, rule, row in quarantined(lake)]
    expected = [(("no_slice" if day.startswith("_") else "bad_slice"), day) for day in UNFIT]
    assert sorted(found) == sorted(expected)
    (folder / "b.json").write_text(json.dumps({"k": "0", "n": 5, "day": hostile[0]}))
    runtime.backfill(topology, hostile)
    assert counts(lake) == kept | {"0": (2, 6)}
    assert len(quarantined(lake)) == len(UNFIT)
    assert made_slices(lake.state("by_k")) == frozenset(hostile)
    with pytest.raises(DefinitionError, match="cannot be a slice: it takes 249 bytes"):
        runtime.backfill(topology, [UNFIT[0]])


def test_a_slice_that_is_not_text(runtime: Runtime, lake: Lake, folder: Path) -> None:
    """Spark keeps any bytes in a string; a table's log keeps UTF-8 alone."""
    (folder / "a.txt").write_bytes(b"good".hex().encode() + b"\n" + b"b\xff\xfed".hex().encode())
    topology = TridentTopology("counting")
    stream = topology.new_stream("rows", TextFiles(folder, "day"), slice_by="cast(unhex(day) as string)")
    stream.aggregate(Count("rows"), "rows").partition_persist(DeltaState("by_k", layout="rows"), "rows")
    runtime.catch_up(topology)
    assert lake.state("by_k").scan().to_pylist() == [{"rows": 1}]
    ((stage, rule, _),) = quarantined(lake)
    assert (stage, rule) == ("source", "bad_slice")


def test_text_that_is_not_utf8(runtime: Runtime, lake: Lake, folder: Path) -> None:
    """The table can be read: a line is made valid, other bytes are refused with their column."""
    (folder / "a.txt").write_bytes(b"good\ncaf\xe9\n")
    (folder.parent / "parquet").mkdir()
    topology = TridentTopology("counting")
    topology.new_stream("rows", TextFiles(folder)).partition_persist(DeltaState("held"), "line")
    runtime.catch_up(topology)
    assert sorted(row["line"] for row in lake.state("held").scan().to_pylist()) == ["caf\ufffd", "good"]
    pq.write_table(pa.table({"k": pa.array([b"caf\xe9"]), "n": [1]}), folder.parent / "parquet" / "a.parquet")
    other = TridentTopology("other")
    rows = other.new_stream("rows", ParquetFiles(folder.parent / "parquet", "k string, n bigint"))
    rows.partition_persist(DeltaState("kept"), "n")
    rows.group_by("k").persistent_aggregate(DeltaState("by_k"), [Sum("n", "total")])
    with pytest.raises(PoisonBatchError, match=r'"by_k": column k of row 0 holds the bytes caf\\xe9'):
        runtime.catch_up(other)
    assert [lake.state(name).scan().to_pylist() for name in ("kept", "by_k")] == [[], []]


# --- batches that fail ----------------------------------------------------------------------------------------------


def halve(n: int) -> Iterator[int]:
    if n % 2:
        raise ValueError(f"{n} is odd")
    yield n // 2


def halving(folder: Path, *, mended: bool = False) -> TridentTopology:
    topology = TridentTopology("counting")
    stream = topology.new_stream("rows", JsonFiles(folder, SCHEMA, max_files_per_batch=1), slice_by="day")
    stream = stream.filter("n % 2 = 0") if mended else stream
    stream = stream.each("n", halve, "half bigint")
    stream.group_by("k").persistent_aggregate(DeltaState("by_k"), [Count("rows"), Sum("half", "total")])
    return topology


def put(folder: Path, name: str, rows: Sequence[tuple[str, Any, str | None]]) -> None:
    lines = [json.dumps(dict(zip(("k", "n", "day"), row, strict=True))) for row in rows]
    (folder / name).write_text("\n".join(lines) + "\n")


@pytest.fixture
def poisoned(folder: Path) -> Path:
    put(folder, "1.json", [("a", 2, "d1")])
    put(folder, "2.json", [("a", 4, "d1"), ("a", 3, "d2")])
    put(folder, "3.json", [("a", 6, "d2")])
    for number, file in enumerate(sorted(folder.iterdir())):
        import os

        os.utime(file, (number, number))
    return folder


@pytest.fixture
def poison(runtime: Runtime, poisoned: Path) -> PoisonBatchError:
    with pytest.raises(PoisonBatchError) as caught:
        runtime.catch_up(halving(poisoned))
    return caught.value


BATCH = [("batch", "poison", '{"k":"a","n":3,"day":"d2"}'), ("batch", "poison", '{"k":"a","n":4,"day":"d1"}')]


def test_a_function_that_raises(lake: Lake, poison: PoisonBatchError) -> None:
    """The error names the step, the user's line and the row; the batch is kept whole, those before it are committed."""
    assert (poison.flow, poison.txid, poison.attempts) == ("counting", 1, 3)
    assert "each" in poison.reason
    assert f"{Path(__file__).name}:" in poison.reason
    assert "(3,)" in poison.reason
    assert "3 is odd" in poison.reason
    assert "tridelta skip counting 1" in poison.hint
    assert str(lake.quarantine_path("counting")) == poison.quarantine
    assert_clear(poison)
    assert quarantined(lake) == BATCH
    assert counts(lake) == {"a": (1, 1)}


@pytest.mark.exhaustive
def test_a_poison_batch_skipped(runtime: Runtime, lake: Lake, poisoned: Path, poison: PoisonBatchError) -> None:
    topology = halving(poisoned)
    with pytest.raises(NoPoisonBatchError, match="nothing was skipped"):
        runtime.skip(topology, poison.txid + 1)
    runtime.skip(topology, poison.txid)
    report = runtime.catch_up(topology)
    assert [(batch.txid, batch.skipped) for batch in report.batches] == [(1, True), (2, False)]
    assert counts(lake) == {"a": (2, 4)}
    assert quarantined(lake) == BATCH
    assert lake.state("by_k").get([{"k": "a"}], txid=1) == [{"k": "a", "rows": 1, "total": 1}]
    assert not runtime.catch_up(topology).batches


@pytest.mark.exhaustive
@pytest.mark.usefixtures("poison")
def test_a_poison_batch_mended(runtime: Runtime, lake: Lake, poisoned: Path) -> None:
    with pytest.raises(PoisonBatchError):
        runtime.catch_up(halving(poisoned))
    assert quarantined(lake) == BATCH
    runtime.catch_up(halving(poisoned, mended=True))
    assert counts(lake) == {"a": (3, 6)}
    assert quarantined(lake) == []


@pytest.mark.exhaustive
def test_a_backfill_leaves_a_poison_batch_in_quarantine(
    runtime: Runtime, lake: Lake, poisoned: Path, poison: PoisonBatchError
) -> None:
    runtime.skip(halving(poisoned), poison.txid)
    runtime.catch_up(halving(poisoned))
    runtime.backfill(halving(poisoned, mended=True), ["d2"])
    assert counts(lake) == {"a": (2, 4)}
    assert quarantined(lake) == BATCH


@pytest.mark.exhaustive
def test_a_function_that_raises_in_a_backfill(runtime: Runtime, lake: Lake, poisoned: Path) -> None:
    runtime.backfill(halving(poisoned), ["d1"])
    with pytest.raises(BatchError, match="3 is odd") as caught:
        runtime.backfill(halving(poisoned), ["d2"])
    assert f"{Path(__file__).name}:" in str(caught.value)
    assert_clear(caught.value)
    assert counts(lake) == {"a": (2, 3)}


def test_a_function_that_raises_in_a_query(runtime: Runtime) -> None:
    topology = TridentTopology("t")
    topology.new_query_stream("halves", "n bigint").each("n", halve, "half bigint")
    assert runtime.query(topology, "halves", [(4,)]) == [{"n": 4, "half": 2}]
    with pytest.raises(BatchError, match="3 is odd") as caught:
        runtime.query(topology, "halves", [(3,)])
    assert_clear(caught.value)


def gated(folder: Path, limit: int) -> TridentTopology:
    topology = TridentTopology("counting")
    stream = topology.new_stream("rows", JsonFiles(folder, SCHEMA, max_files_per_batch=1), slice_by="day")
    stream.partition_persist(DeltaState("before"))
    stream = stream.gate(fail("column_values_to_be_between", column="n", max_value=limit, name="small"), name="sizes")
    stream.group_by("k").persistent_aggregate(DeltaState("by_k"), [Count("rows"), Sum("n", "total")])
    return topology


def test_a_batch_that_a_gate_refuses(runtime: Runtime, lake: Lake, poisoned: Path) -> None:
    with pytest.raises(PoisonBatchError) as caught:
        runtime.catch_up(gated(poisoned, 3))
    assert caught.value.txid == 1
    assert 'gate "sizes"' in caught.value.reason
    assert_clear(caught.value)
    assert counts(lake) == {"a": (1, 2)}
    assert quarantined(lake) == BATCH
    runtime.catch_up(gated(poisoned, 9))
    assert counts(lake) == {"a": (4, 15)}
    assert lake.state("before").count() == 4
    assert quarantined(lake) == []


def test_a_fresh_checkpoint_that_continues_leaves_the_txid_of_a_poison_batch_alone(
    runtime: Runtime, lake: Lake, poisoned: Path
) -> None:
    with pytest.raises(PoisonBatchError) as caught:
        runtime.catch_up(gated(poisoned, 3))
    assert (caught.value.txid, quarantined(lake)) == (1, BATCH)
    shutil.rmtree(lake.checkpoint_path("counting", "rows"))
    # From the first file on: it becomes batch 2 now, and the batch that the gate refuses batch 3. What was kept before stays.
    with pytest.raises(PoisonBatchError) as caught:
        runtime.catch_up(gated(poisoned, 3), on_fresh_checkpoint="continue")
    assert (caught.value.txid, quarantined(lake)) == (3, sorted(2 * BATCH))


# --- a fresh checkpoint ---------------------------------------------------------------------------------------------


@pytest.fixture
def fresh(runtime: Runtime, lake: Lake, folder: Path) -> TridentTopology:
    """A flow whose table is there and whose checkpoint is gone; its one file has a good row and a torn one."""
    (folder / "a.json").write_text(GOOD + '\n{"k":"b"')
    topology = counting(JsonFiles(folder, SCHEMA))
    runtime.catch_up(topology)
    shutil.rmtree(lake.checkpoint_path("counting", "rows"))
    return topology


def test_a_fresh_checkpoint_is_refused(runtime: Runtime, lake: Lake, fresh: TridentTopology) -> None:
    with pytest.raises(FreshCheckpointError) as caught:
        runtime.catch_up(fresh)
    assert (caught.value.flow, caught.value.state, caught.value.last_txid, caught.value.epoch) == (
        "counting", "by_k", 0, 1,
    )  # fmt: skip
    assert_clear(caught.value)
    assert counts(lake) == {"a": (1, 1)}


def test_a_fresh_checkpoint_continues(runtime: Runtime, lake: Lake, fresh: TridentTopology) -> None:
    report = runtime.catch_up(fresh, on_fresh_checkpoint="continue")
    assert [batch.txid for batch in report.batches] == [1]
    assert counts(lake) == {"a": (2, 2)}
    assert lake.state("by_k").get([{"k": "a"}], txid=0) == [{"k": "a", "rows": 1, "total": 1}]
    assert not runtime.catch_up(fresh).batches


def test_a_fresh_checkpoint_resets(runtime: Runtime, lake: Lake, fresh: TridentTopology) -> None:
    report = runtime.catch_up(fresh, on_fresh_checkpoint="reset")
    assert [batch.txid for batch in report.batches] == [0]
    assert counts(lake) == {"a": (1, 1)}
    assert len(quarantined(lake)) == 1
