"""Files that are laid out otherwise than the first: by name, or refused line by line; streams, replays and backfills alike."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import threading
import zlib
from collections.abc import Callable
from contextlib import nullcontext, suppress
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pipelines import Lake, Runtime
from pipelines.errors import SourceError, SourceSchemaError
from pipelines.execution.replays.selection import Selection
from pipelines.places.location import Location
from pipelines.quality import drop
from pipelines.sources import CsvFiles, FileSource, JsonFiles, Kafka, ParquetFiles
from pipelines.sources.base import _CLOSED
from pipelines.sources.folder import is_listed, links_out
from pipelines.sources.layouts import (
    OTHER_FIELDS,
    Header,
    ParquetLayout,
    as_text,
    has_other_fields,
    header_of,
    why_not_read,
)
from pipelines.trident import DeltaState, TridentTopology

SCHEMA = "k string, n bigint, day string"


class Kept:
    """A flow that keeps the rows of a folder."""

    def __init__(self, spark: SparkSession, root: Path, source: FileSource, slice_by: str | None = "day") -> None:
        self.lake = Lake(root / "lake")
        self.runtime = Runtime(spark, self.lake)
        self.topology = TridentTopology("kept")
        self.topology.new_stream("rows", source, slice_by=slice_by).partition_persist(DeltaState("held"))

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        found = self.lake.state("held").scan().to_pylist()
        return sorted((row["k"], row["n"]) for row in found)

    @property
    def refused(self) -> list[tuple[str, str, str]]:
        found = self.lake.quarantine("kept").scan().to_pylist()
        return sorted((row["rule"], row["reason"].rpartition(": ")[2], row["row"]) for row in found)


@pytest.mark.slow
def test_csv_columns_go_by_their_names(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.csv").write_text("k,n,day\na,1,d1\n")
    flow = Kept(spark, tmp_path, CsvFiles(folder, SCHEMA))
    flow.runtime.catch_up(flow.topology)
    (folder / "b[1].csv").write_text('day,"n",k\nd1,2,b\nd1,many,x\n')
    (folder / "c.csv.gz").write_bytes(gzip.compress(b"more,N,k,day\nz,3,c,d1\n"))
    (folder / "d.csv").write_text("k,amount,day\nq,9,d1\nr,8,d1\n")
    (folder / "e.csv").write_text("\ufeffk,n,day\ne,4,d1\n")
    flow.runtime.catch_up(flow.topology)
    expected = [("a", 1), ("b", 2), ("c", 3), ("e", 4)]
    refused = [
        ("other_fields", "day, n, k", "d1,many,x"),
        ("other_fields", "k, amount, day", "q,9,d1"),
        ("other_fields", "k, amount, day", "r,8,d1"),
    ]
    assert (flow.rows, flow.refused) == (expected, refused)
    flow.runtime.backfill(flow.topology, ["d1"])
    assert (flow.rows, flow.refused) == (expected, refused)


@pytest.mark.slow
def test_json_under_other_names_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.json").write_text('{"k":"a","n":1,"day":"d1"}\n')
    flow = Kept(spark, tmp_path, JsonFiles(folder, SCHEMA))
    flow.runtime.catch_up(flow.topology)
    other = '{"key":"b","amount":2}'
    (folder / "b.json").write_text(f'{other}\n{{"k":"b","n":2,"day":"d1"}}\n\n{{"k":\n{{"k":"e","day":"d1"}}\n')
    flow.runtime.catch_up(flow.topology)
    held = [("a", 1), ("b", 2), ("e", None)]
    refused = [
        ("malformed", "the record does not parse as the declared schema", '{"k":'),
        ("other_fields", "key, amount", other),
    ]
    assert (flow.rows, flow.refused) == (held, refused)
    flow.runtime.backfill(flow.topology, ["d1"])
    assert (flow.rows, flow.refused) == (held, refused)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "sep"),
    [({"encoding": "UTF-8"}, "\n"), ({"lineSep": "|"}, "|"), ({"charset": "utf-8", "lineSep": "\x1e"}, "\x1e")],
)
def test_json_under_other_names_is_refused_line_by_line(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], sep: str
) -> None:
    folder, other = tmp_path / "in", '{"key":"\u00e9","amount":2}'
    folder.mkdir()
    (folder / "a.json").write_text('{"k":"a","n":1,"day":"d1"}')
    (folder / "b.json").write_text(sep.join((other, '{"k":"b","n":2,"day":"d1"}', '{"k":"c"}{}', "\n")))
    flow = Kept(spark, tmp_path, JsonFiles(folder, SCHEMA, **options))
    flow.runtime.catch_up(flow.topology)
    assert flow.rows == [("a", 1), ("b", 2)]
    assert [(rule, row) for rule, _, row in flow.refused] == [("malformed", '{"k":"c"}{}'), ("other_fields", other)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"multiLine": True}, "a record with none of the declared fields, not read"),
        (
            {"encoding": "UTF-16LE", "lineSep": "\n"},
            "a line with none of the declared fields or more than one value, not read",
        ),
    ],
)
def test_json_under_other_names_is_refused_by_file(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any], why: str
) -> None:
    folder, good = tmp_path / "in", '{"k":"a","n":1,"day":"d1"}'
    folder.mkdir()
    for name, text in (("a", good), ("b", '{"key":"b","amount":2}')):
        (folder / f"{name}.json").write_text(text, options.get("encoding", "utf-8"))
    flow = Kept(spark, tmp_path, JsonFiles(folder, SCHEMA, **options))
    flow.runtime.catch_up(flow.topology)
    refused = [("not_read", why, f"{folder}/b.json: {why}")]
    assert (flow.rows, [(rule, row) for rule, _, row in flow.refused]) == (
        [("a", 1)],
        [(rule, row) for rule, _, row in refused],
    )
    flow.runtime.backfill(flow.topology, ["d1"])
    assert flow.rows == [("a", 1)]


def test_which_files_of_json_have_other_fields(tmp_path: Path) -> None:
    file, encodings = (
        tmp_path / "a.json",
        ("utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"),
    )
    whole = JsonFiles(tmp_path, "k string", multiLine=True)
    good = ('{"k":\n1}', '[{"k":1},\n{"k":2,"x":1}]', "[1]", "{}", "[]", '{"k":', "", '{"x":"' + "x" * 70_000 + '"}')
    for encoding in encodings:
        for text in good:
            file.write_text(text, encoding)
            assert whole._all_layouts([str(file)]) == {None: [str(file)]}, (encoding, text[:20])
        for text in ('{"x":\n{"k":1}}', '[{"k":1}, {"x":2}]', '{"k":1}{"k":2}'):
            file.write_text(text, encoding)
            assert None not in whole._all_layouts([str(file)]), (encoding, text)
    for given in ("ISO-8859-1", "US-ASCII", "UTF-16LE", "UTF-16BE"):
        lines = JsonFiles(tmp_path, "k string", encoding=given, lineSep=";")
        file.write_text('{"k":1};{};torn', given)
        assert lines._all_layouts([str(file)]) == {None: [str(file)]}, given
        for text in ('{"k":1};{"x":2}', '{"k":1}{};{"k":1}'):
            file.write_text(text, given)
            assert None not in lines._all_layouts([str(file)]), (given, text)


@pytest.mark.slow
def test_a_record_that_begins_like_a_mark_of_the_engine(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    texts, other = ["\0far", "\0farX", "\0fieldsX\0y", "\0textX", "\0timeX", "\0x"], r'{"\u0000":1}'
    (folder / "a.json").write_text("\n".join(['{"k":"a","n":1,"day":"d1"}', *texts]))
    (folder / "b.json").write_text("\n".join([*texts, other]))
    flow = Kept(spark, tmp_path, JsonFiles(folder, SCHEMA))
    flow.runtime.catch_up(flow.topology)
    reason = "the record does not parse as the declared schema"
    refused = sorted([("malformed", reason, text) for text in texts] * 2 + [("other_fields", "", other)])
    assert (flow.rows, flow.refused) == ([("a", 1)], refused)
    flow.runtime.replay_quarantine(flow.topology, Selection(reasons=("malformed",)))
    assert (flow.rows, flow.refused) == ([("a", 1)], refused)


FOLLOWED = (
    '{"k":"x"}{"k":"b"}',
    '{"k":"x"},{"k":"b"}',
    '{"k":"x"} {',
    '{"k":"x"}]',
    '{"k":"x"}}',
    '{"k":"x"}] {"k":"b"}',
    '{"k":"x"},1] {"k":"b"}',
    '{"k":"x","more":{"a":[{},{}]}} y }',
    '{"k":"x","more":{}},"n":{"a":1}}',
    '{"k":"\\\\"}{"a":"}',
)
"""Lines of JSON whose first value is not all there is."""
ALONE = (
    '{"k":"x"}',
    ' {"k":"x"} \t',
    '{"k":"x","more":[{"a":1},{"a":"}{"}]}',
    '{"more":{"a":{}},"k":"x"}',
    '{"k":"x"}\0',
    '{"k":"x","a":{}}\0\0',
)


def has_more_values(file: str, options: dict[str, Any]) -> bool:
    return why_not_read(file, ["k"], options) == "more than one JSON value, not read"


def test_what_follows_the_first_value(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    for line in FOLLOWED:
        file.write_text(f'{{"k":\n{line}\n')
        assert has_other_fields(str(file), ["k"], {}), line
        file.write_text(f"\ufeff{line}")
        assert has_more_values(str(file), {"multiLine": True}), line
    file.write_text("\n".join(ALONE))
    assert not has_other_fields(str(file), ["k"], {})
    for text in (
        '[{"k":"x"},\n{"k":"y"}]\n',
        '{"k":\n"x"}',
        '{"k":',
        "",
        '{"k":"' + "x" * 70_000 + '"}{}',
        "{" * 9_000,
    ):
        file.write_text(text)
        assert not has_more_values(str(file), {}), text[:20]
    file.write_bytes('{"k":"x"}{}'.encode("utf-16-le"))
    assert has_more_values(str(file), {"encoding": "UTF-16LE"})
    file.write_text('{"k":"x"} // as of today')
    assert not has_more_values(str(file), {"allowComments": True})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, '{"k":"x"}\n"n":2}\n2024-01-01 restarted\ntrue}\n'),  # torn: Spark says so of each line
        ({"allowComments": True}, '{"k":"x"} // c\n'),
        ({"lineSep": "|\r\n"}, '{"k":"x"}|\r\n{"k":"y"}|\r\n'),
    ],
)
def test_what_spark_reads_or_refuses_itself_is_no_reason_to_refuse_a_file(
    tmp_path: Path, options: dict[str, Any], text: str
) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(text.encode())
    assert not has_other_fields(str(file), ["k"], {"encoding": "ISO-8859-1", **options})


def test_braces_that_are_closed_are_one_value() -> None:
    """Whatever Python reads a value at the beginning of, it then reads to its end."""
    closed = re.compile(_CLOSED.replace(r"\z", r"\Z"))
    parts = ['{"a":', '{"a":[', "{", "}", "]", '"', "\\", "'", ",", '"a":1', '"}"', '"{"', '{"\\"":{}}', "1", " ", "{}"]
    chance, found = random.Random(5), 0
    for _ in range(200_000):
        text = "{" + "".join(chance.choices(parts, k=chance.randrange(1, 7))) + "}"
        if closed.search(text):
            with suppress(ValueError):
                found += 1
                assert json.JSONDecoder().raw_decode(text)[1] == len(text), text
    assert found > 1000
    assert not any(map(closed.search, FOLLOWED))
    deep = ['{"a":' * deep + "1" + "}" * deep for deep in (8, 9)]
    assert [bool(closed.search(text)) for text in deep] == [True, False]


@pytest.mark.slow
def test_a_line_of_json_is_one_value(spark: SparkSession, tmp_path: Path) -> None:
    lines = [*FOLLOWED, *ALONE, "", "null", "[]", '[{"k":"x"},{"k":"y"}]']
    frame = spark.createDataFrame([(line,) for line in lines], "v string")
    for source in (JsonFiles(tmp_path, "k string"), Kafka("h:1", "t", "k string")):
        parsed = source.parsed(F.col("v"))
        assert parsed is not None
        read = {row["v"]: row["r"] for row in frame.select("v", parsed.alias("r")).collect()}
        good = [line for line, record in read.items() if record is not None and record["_corrupt"] is None]
        assert good == list(ALONE), source
    free = JsonFiles(tmp_path, "k string", allowUnquotedFieldNames=True, allowComments=True).parsed(F.col("v"))
    assert free is not None
    ((record,),) = spark.createDataFrame([("{k:'x', more:{}} // y",)], "v string").select(free).collect()
    assert (record["k"], record["_corrupt"]) == ("x", None)
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.json").write_text("\n".join([*FOLLOWED, '{"k":"a","n":1,"day":"d1"}']))
    flow = Kept(spark, tmp_path, JsonFiles(folder, SCHEMA))
    flow.runtime.catch_up(flow.topology)
    assert flow.rows == [("a", 1)]
    assert [row for *_, row in flow.refused] == sorted(FOLLOWED)


@pytest.mark.slow
def test_a_replay_refuses_an_object_with_none_of_the_fields(spark: SparkSession, tmp_path: Path) -> None:
    lines = ['{"other":1}', '{"other":null,"K":2}', "{}", '{"k":null}', '{"k":"x","other":1}', "null"]
    frame = spark.createDataFrame([(line,) for line in lines], "v string")
    for source in (JsonFiles(tmp_path, "k string, n bigint"), Kafka("h:1", "t", "k string, n bigint")):
        parsed = source.parsed(F.col("v"))
        assert parsed is not None
        read = {row["v"]: row["r"] for row in frame.select("v", parsed.alias("r")).collect()}
        good = [line for line, record in read.items() if record is not None and record["_corrupt"] is None]
        assert good == lines[2:5], source
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.json").write_text('{"k":"a","n":1,"day":"d1"}\n{"other":1}\n')
    flow = Kept(spark, tmp_path, JsonFiles(folder, SCHEMA), slice_by=None)
    flow.runtime.catch_up(flow.topology)
    assert [row for *_, row in flow.refused] == ['{"other":1}']
    flow.runtime.replay_quarantine(flow.topology, Selection())
    assert (flow.rows, [row for *_, row in flow.refused]) == ([("a", 1)], ['{"other":1}'])


@pytest.mark.slow
def test_a_file_that_is_read_whole_is_one_value(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.json").write_text('[{"k":"a","n":1,"day":"d1"},\n{"k":"b","n":2,"day":"d1"}]\n')
    (folder / "b.json").write_text('{"k":"c","n":3,"day":"d1"}\n{"k":"d","n":4,"day":"d1"}\n')
    flow = Kept(spark, tmp_path, JsonFiles(folder, SCHEMA, multiLine=True))
    flow.runtime.catch_up(flow.topology)
    assert flow.rows == [("a", 1), ("b", 2)]
    assert [row for *_, row in flow.refused] == [f"{folder}/b.json: more than one JSON value, not read"]


@pytest.mark.parametrize("folder", ["s3a://bucket/in", "hdfs://name:8020/in"])
def test_a_file_of_a_store_is_one_value(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [f"{folder}/{name}.json" for name in "abc"]
    texts = dict(zip(files, (b'{"k":"x"}\n{"k":"y"}\n', b'{"k":"x"}\n', b'{"k":"x"}\0'), strict=True))
    monkeypatch.setattr(Location, "beginning", lambda file, _most: texts[str(file)])
    unread = JsonFiles(folder, "k string", multiLine=True)._unread(files)
    assert unread == {files[0]: "more than one JSON value, not read"}


def test_a_parquet_file_of_a_store_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several are looked at at once."""
    files = {
        f"in/{n}.parquet": pa.table({name: [1] for name in names}) for n, names in enumerate(("k", "x", "kx", "k"))
    }
    # Its footer is longer than what is looked at.
    files["in/4.parquet"] = pa.table({f"c{n}": [1] for n in range(1000)})
    asked, together = [], threading.Barrier(len(files), timeout=20)

    class Ends:
        def end(self, key: str, length: int) -> bytes:
            if key not in asked:
                together.wait()
            asked.append(key)
            out = BytesIO()
            pq.write_table(files[key], out)
            return out.getvalue()[-length:]

    monkeypatch.setattr(Location, "store", Ends())
    keys = [f"s3a://bucket/{key}" for key in files]
    layouts = ParquetFiles("s3a://bucket/in", "k bigint").layouts(keys)
    of_x = next(files for layout, files in layouts.items() if isinstance(layout, ParquetLayout) and "x" in layout.names)
    assert [len(layouts[None]), of_x, len(layouts)] == [3, [keys[1]], 3]
    assert sorted(asked) == sorted([*files, "in/4.parquet"])


