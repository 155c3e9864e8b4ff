"""Gates compiled for a schema, and what great-expectations runs when they cannot be."""

from __future__ import annotations

import datetime
import itertools
import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import Observation

from pipelines.errors import FieldError, FunctionError
from pipelines.quality import Check, Gate, compile_gate, drop, fail, validate_frame, warn
from pipelines.quality.expectations import _quiet
from pipelines.quality.literals import Frame
from pipelines.quality.rules import compile_row_rule

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = [(1, "a", 10, "u"), (2, None, 20, "u"), (3, "c", None, "v"), (3, "zz", 300, "v")]


@pytest.fixture(scope="module")
def df(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(ROWS, "id long, s string, n int, _slice string").coalesce(1).cache()


GATE = Gate(
    "clean",
    [
        drop("column_values_to_not_be_null", column="s", name="has_s"),
        drop("column_values_to_be_between", column="n", max_value=100, name="small"),
        warn("column_values_to_match_regex", column="s", regex="^[a-c]$", name="letter"),
    ],
)


def test_rows_are_kept_or_dropped_with_their_reasons(df: DataFrame) -> None:
    compiled = compile_gate(GATE, df.schema)
    annotated = compiled.annotate(df)
    assert [row["id"] for row in compiled.kept(annotated).collect()] == [1, 3]
    assert compiled.kept(annotated).columns == df.columns
    dropped = {row["n"]: row["_failed"] for row in compiled.dropped(annotated).collect()}
    assert dropped == {20: ["has_s"], 300: ["small", "letter"]}


def test_metrics_are_observed_during_the_one_pass(df: DataFrame) -> None:
    compiled = compile_gate(GATE, df.schema)
    assert compiled.observable
    assert not compiled.needs_cut
    seen = Observation("gate")
    kept = compiled.kept(compiled.annotate(df).observe(seen, *compiled.metrics()))
    assert kept.count() == 2
    result = compiled.verdict(seen.get)
    assert [(check.name, check.rows, check.unexpected) for check in result.checks] == [
        ("has_s", 4, 1),
        ("small", 4, 1),
        ("letter", 4, 1),
    ]


def test_the_filter_does_not_end_code_generation(df: DataFrame) -> None:
    compiled = compile_gate(GATE, df.schema)
    plan = compiled.kept(compiled.annotate(df))._jdf.queryExecution().executedPlan().toString()
    assert all(
        line.lstrip(" +-:").startswith("*") for line in plan.splitlines() if "Project" in line or "Filter" in line
    )


def test_each_slice_has_its_own_verdict(df: DataFrame) -> None:
    gate = Gate("g", [warn("column_values_to_be_unique", column="id"), fail("table_row_count_to_equal", value=2)])
    compiled = compile_gate(gate, df.schema)
    same = df.unionAll(df.withColumn("_slice", df["s"]).where("id = 1"))
    metrics = compiled.annotate(same, within=("_slice",)).groupBy("_slice").agg(*compiled.metrics()).collect()
    results = {row["_slice"]: compiled.verdict(row.asDict()) for row in metrics}
    # id 1 occurs in u and in a, which is no repetition; id 3 occurs twice in v.
    assert {key: value.checks[0].unexpected for key, value in results.items()} == {"u": 0, "v": 2, "a": 0}
    assert {key: bool(value.refused) for key, value in results.items()} == {"u": False, "v": False, "a": True}
    whole = compiled.annotate(same).agg(*compiled.metrics()).collect()[0].asDict()
    assert compiled.verdict(whole).checks[0].unexpected == 4


@pytest.mark.parametrize(
    ("check", "cut", "observable"),
    [
        (warn("column_max_to_be_between", column="n", max_value=1), False, True),
        (fail("column_values_to_not_be_null", column="n"), True, True),
        (warn("column_unique_value_count_to_be_between", column="n", max_value=1), True, False),
        (warn("column_median_to_be_between", column="n", max_value=1), True, True),
        (warn("column_values_to_be_of_type", column="n", type_="IntegerType"), False, True),
    ],
)
def test_what_needs_a_cut(df: DataFrame, check: Check, cut: bool, observable: bool) -> None:
    compiled = compile_gate(Gate("g", [check]), df.schema)
    assert (compiled.needs_cut, compiled.observable) == (cut, observable)


@pytest.mark.parametrize(
    "check",
    [
        warn("column_values_to_be_between", column="s", min_value=1),
        warn("column_values_to_be_between", column="n", min_value=datetime.date(2024, 1, 1)),
        warn("column_values_to_be_between", column="n", min_value=3, max_value=1),
        warn("column_values_to_be_between", column="n"),
        warn("column_values_to_be_in_set", column="n", value_set=["a"]),
        warn("column_values_to_match_regex", column="s", regex="(["),
        warn("column_pair_values_to_be_equal", column_A="n", column_B="s"),
        warn("column_pair_values_to_be_equal", column_A="n", column_B="id", ignore_row_if="sometimes"),
        warn("multicolumn_sum_to_equal", column_list=["n", "s"], sum_total=1),
        warn("column_mean_to_be_between", column="s", min_value=1),
        warn("column_values_to_be_of_type", column="s", type_="text"),
        warn("column_value_lengths_to_be_between", column="s", min_value=1.5),
        warn("column_value_lengths_to_be_between", column="s", min_value=10**400),
        warn("column_values_to_be_between", column="n", min_value=10**400),
        drop("column_values_to_be_between", column="n", min_value=float("nan")),
        warn("column_values_to_be_in_set", column="n", value_set=[2**70]),
        warn("multicolumn_sum_to_equal", column_list=["n", "id"], sum_total="x"),
        warn("column_pair_values_to_be_in_set", column_A="n", column_B="s", value_pairs_set=[(1,)]),
        warn("column_pair_values_to_be_in_set", column_A="n", column_B="s", value_pairs_set=5),
        warn("column_values_to_not_be_null", column="n", row_condition='col("s") > 5'),
        warn("column_mean_to_be_between", column="n", min_value=1, row_condition='col("n") == "x"'),
        warn(
            "column_values_to_not_be_null",
            column="n",
            row_condition={"type": "comparison", "column": {"name": "n"}, "operator": "IN", "parameter": [1, "x"]},
        ),
    ],
)
def test_what_would_break_a_batch_is_refused_before_the_first(df: DataFrame, check: Check) -> None:
    with pytest.raises(FunctionError):
        compile_gate(Gate("g", [check]), df.schema)


def test_a_missing_column_is_refused(df: DataFrame) -> None:
    with pytest.raises(FieldError):
        compile_gate(Gate("g", [warn("column_values_to_be_null", column="nn")]), df.schema)


def test_nested_and_dotted_columns(spark: SparkSession) -> None:
    frame = spark.sql(
        "select named_struct('speed', 5) as st, 1 as `a.b` union all select named_struct('speed', null), 2"
    )
    checks: list[Any] = [
        warn("column_values_to_not_be_null", column="st.speed"),
        warn("column_values_to_be_in_set", column="a.b", value_set=[1]),
    ]
    assert [check.unexpected for check in validate_frame(frame, checks).checks] == [1, 1]
    with pytest.raises(FieldError):
        compile_gate(Gate("g", [warn("column_values_to_be_between", column="st.sped", min_value=1)]), frame.schema)


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ('col("m.key") == 5', True),
        ('col("st.aa") == 5', True),
        ('col("at") == "2024-01-01 10:00:00"', True),
        ('col("at") == "2024-01-01 11:00:00 Europe/Berlin"', True),
        ('col("day") == "2024-01-01 10:00:00"', True),
        ('col("day") < "2024"', False),
        ('col("f") == "NaN"', True),
        ('col("f") == ".5"', False),
        ({"type": "comparison", "column": {"name": "n"}, "operator": "IN", "parameter": {5: "five"}}, True),
        (
            {"type": "comparison", "column": {"name": "s"}, "operator": ">", "parameter": datetime.date(2023, 1, 1)},
            True,
        ),
    ],
)
def test_what_spark_compares_is_compared(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, condition: Any, holds: bool
) -> None:
    frame = spark.sql(
        "select map('key', 5L) m, named_struct('Aa', 5L) st, 5 n, timestamp'2024-01-01 10:00:00Z' at,"
        " date'2024-01-01' day, double('NaN') f, '2024-01-01' s"
    )
    # The driver's zone is not the session's.
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        check = warn("column_values_to_be_null", column="n", row_condition=condition)
        assert validate_frame(frame, [check]).checks[0].unexpected == int(holds)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.usefixtures("in_new_york")
