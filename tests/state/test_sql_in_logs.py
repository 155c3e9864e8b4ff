"""SQL that somebody has written into a table's log is not run: Spark would, when it writes the table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from pipelines.errors import StateSchemaError
from pipelines.state.kinds import MAP, ROWS, TRANSACTIONAL
from pipelines.state.record import BatchRecord
from pipelines.state.schema import REMOVED
from tests.state.small_kinds import APP, COLUMNS, SmallTable, record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CODE = "java_method('java.lang.System', 'setProperty', 'tridelta.of_a_log', 'yes')"
GENERATED = {"delta.generationExpression": CODE}


def changed(state: SmallTable, *, configuration: dict[str, str] | None = None, **field: Any) -> None:
    """Commit metadata as one does who may write into the log: more configuration, and a further column."""
    path = Path(str(state.table.path))
    actions = [
        json.loads(line) for file in sorted(path.glob("_delta_log/*.json")) for line in file.read_text().splitlines()
    ]
    metadata = [action["metaData"] for action in actions if "metaData" in action][-1]
    schema = json.loads(metadata["schemaString"])
    schema["fields"] += [{"name": "boom", "type": "string", "nullable": True, **field}] if field else []
    metadata["schemaString"] = json.dumps(schema)
    metadata["configuration"] |= configuration or {}
    version = DeltaTable(str(path)).version() + 1
    said = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 6}}, {"metaData": metadata}]
    (path / "_delta_log" / f"{version:020}.json").write_text("\n".join(map(json.dumps, said)))


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("delta.generationExpression", {"metadata": GENERATED}),
        ("CURRENT_DEFAULT", {"metadata": {"CURRENT_DEFAULT": CODE}}),
        ("EXISTS_DEFAULT", {"metadata": {"EXISTS_DEFAULT": CODE}}),
        ("delta.identity.start", {"metadata": {"delta.identity.start": 1}}),
        (
            "delta.invariants",
            {
                "type": {
                    "type": "struct",
                    "fields": [
                        {
                            "name": "in",
                            "type": "string",
                            "nullable": True,
                            "metadata": {"delta.invariants": json.dumps({"expression": {"expression": CODE}})},
                        }
                    ],
                },
                "metadata": {},
            },
        ),
        ("Delta.Constraints.c", {"configuration": {"Delta.Constraints.c": f"{CODE} = 'yes'"}}),
    ],
)
def test_a_table_whose_log_has_sql_is_refused_at_the_start(tmp_path: Path, name: str, given: dict[str, Any]) -> None:
    changed(SmallTable(tmp_path, ROWS, TRANSACTIONAL), **given)
    with pytest.raises(StateSchemaError, match=f"its log has {name}, which Spark would work out"):
        SmallTable(tmp_path, ROWS, TRANSACTIONAL)


def test_names_and_comments_are_no_sql(tmp_path: Path) -> None:
    state = SmallTable(tmp_path, ROWS, TRANSACTIONAL)
    comment = json.dumps(GENERATED)
    changed(state, name="CURRENT_DEFAULT", metadata={"comment": comment}, configuration={"a.delta.constraints.": "x"})
    SmallTable(tmp_path, ROWS, TRANSACTIONAL)


@pytest.fixture
def ran(spark: SparkSession) -> Iterator[Any]:
    system = spark._jvm.java.lang.System  # type: ignore[union-attr]
    system.clearProperty("tridelta.of_a_log")
    yield lambda: system.getProperty("tridelta.of_a_log")
    system.clearProperty("tridelta.of_a_log")


def test_what_comes_into_the_log_of_a_running_flow_is_not_run(spark: SparkSession, tmp_path: Path, ran: Any) -> None:
    rows, merged = (SmallTable(tmp_path / layout, layout, TRANSACTIONAL, COLUMNS) for layout in (ROWS, MAP))
    frame = spark.createDataFrame([("a", 1)], "word string, n bigint")
    for state in (rows, merged):
        changed(state, metadata=GENERATED)
        given = frame.selectExpr("*", f"false as {REMOVED}") if state is merged else frame
        with pytest.raises(StateSchemaError, match="which Spark would work out"):
            state.writer.commit_batch(given, record(0), APP, known=False)
    stored = spark.read.format("delta").load(str(rows.table.path))
    with pytest.raises(StateSchemaError, match="which Spark would work out"):
        rows.writer.rewrite_spark(
            rows.table.opened(), stored, BatchRecord(kind="compaction", flow="shop", txid=0), "_slice = 'all'"
        )
    assert (ran(), rows.table.version(), merged.table.version()) == (None, 1, 1)