def test_the_end_of_a_parquet_file_of_a_store_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may say a footer of 4 GB, which would be asked of the store."""
    tails = {"torn": b"\xff\xff\xff\xffPAR2", "long": b"\xff\xff\xff\xffPAR1", "short": b"R1", "empty": b""}
    asked: list[int] = []

    class Ends:
        def end(self, key: str, length: int) -> bytes:
            asked.append(length)
            tail = tails[key.removeprefix("in/").removesuffix(".parquet")]
            return b"x" * 100 * bool(tail) + tail

    monkeypatch.setattr(Location, "store", Ends())
    files = [f"s3a://bucket/in/{name}.parquet" for name in (*tails, "a\n")]
    source = ParquetFiles("s3a://bucket/in", "k bigint")
    layouts = source._all_layouts(files)
    assert layouts.pop(None) == [file for file in files[:-1] if "long" not in file]
    assert sorted(layouts.values()) == [[files[-1]], ["s3a://bucket/in/long.parquet"]]
    assert asked == [64 * 1024] * len(tails)
    monkeypatch.setattr(Location, "exists", lambda _: False)
    with pytest.raises(SourceSchemaError, match="footer of more than 64 MB"):
        source.check_file("s", Location.of("s3a://bucket/in/long.parquet"))


@pytest.mark.slow
def test_a_gate_refuses_what_is_no_number(spark: SparkSession, tmp_path: Path) -> None:
    """JSON's "NaN" and "Infinity" are values of a double; a sum with one of them is none any more."""
    folder = tmp_path / "in"
    folder.mkdir()
    values = ["1.5", '"NaN"', '"Infinity"', '"-Infinity"', "null"]
    (folder / "a.json").write_text("".join(f'{{"v":{value}}}\n' for value in values))
    topology = TridentTopology("kept")
    most = 1.7976931348623157e308
    bounds = {"column": "v", "min_value": -most, "max_value": most}
    stream = topology.new_stream("rows", JsonFiles(folder, "v double"))
    stream.gate(drop("column_values_to_be_between", **bounds), name="numbers").partition_persist(DeltaState("held"))
    lake = Lake(tmp_path / "lake")
    Runtime(spark, lake).catch_up(topology)
    assert sorted(lake.state("held").scan()["v"].to_pylist(), key=str) == [1.5, None]
    refused = sorted(json.loads(row["row"])["v"] for row in lake.quarantine("kept").scan().to_pylist())
    assert refused == ["-Infinity", "Infinity", "NaN"]