def test_a_verdict_on_times_does_not_depend_on_the_hosts_zone(spark: SparkSession) -> None:
    frame = spark.sql("select timestamp'2024-01-01 00:00:00Z' at, map(timestamp'2024-01-01 00:00:00Z', 1) m, 5 n")
    at = datetime.datetime(2024, 1, 1)
    checks = [
        warn("column_min_to_be_between", column="at", min_value=at),
        warn("column_max_to_be_between", column="at", min_value=at, max_value=at, row_condition="n = 5"),
        warn("column_max_to_be_between", column="at", max_value=at, row_condition="n = 6", name="none"),
    ]
    compiled, seen = compile_gate(Gate("g", checks), frame.schema), Observation("times")
    compiled.annotate(frame).observe(seen, *compiled.metrics()).count()
    for result in (compiled.verdict(seen.get), validate_frame(frame, checks)):
        assert [(check.success, check.observed) for check in result.checks] == [(True, at), (True, at), (False, None)]
    wrong = validate_frame(frame, [warn("column_values_to_be_null", column="n")])
    assert wrong.checks[0].detail["sample"] == [{"at": at.isoformat(), "m": {str(at): 1}, "n": 5}]


@pytest.mark.usefixtures("in_new_york")
def test_a_time_without_a_zone_in_a_row_rule_is_one_of_utc(spark: SparkSession) -> None:
    frame = spark.sql(
        "select timestamp'2024-01-01 00:00:00Z' at, timestamp_ntz'2024-01-01 00:00:00' wall, '2024-01-01 00:00:00' said"
    )
    at = datetime.datetime(2024, 1, 1)

    def where(column: str, operator: str, parameter: Any) -> dict[str, Any]:
        return {"type": "comparison", "column": {"name": column}, "operator": operator, "parameter": parameter}

    checks = [
        *(
            warn("column_values_to_be_between", column=column, min_value=bound, max_value=bound)
            for column in ("at", "wall")
            for bound in (at, "2024-01-01T00:00:00", "2024-01-01T01:00:00+01:00")
        ),
        warn("column_values_to_be_in_set", column="at", value_set=[at]),
        warn("column_values_to_be_in_set", column="at", value_set=["2024-01-01T00:00:00"]),
        warn("column_pair_values_to_be_in_set", column_A="at", column_B="wall", value_pairs_set=[(at, at)]),
        *(
            warn("column_values_to_be_null", column=column, row_condition=where(column, operator, parameter))
            for column in ("at", "said")
            for operator, parameter in (("!=", at), ("NOT_IN", [at]))
        ),
    ]
    assert [str(check) for check in validate_frame(frame, checks).failed] == []


