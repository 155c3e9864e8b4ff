"""Text files: each line a tuple, in a stream and in a bounded read."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import BadNameError, DefinitionError, MissingPathError
from pipelines.execution.batch.group import BatchGroup
from pipelines.execution.batch.group_sources import GroupSources
from pipelines.graph.nodes import SpoutNode
from pipelines.sources import CsvFiles, JsonFiles, TextFiles
from pipelines.trident import Count, DeltaState, Split, TridentTopology


def put(folder: Path, name: str, content: bytes) -> None:
    """A file that is a second younger than those before."""
    folder.mkdir(exist_ok=True)
    time = 1_000_000_000 + len(list(folder.iterdir()))
    (folder / name).write_bytes(content)
    os.utime(folder / name, (time, time))


def test_word_count_over_lines(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", "a.txt", b"hello the man said\nthe")
    put(tmp_path / "in", "b c*.txt", b"the foo\n")
    topology, lake = TridentTopology("lines"), Lake(tmp_path / "lake")
    lines = topology.new_stream("lines", TextFiles(tmp_path / "in", max_files_per_batch=1))
    assert lines.output_fields == ("line",)
    words = lines.each("line", Split(), "word")
    words.group_by("word").persistent_aggregate(DeltaState("words"), Count(), "count")
    report = Runtime(spark, lake).catch_up(topology)
    assert [(batch.txid, batch.received, batch.quarantined) for batch in report.batches] == [(0, 2, 0), (1, 1, 0)]
    held = {row["word"]: row["count"] for row in lake.state("words").scan().to_pylist()}
    assert held == {"hello": 1, "the": 3, "man": 1, "said": 1, "foo": 1}


def test_what_a_line_is(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", "a.txt", 'é\r\n\n {"torn\n'.encode())
    put(tmp_path / "in", "b.txt.gz", gzip.compress(b"packed"))
    put(tmp_path / "in", "c.txt", b"caf\xe9\n")
    source = TextFiles(tmp_path / "in", "text")
    source.check("s", spark)
    frame, positions = source.bounded(spark)
    assert frame.columns == ["text", "_corrupt", "_file"]
    rows = frame.toArrow().to_pydict()
    assert sorted(rows["text"]) == ["", ' {"torn', "caf\ufffd", "packed", "é"]
    assert set(rows["_corrupt"]) == {None}
    assert set(rows["_file"]) == positions


def test_lines_in_another_encoding(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", "a.txt", b"caf\xe9\r\nstra\xdfe")
    for encoding in ("ISO-8859-1", "latin-1"):
        frame, _ = TextFiles(tmp_path / "in", Encoding=encoding).bounded(spark)
        assert sorted(row["line"] for row in frame.collect()) == ["café", "straße"]
    assert TextFiles(tmp_path / "in", encoding="ascii").bounded(spark)[0].count() == 2
    for encoding in ("UTF-16", "cp1252", "\0", "no such"):
        with pytest.raises(DefinitionError, match="none that it reads"):
            TextFiles(tmp_path / "in", encoding=encoding)


def test_a_hash_of_raw_bytes_does_not_compare(spark: SparkSession) -> None:
    """A batch that a former version has half made would be poison: it is told by its count alone."""
    digests = []
    for source in (TextFiles("/in"), JsonFiles("/in", "line string"), CsvFiles("/in", "line string")):
        topology, group = TridentTopology("lines"), BatchGroup.__new__(BatchGroup)
        topology.new_stream("lines", source)
        group.spouts = tuple(node for node in topology.graph if isinstance(node, SpoutNode))
        group.sources = GroupSources(group.spouts)
        digests.append(group.fields)
    assert digests[0] != digests[1] == digests[2]


def test_refusals(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(BadNameError, match="field name '_line'"):
        TextFiles(tmp_path, "_line")
    with pytest.raises(MissingPathError):
        TextFiles(tmp_path / "in").check("s", spark)