def test_headers(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("# made by\n\n'a;b'; n ;k\n1;2;3\n")
    header = header_of(str(file), {"sep": ";", "quote": "'", "comment": "#"})
    assert header == Header(("a;b", "n", "k"), "'a;b'; n ;k")
    assert header.schema([("k", "string"), ("n", "bigint")]) == "`_other0` string, `n` bigint, `k` string"
    assert header.lacks(["K", "day"]) == ["day"]
    assert Header(("k", "K"), "").lacks(["k"]) == ["k"]
    assert header_of(str(tmp_path / "none.csv"), {}) is None
    assert header_of(str(tmp_path / "a.csv.zst"), {}) is None


def test_a_first_file_that_lacks_a_field(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,k\n1,a\n")
    CsvFiles(tmp_path, "k string, n bigint").check_file("s", tmp_path / "a.csv")
    with pytest.raises(SourceSchemaError, match="its header lacks day"):
        CsvFiles(tmp_path, SCHEMA).check_file("s", tmp_path / "a.csv")


def test_other_fields(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"k":1}\n[1]\n{}\ntorn\n')
    assert not has_other_fields(str(file), ["k"], {})
    assert has_other_fields(str(file), ["other"], {})
    assert not has_other_fields(str(tmp_path / "none.json"), ["k"], {})


def test_a_first_file_of_json_that_is_read_whole(tmp_path: Path) -> None:
    """What stands on a line of its own within a record is none."""
    file, source = (
        tmp_path / "a.json",
        JsonFiles(tmp_path, "order bigint, items array<struct<sku:string>>", multiLine=True),
    )
    for text in ('{"order": 1, "items": [\n{"sku": "a"}\n]}', '[\n{"order": 1}, {"sku": "a"}\n]', "[1]", "torn"):
        file.write_text(text)
        source.check_file("s", file)
    for text in ('{"other": [\n{"order": 1}\n]}', '[\n{"other": 1}]'):
        file.write_text(text)
        with pytest.raises(SourceSchemaError, match=r"no declared field occurs in it; .* seen: other"):
            source.check_file("s", file)


@pytest.mark.parametrize(
    ("content", "options"),
    [
        ("k||n||day\n1||2||3\n", {"sep": "||"}),
        ("k;n;day\n1;2;3\n", {"delimiter": ";"}),
        ("\ufeffk,n,day\n", {}),
        ("\ufeffk,n,day\n", {"encoding": "UTF-8"}),
        ("k,n,day\n", {"encoding": "UTF-16"}),
        ("k,n,day\n", {"encoding": "UTF-16LE"}),
        ("k,n,day\n", {"charset": "UTF-16BE"}),
        ("k,n,day\n", {"quote": "''"}),
    ],
)
@pytest.mark.parametrize(("suffix", "packed"), [("", bytes), (".gz", gzip.compress), (".deflate", zlib.compress)])
def test_headers_in_every_writing(
    tmp_path: Path, content: str, options: dict[str, str], suffix: str, packed: Callable[[bytes], bytes]
) -> None:
    codec = next((options[one] for one in ("encoding", "charset") if one in options), "UTF-8")
    file = tmp_path / f"a.csv{suffix}"
    file.write_bytes(packed(content.encode(codec)))
    CsvFiles(tmp_path, SCHEMA, **options).check_file("s", file)


@pytest.mark.parametrize(("suffix", "packed"), [("", bytes), (".gz", gzip.compress), (".deflate", zlib.compress)])
@pytest.mark.parametrize("width", [16, 32])
def test_a_header_without_a_mark_is_big_endian(
    tmp_path: Path, width: int, suffix: str, packed: Callable[[bytes], bytes]
) -> None:
    """As Java reads it; with a mark it is what the mark says."""
    file = tmp_path / f"a.csv{suffix}"
    for mark, order in (("", "be"), ("\ufeff", "be"), ("\ufeff", "le")):
        file.write_bytes(packed(f"{mark}n,k\r\n1,a\r\n".encode(f"utf-{width}-{order}")))
        assert header_of(str(file), {"encoding": f"utf-{width}"}) == Header(("n", "k"), "n,k")


def test_the_beginning_of_a_hostile_file_stops_nothing(tmp_path: Path) -> None:
    """What cannot be read here is Spark's to refuse, line by line."""
    long = ",".join(f"f{number}" for number in range(100_000))
    (tmp_path / "long.csv").write_text(f"{long}\n")
    (tmp_path / "name.csv").write_text("k,n," + "d" * 300_000 + "\n")
    (tmp_path / "endless.csv").write_text("k,n,day," + "x" * 3_000_000)
    (tmp_path / "torn.csv.gz").write_bytes(gzip.compress(b"k,n,day\n")[:12] + b"\x00\xff\x13")
    for name in ("long.csv", "name.csv", "endless.csv", "torn.csv.gz"):
        header = header_of(str(tmp_path / name), {})
        assert header is None or header.names
    assert header_of(str(tmp_path / "name.csv"), {"sep": ""})
    deep = tmp_path / "deep.json"
    for content in ("[" * 200_000, '{"a":' * 200_000, '{"k": ' + "1" * 10_000 + "}", "x" * 3_000_000):
        deep.write_text(content + '\n{"k": 1}\n')
        JsonFiles(tmp_path, SCHEMA).check_file("s", deep)
        assert not has_other_fields(str(deep), ["k"], {})


def test_the_way_up_in_a_path_is_gone(tmp_path: Path) -> None:
    """Spark's addresses of files have no `..`: a path that kept it would be the beginning of none of them."""
    (tmp_path / "in").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "in")
    for path in (f"{tmp_path}/flows/../in", f"{tmp_path}/in/.", f"{tmp_path}/in/sub/../"):
        assert CsvFiles(path, SCHEMA).path == str(tmp_path / "in")
    assert CsvFiles(tmp_path / "alias", SCHEMA).path == str(tmp_path / "alias")


def test_a_parquet_file_with_a_bad_footer_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty.parquet").write_bytes(b"")
    ParquetFiles(tmp_path, SCHEMA).check_file("s", tmp_path / "empty.parquet")  # Spark passes over it
    for number, content in enumerate(
        (b"PAR1", b"PAR1\x00\x00\x00\x00PAR1", b"PAR1" + b"\xff" * 40 + b"\x20\0\0\0PAR1")
    ):
        file = tmp_path / f"{number}.parquet"
        file.write_bytes(content)
        with pytest.raises(SourceSchemaError, match="not a Parquet file") as caught:
            ParquetFiles(tmp_path, SCHEMA).check_file("s", file)
        assert len(str(caught.value).splitlines()) <= 3


def test_an_endless_beginning_of_empty_lines_and_comments_is_no_header(tmp_path: Path) -> None:
    """Nothing is read by position, as without a look it would be."""
    for content in ("\n" * 3_000_000, " \r\n#x\n" * 500_000):
        file = tmp_path / "a.csv.gz"
        file.write_bytes(gzip.compress(content.encode() + b"n,k,day\n1,a,d1\n"))
        assert header_of(str(file), {"comment": "#"}) == Header((), "")
        with pytest.raises(SourceSchemaError, match="its header lacks k, n, day"):
            CsvFiles(tmp_path, SCHEMA, comment="#").check_file("s", file)
    (tmp_path / "b.csv").write_text("\n" * 1000)
    assert header_of(str(tmp_path / "b.csv"), {}) is None


@pytest.mark.parametrize("name", ["a.json", "a.csv", "a.csv.gz"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    pipe, other = tmp_path / name, tmp_path / f"b{name}"
    os.mkfifo(pipe)
    other.write_text("")
    source = (JsonFiles if name == "a.json" else CsvFiles)(tmp_path, SCHEMA)
    with pytest.raises(OSError, match="no ordinary file"), as_text(pipe, "utf-8"):
        pass
    assert source.layouts([str(pipe)]) == {None: [str(pipe)]}
    layouts = source._all_layouts([str(pipe), str(other)])
    assert list(layouts.values()) == [[str(other)], [str(pipe)]]


@pytest.mark.slow
def test_a_pipe_is_one_refused_record(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    os.mkfifo(folder / "a.json")
    (folder / "b.json").write_text('{"k": "b", "n": 1, "day": "d1"}')
    flow = Kept(spark, tmp_path, JsonFiles(folder, SCHEMA))
    flow.runtime.catch_up(flow.topology)
    assert flow.rows == [("b", 1)]
    ((rule, _, row),) = flow.refused
    assert (rule, "a.json: no ordinary file" in row) == ("not_read", True)


@pytest.mark.slow
def test_links_out_of_the_folder_are_not_followed(spark: SparkSession, tmp_path: Path) -> None:
    """In a stream and in a backfill a link is one refused record; links within the folder are files like others."""
    folder = tmp_path / "in"
    (folder / "sub").mkdir(parents=True)
    secret = tmp_path / "secret.csv"
    secret.write_text("k,n,day\nsecret,9,d1\n")
    (folder / "a.csv").symlink_to(secret)
    (folder / "b.csv").write_text("k,n,day\nb,1,d1\n")
    flow = Kept(spark, tmp_path, CsvFiles(folder, SCHEMA))
    flow.runtime.catch_up(flow.topology)
    assert flow.rows == [("b", 1)]
    ((rule, _, row),) = flow.refused
    assert (rule, "a.csv: a link out of the folder" in row) == ("not_read", True)
    flow.runtime.backfill(flow.topology, ["d1"])
    assert flow.rows == [("b", 1)]


def test_what_a_link_out_of_a_folder_is(tmp_path: Path) -> None:
    folder, beside = tmp_path / "in", tmp_path / "in2"
    folder.mkdir()
    beside.mkdir()
    (beside / "x").write_text("")
    (folder / "real").write_text("")
    targets = {"out": beside / "x", "etc": Path("/etc/passwd"), "within": folder / "real", "gone": folder / "no"}
    for name, target in targets.items():
        (folder / name).symlink_to(target)
    (tmp_path / "alias").symlink_to(folder)
    for root in (folder, tmp_path / "alias"):
        files = [str(root / name) for name in ("real", "out", "etc", "within", "gone")]
        assert links_out(str(root), files) == [str(root / "out"), str(root / "etc")]


def test_links_that_lead_round_are_refused(tmp_path: Path) -> None:
    """Spark would list 2^40 folders."""
    folder = tmp_path / "day=1" / "in"
    (folder / "x=1" / "y=1").mkdir(parents=True)
    (folder / "x=1" / "a.json").write_text("{}")
    (tmp_path / "beside").mkdir()
    spark: Any = None

    def check(*, anywhere: bool = False) -> None:
        JsonFiles(folder, "k string", recursiveFileLookup=anywhere).check("s", spark)

    def refused(at: str, target: str, *, anywhere: bool = False) -> bool:
        (folder / at).symlink_to(target)
        try:
            check(anywhere=anywhere)
        except SourceError as error:
            return f"the link {folder}/" in str(error) and at in str(error)
        finally:
            (folder / at).unlink()
        return False

    (folder / "itself=1").symlink_to("itself=1")
    check()
    assert all(refused(*link) for link in (("a=1", "."), ("x=1/b=1", ".."), ("x=1/y=1/c=1", "../../x=1")))
    # Spark lists folders without `=`, too, and drops what is in them behind that (`test_which_folders_spark_lists`).
    assert all(
        refused(*link) for link in (("a", "."), ("_a=1", "."), ("_metadata", "."), ("a=1", ".."), ("a=1", "../.."))
    )
    beside = str(tmp_path / "beside")
    assert not any(
        refused(*link) for link in (("_a", "."), (".a", "."), ("a._COPYING_", "."), ("a", "x=1"), ("a", beside))
    )
    assert refused("a", ".", anywhere=True)
    assert refused("a=1", "../..", anywhere=True)
    (folder / "z=1").mkdir()
    (folder / "z=1" / "on=1").symlink_to("../x=1")
    assert refused("x=1/on=1", "../z=1")
    # No ring, and yet a folder is reached in 2^20 ways.
    for n in range(20):
        (folder / f"n={n}").mkdir()
        for name in ("a=1", "b=1"):
            (folder / f"n={n}" / name).symlink_to(f"../n={n + 1}")
    with pytest.raises(SourceError, match="lead to 24 folders in more than 100000 ways"):
        check()


def test_a_long_row_of_double_links_is_refused_in_a_short_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In 2^15000 ways, a number that Python does not print."""
    base = os.path.realpath(tmp_path)
    names = [base, *(f"{base}/{n}" for n in range(15_000))]
    below = {one: [following] * 2 for one, following in pairwise(names)} | {names[-1]: []}
    monkeypatch.setattr("pipelines.sources.linked_folders._folders", lambda *_: (below, {}, len(below)))
    with pytest.raises(SourceError, match="in more than 100000 ways") as caught:
        JsonFiles(tmp_path, "k string").check("s", cast(SparkSession, None))
    assert len(str(caught.value).replace(base, "")) < 300


def test_rings_elsewhere_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark lists what a link out of the folder leads to, though none of its files is read."""
    folder, ring, tree = tmp_path / ".deep" / "in", tmp_path / "ring", tmp_path / "tree"
    for made in (folder, ring, tree / "a" / "b"):
        made.mkdir(parents=True)
    source, spark = JsonFiles(folder, "k string"), cast(SparkSession, None)
    link = folder / "a"
    for target in (tree, tmp_path):
        link.symlink_to(target)
        source.check("s", spark)
        link.unlink()
    link.symlink_to(ring)
    for name in ("b", "c"):
        (ring / name).symlink_to(".")
    with pytest.raises(SourceError, match=f"the link {ring}/. leads back to a folder"):
        source.check("s", spark)
    link.unlink()
    # A walk of a whole disk ends, too.
    monkeypatch.setattr("pipelines.sources.linked_folders._MOST_MORE", 2)
    for here in (folder / name for name in "xyz"):
        here.mkdir()
    source.check("s", spark)
    link.symlink_to(tree / "a")
    source.check("s", spark)
    link.unlink()
    link.symlink_to("/usr")
    with pytest.raises(SourceError, match="lead to more than 2 folders elsewhere"):
        source.check("s", spark)


@pytest.mark.slow
def test_which_folders_spark_lists(spark: SparkSession, tmp_path: Path) -> None:
    """Of folders without `=` it takes no file, and lists them all the same, also behind a link."""
    folder, elsewhere = tmp_path / "in", tmp_path / "elsewhere"
    names = ["a", "_a", ".a", "a._COPYING_", "_metadata", "_metadata_x", "_common_metadata", "_meta"]
    for base in (folder, elsewhere):
        for name in names:
            (base / name).mkdir(parents=True)
            (base / name / "f.json").write_text("{}")
    (folder / "link").symlink_to(elsewhere)
    frame = spark.read.schema("k string").option("basePath", str(folder)).json(str(folder))
    assert frame.inputFiles() == []
    files = frame._jdf.queryExecution().analyzed().relation().location().leafFiles().keys().mkString("\n").split("\n")
    listed = {file.removeprefix(f"file:{folder}/").removesuffix("/f.json") for file in files}
    assert listed == {f"{way}{name}" for way in ("", "link/") for name in names if is_listed(name)}


def read(spark: SparkSession, source: FileSource) -> list[tuple[Any, ...]]:
    """Return a source's rows: the fields of a good one, of a bad one the engine's mark and the text."""
    rows = [tuple(row)[:-1] for row in source.bounded(spark)[0].collect()]
    bad = [(row[-1].startswith(OTHER_FIELDS), row[-1].rpartition("\0")[2]) for row in rows if row[-1] is not None]
    return [*sorted(row[:-1] for row in rows if row[-1] is None), *sorted(bad)]


def test_csv_without_a_mark_goes_by_its_names(spark: SparkSession, tmp_path: Path) -> None:
    for name, order in (("a", "be"), ("b", "le")):
        text = "day,n,k\nd1,1,a\n" if order == "be" else "\ufeffday,n,k\nd1,2,b\n"
        (tmp_path / f"{name}.csv").write_bytes(text.encode(f"utf-16-{order}"))
    rows = read(spark, CsvFiles(tmp_path, SCHEMA, encoding="UTF-16", multiLine=True))
    assert rows == [("a", 1, "d1"), ("b", 2, "d1")]


def test_only_a_header_is_left_out(spark: SparkSession, tmp_path: Path) -> None:
    """A file without one has lines alone, and a line that is like the header is one, too."""
    (tmp_path / "b.csv").write_text("c,3,d1\nc,3,d1\nd,4,d1\n")
    (tmp_path / "c.csv").write_text("k,amount,day\nq,9,d1\nk,amount,day\n")
    lines = ["c,3,d1", "c,3,d1", "d,4,d1", "k,amount,day", "q,9,d1"]
    assert read(spark, CsvFiles(tmp_path, SCHEMA)) == [(True, line) for line in lines]


@pytest.mark.slow
def test_a_replay_leaves_what_cannot_be_read(spark: SparkSession, tmp_path: Path) -> None:
    """A line of a file in another order, and the engine's words about a pipe."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.csv").write_text("day,k,n\nd1,a,1\nabc,x,many\n")
    os.mkfifo(folder / "b.csv")
    flow = Kept(spark, tmp_path, CsvFiles(folder, "k string, n string, day string"))
    flow.runtime.catch_up(flow.topology)
    refused = flow.refused
    assert [rule for rule, _, _ in refused] == ["not_read"]
    (lot,) = flow.runtime.replay_quarantine(flow.topology, Selection()).lots
    assert (lot.landed, sum(lot.left.values())) == (0, 1)
    assert (flow.rows, flow.refused) == ([("a", "1"), ("x", "many")], refused)


def test_a_malformed_line_of_another_order_says_so(spark: SparkSession, tmp_path: Path) -> None:
    """A replay would read it by the declared order."""
    (tmp_path / "a.csv").write_text("k,n\na,1\nb,many\n")
    (tmp_path / "b.csv").write_text("n,k\nabc,5\n6,good\n")
    rows = read(spark, CsvFiles(tmp_path, "k string, n bigint"))
    assert rows == [("a", 1), ("good", 6), (False, "b,many"), (True, "abc,5")]


def test_folders_give_their_value_to_every_file(spark: SparkSession, tmp_path: Path) -> None:
    """Also where a file of the batch is read apart."""
    folder = tmp_path / "day=01"
    folder.mkdir()
    (folder / "a.json").write_text('{"k":"a","n":1}\n')
    (folder / "b.json").write_text('{"key":"x"}\n{"k":"b","n":2}\n')
    (folder / "c[1].json").write_text('{"k":"c","n":3}\n')
    rows = [("a", 1, "01"), ("b", 2, "01"), ("c", 3, "01"), (True, '{"key":"x"}')]
    assert read(spark, JsonFiles(tmp_path, SCHEMA)) == rows


def test_folders_give_their_value_to_csv_with_a_header(spark: SparkSession, tmp_path: Path) -> None:
    """Also to a file that names the field itself: Spark takes the folder's value."""
    for file, text in (
        ("day=01/a.csv", "k,n\na,1\nx,many\ny,2,d9\n"),
        ("day=01/b.csv", "n,k\n2,b\n"),
        ("day=02/c.csv", "k,n,day\nc,3,d9\n"),
        ("day=02/d.csv", "k,amount\nq,9\n"),
        ("e.csv", "k,n,day\ne,5,d5\n"),
    ):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    source = CsvFiles(tmp_path, SCHEMA)
    source.check("s", spark)
    source.check_first("s")
    good = [("a", 1, "01"), ("b", 2, "01"), ("c", 3, "02"), ("e", 5, "d5")]
    # By the declared order a replay would take y's third value for its day.
    assert read(spark, source) == [*good, (True, "q,9"), (True, "x,many"), (True, "y,2,d9")]


def test_a_file_beside_the_folders_is_read(spark: SparkSession, tmp_path: Path) -> None:
    """Spark would leave it out without a word."""
    for folder, line in (("", '"day":"d1"'), ("day=01", '"n":1'), ("Day=02", '"n":2')):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "a.json").write_text(f'{{"k":"a",{line}}}\n{{"key":"x"}}\n')
    (tmp_path / "b.json").write_text('{"k":"b","day":"d2"}\n')
    source = JsonFiles(tmp_path, SCHEMA)
    good = [("a", 1, "01"), ("a", 2, "02"), ("a", None, "d1"), ("b", None, "d2")]
    rows = source.bounded(spark)[0].where("_corrupt is null").collect()
    assert sorted((tuple(row)[:3] for row in rows), key=repr) == good
    for file in tmp_path.rglob("a.json"):
        file.write_text(file.read_text().partition("\n")[0])
    rows = source.bounded(spark)[0].collect()
    assert sorted((tuple(row)[:3] for row in rows), key=repr) == good


def test_what_folders_give(tmp_path: Path) -> None:
    there = {None: [f"{tmp_path}/day=1/a.json", f"{tmp_path}/Day=2/b.json"]}
    beside = {None: [*there[None], f"{tmp_path}/c.json"]}
    source, flat = JsonFiles(tmp_path, SCHEMA), JsonFiles(tmp_path, SCHEMA, recursivefilelookup=True)
    assert [one._differ(files) for one in (source, flat) for files in (there, beside)] == [False, True, False, False]


def test_parquet_files_of_one_layout_are_one_table_to_spark(tmp_path: Path) -> None:
    """What Arrow has one type for, or one name, may be one that Spark reads and one that it does not."""
    at, one = pa.array([1], pa.timestamp("ns")), pa.array([1], pa.int64())
    tables: dict[str, tuple[pa.Table, dict[str, Any]]] = {
        "int96": (pa.table({"at": at}), {"use_deprecated_int96_timestamps": True}),
        "nanos": (pa.table({"at": at}), {}),
        "int96 within": (pa.table({"s": [{"at": 1}]}).cast(pa.schema([("s", pa.struct([("at", at.type)]))])), {}),
        "one": (pa.table({"x": one}), {}),
        "two": (pa.Table.from_arrays([one, one], ["x", "x"]), {}),
    }
    tables["nanos within"] = tables["int96 within"][0], {"use_deprecated_int96_timestamps": True}
    spark = pa.schema([("x", pa.int64())], {"org.apache.spark.sql.parquet.row.metadata": "{}"})
    tables["of spark"] = pa.table({"x": one}).cast(spark), {}
    files = []
    for name, (table, options) in tables.items():
        for copy in "ab":
            files.append(str(tmp_path / f"{name}-{copy}.parquet"))
            pq.write_table(pa.concat_tables([table] * (1 + (copy == "b"))), files[-1], **options)
    pairs = [files[n : n + 2] for n in range(0, len(files), 2)]
    assert [*ParquetFiles(tmp_path, "n bigint").layouts(files).values()] == pairs


def test_rows_of_a_parquet_file_that_lacks_a_field_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"DAY": ["d1"], "k": ["a"], "n": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"k": ["b", "c"], "amount": [2, None], "day": ["d1", "d1"]}), tmp_path / "b.parquet")
    refused = ['{"k":"b","amount":2,"day":"d1"}', '{"k":"c","amount":null,"day":"d1"}']
    assert read(spark, ParquetFiles(tmp_path, SCHEMA)) == [("a", 1, "d1"), *((True, row) for row in refused)]