@pytest.mark.usefixtures("in_new_york")
def test_a_time_that_is_stored_without_a_zone_is_one_of_utc_in_every_session(spark: SparkSession) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    frame = session.sql("select timestamp_ntz'2024-01-01 00:00:00' wall")
    at = datetime.datetime(2024, 1, 1)
    checks = [
        check
        for bound in (at, at.replace(tzinfo=datetime.UTC), "2024-01-01T00:00:00", "2024-01-01T01:00:00+01:00")
        for check in (
            warn("column_values_to_be_between", column="wall", min_value=bound, max_value=bound),
            warn("column_values_to_be_in_set", column="wall", value_set=[bound, None]),
            warn("column_pair_values_to_be_in_set", column_A="wall", column_B="wall", value_pairs_set=[(bound, bound)]),
        )
    ] + [
        warn(
            "column_values_to_be_null",
            column="wall",
            row_condition={"type": "comparison", "column": {"name": "wall"}, "operator": sign, "parameter": parameter},
        )
        for sign, parameter in (("!=", at), ("NOT_IN", [at]))
    ]
    compiled = compile_gate(Gate("g", checks), frame.schema)
    assert [
        str(check)
        for check in compiled.verdict(compiled.annotate(frame).agg(*compiled.metrics()).collect()[0].asDict()).failed
    ] == []


@pytest.mark.parametrize("column", ["at", "wall", "day"])
@pytest.mark.parametrize(
    ("low", "high", "unexpected"),
    [
        ("2024-01-01", "2024-01-01T23:59:59", 0),
        ("2024-01-01T00:00:00", datetime.date(2024, 1, 1), 0),
        ("2024-01-01T00:00:00", "2024-01-01T01:00:00+01:00", 0),
        (datetime.datetime(2023, 1, 1, tzinfo=datetime.UTC), "2023-12-31T23:59:59", 1),
        ("2024-01-01T00:00:01", "2024-01-01", None),
        ("2024-01-01", "2024-01-01T00:59:59+01:00", None),
    ],
)
def test_bounds_may_be_a_day_and_a_time(
    spark: SparkSession, column: str, low: Any, high: Any, unexpected: int | None
) -> None:
    frame = spark.sql("select timestamp'2024-01-01' at, timestamp_ntz'2024-01-01' wall, date'2024-01-01' day")
    check = warn("column_values_to_be_between", column=column, min_value=low, max_value=high)
    if unexpected is None:
        with pytest.raises(FunctionError, match="is greater than max_value"):
            compile_gate(Gate("g", [check]), frame.schema)
    else:
        assert validate_frame(frame, [check]).checks[0].unexpected == unexpected