def test_lines_that_end_otherwise(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("k,n|a,1|b,2")
    (tmp_path / "b.csv").write_text("n,k|3,c|")
    (tmp_path / "c.csv").write_text("k,m|4,d")
    rows = read(spark, CsvFiles(tmp_path, "k string, n bigint", lineSep="|"))
    assert rows == [("a", 1), ("b", 2), ("c", 3), (True, "4,d")]


def test_headers_of_lines_that_end_otherwise(tmp_path: Path) -> None:
    for sep in ("|", "||", "\x1e", "\n", "\r\n", "\r"):
        (tmp_path / "d.csv").write_bytes(f"\ufeff#x{sep}{sep}k,n{sep}4,d".encode())
        assert header_of(str(tmp_path / "d.csv"), {"lineSep": sep, "comment": "#"}) == Header(("k", "n"), "k,n")
    (tmp_path / "d.csv").write_text("|" * 3_000_000)
    assert header_of(str(tmp_path / "d.csv"), {"lineSep": "|"}) == Header((), "")
    (tmp_path / "d.csv").write_text("||")
    assert header_of(str(tmp_path / "d.csv"), {"lineSep": "|"}) is None


@pytest.mark.parametrize("suffix", ["zst", "LZ4", "snappy"])
def test_a_header_that_only_spark_can_unpack(tmp_path: Path, suffix: str) -> None:
    """By position its columns might be others."""
    file, other = str(tmp_path / f"a.csv.{suffix}"), str(tmp_path / "b.csv.gz")
    for name in (file, other):
        Path(name).write_bytes(b"")
    layouts = CsvFiles(tmp_path, SCHEMA)._all_layouts([file, other])
    assert list(layouts.values()) == [[other], [file]]
    assert CsvFiles(tmp_path, SCHEMA, header=False)._all_layouts([file, other]) == {None: [file, other]}
    with pytest.raises(SourceError, match="its header cannot be looked at"):
        CsvFiles(tmp_path, SCHEMA).check_file("s", Path(file))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "fitting", "other"),
    [
        (CsvFiles, "k,n,day\na,1,d1\n", "k,amount,day\nq,9,d1\n"),
        pytest.param(JsonFiles, '{"k":"a","n":1,"day":"d1"}\n', '{"key":"q"}\n', marks=pytest.mark.exhaustive),
    ],
)
def test_a_file_that_does_not_fit_stops_no_restart(
    spark: SparkSession, tmp_path: Path, kind: type[FileSource], fitting: str, other: str
) -> None:
    """The stream has put it into quarantine, whatever it is called; only what comes before the first batch is looked at."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a").write_text(other)
    flow = Kept(spark, tmp_path, kind(folder, SCHEMA))
    with pytest.raises(SourceSchemaError):
        flow.runtime.catch_up(flow.topology)
    (folder / "a").write_text(fitting)
    flow.runtime.catch_up(flow.topology)
    (folder / "0").write_text(other)
    (folder / "0:1").write_text(fitting)
    for _ in range(2):
        flow.runtime.catch_up(flow.topology)
    flow.runtime.backfill(flow.topology, ["d1"])
    assert (flow.rows, [rule for rule, *_ in flow.refused]) == ([("a", 1)], ["not_read", "other_fields"])
    misspelled = Kept(spark, tmp_path, kind(folder, "kk string, nn bigint, dday string"), "dday")
    with pytest.raises(SourceSchemaError, match=r"lacks kk, nn, dday|no declared field"):
        misspelled.runtime.backfill(misspelled.topology, ["d1"])
    assert flow.rows == [("a", 1)]


def test_a_schema_that_fits_no_file_behind_the_first_batch(tmp_path: Path) -> None:
    for name in ("a", "b", "x:y"):
        (tmp_path / name).write_text("k,m\n")
    (tmp_path / "c").write_text("k,n\n")
    for schema, problem in (
        ("k string, n bigint", None),
        ("k string, l int", "/a does not fit the declared schema: its header lacks l;"),
    ):
        source = CsvFiles(tmp_path, schema)
        source.check("s", None)  # type: ignore[arg-type]
        with pytest.raises(SourceError, match="colon"):
            source.check_first("s")
        with pytest.raises(SourceSchemaError, match=problem) if problem else nullcontext():
            source.check_first("s", begun=True)