@pytest.mark.parametrize(
    ("arguments", "bad"),
    [
        ({"expectation": "column_values_to_match_like_pattern", "like_pattern": "_"}, 1),
        ({"expectation": "column_values_to_not_match_like_pattern", "like_pattern": "z%"}, 1),
        ({"expectation": "column_values_to_match_like_pattern_list", "like_pattern_list": ["a", "z_"]}, 1),
        ({"expectation": "column_values_to_not_match_like_pattern_list", "like_pattern_list": ["a", "z_"]}, 2),
        ({"expectation": "column_values_to_match_like_pattern", "like_pattern": "!_", "escape": "!"}, 3),
    ],
)
def test_like_patterns(df: DataFrame, arguments: dict[str, Any], bad: int) -> None:
    assert validate_frame(df, [warn(column="s", **arguments)]).checks[0].unexpected == bad


@pytest.mark.parametrize("escape", [None, "!", "%", "]"])
def test_a_like_pattern_that_spark_cannot_read_is_refused_before_the_first_batch(
    df: DataFrame, spark: SparkSession, escape: str | None
) -> None:
    """Spark finds it when it generates the code of a batch."""
    assert spark._jvm is not None
    read = spark._jvm.org.apache.spark.sql.catalyst.util.StringUtils.escapeLikeRegex
    sign = "\\" if escape is None else escape
    for pattern in map("".join, itertools.product(("", "a", "%", "_", sign), repeat=3)):
        check = drop("column_values_to_match_like_pattern_list", column="s", like_pattern_list=[pattern], escape=escape)
        try:
            read(pattern, sign)
            refused: AbstractContextManager[Any] = nullcontext()
        except AnalysisException:
            refused = pytest.raises(FunctionError, match="may follow")
        with refused:
            compile_row_rule(check, Frame(df.schema, "g"))


def test_an_empty_frame_holds_all_but_row_counts_and_aggregates(df: DataFrame) -> None:
    checks = [*GATE.checks, warn("table_row_count_to_equal", value=1), warn("column_max_to_be_between", column="n")]
    assert [check.success for check in validate_frame(df.limit(0), checks).checks] == [True, True, True, False, False]


def test_failed_rows_are_sampled(df: DataFrame) -> None:
    result = validate_frame(df, GATE.checks, sample=1)
    assert result.checks[1].detail["sample"] == [{"id": 3, "s": "zz", "n": 300, "_slice": "v"}]


@pytest.mark.slow
def test_great_expectations_runs_the_rest_and_errors_are_not_failures(df: DataFrame) -> None:
    with _quiet():
        from great_expectations.expectations import ExpectTableColumnCountToEqual

    class OfOurs(ExpectTableColumnCountToEqual):
        """Count the columns of the stream, and not those of the engine."""

    gate = Gate(
        "g",
        [
            warn("column_median_to_be_between", column="n", min_value=0, max_value=15),
            warn("column_median_to_be_between", column="n", min_value=0, max_value=15, name="twin"),
            warn("column_values_to_be_increasing", column="id", strictly=True),
            fail("column_values_to_match_strftime_format", column="n", strftime_format="%Y"),
            warn("column_values_to_be_json_parseable", column="s", mostly=0.1),
            warn(OfOurs(value=3)),
        ],
    )
    compiled = compile_gate(gate, df.schema, ["id", "s", "n"])
    assert len(compiled.batch_checks) == 6
    results = compiled.run_batch_checks(compiled.annotate(df))
    assert [check.success for check in results] == [False, False, False, False, False, True]
    median, twin, rising, broken, parsed, _ = results
    assert median.observed == twin.observed == 20
    assert (rising.rows, rising.unexpected, rising.error) == (4, 1, None)
    assert broken.error is not None
    assert broken.unexpected is None
    assert (parsed.unexpected, parsed.error) == (3, None)


@pytest.mark.slow
def test_great_expectations_judges_the_rows_of_a_condition(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [("${env:HOME}", (1,)), ("it's \\", (2,)), ("x", (None,))], "x string, st struct<y: int>"
    )
    null, two = (
        {"type": "nullity", "column": {"name": "st.y"}, "is_null": True},
        {"type": "comparison", "column": {"name": "st.y"}, "operator": "==", "parameter": 2},
    )
    conditions: list[Any] = [
        'col("x") == "${env:HOME}"',
        "x like '${env:HOME}%' -- /* here",
        'col("x") == "it\'s \\"',
        'col("st.y") >= 1.5',
        {"type": "or", "conditions": [null, {"type": "and", "conditions": [two, two]}]},
        {**two, "operator": "NOT_IN", "parameter": [2, 3.5]},
    ]
    checks = [warn("column_values_to_be_json_parseable", column="x", row_condition=one) for one in conditions]
    found = [(check.unexpected, check.error) for check in validate_frame(frame, checks).checks]
    assert found == [(1, None), (1, None), (1, None), (1, None), (2, None), (1, None)]
