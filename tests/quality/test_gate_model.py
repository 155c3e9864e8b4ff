"""The model of gates, without Spark."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from pyspark.sql import types as T

from pipelines.errors import BadNameError, FieldError, FunctionError, GateError
from pipelines.graph.expressions import fields_of_sql
from pipelines.quality import Check, CheckResult, Gate, GateResult, conditions, drop, fail, warn
from pipelines.quality.conditions import _value, condition_fields, condition_sql, parse_condition


def test_the_prefix_may_be_left_out_and_the_name_is_made_up() -> None:
    check = drop("column_values_to_not_be_null", column="delay")
    assert check.expectation == "expect_column_values_to_not_be_null"
    assert check == drop("expect_column_values_to_not_be_null", column="delay")
    assert (check.action, check.name, check.fields) == ("drop", "values_to_not_be_null(delay)", ("delay",))


def test_what_decides_which_rows_leave_the_stream() -> None:
    """The same in each process, for the batch record keeps a digest of it."""

    def decides(*checks: Check, name: str = "g") -> tuple[str, ...]:
        return Gate(name, checks).decides

    among = drop("column_values_to_be_in_set", column="k", value_set={"a", "b", "c"})
    assert decides(among) == ("expect_column_values_to_be_in_set {column: 'k', value_set: {'a', 'b', 'c'}}",)
    assert decides(replace(among, name="other"), warn("column_values_to_not_be_null", column="k"), name="h") == decides(
        among
    )
    assert decides(drop(among.expectation, meta={"by": "me"}, **among.kwargs)) == decides(among)
    assert decides(replace(among, action="fail")) == ()
    assert decides(drop(among.expectation, column="k", value_set={"a", "b"})) != decides(among)
    condition = SimpleNamespace(dict=lambda: {"type": "pass_through", "pass_through_filter": "v > 1"})
    (words,) = decides(replace(among, kwargs={"column": "k", "row_condition": condition, "value_set": [object()]}))
    assert words.endswith(
        "{column: 'k', row_condition: {pass_through_filter: 'v > 1', type: 'pass_through'}, value_set: [<object object>]}"
    )


@pytest.mark.parametrize(
    ("expectation", "values"),
    [
        ("column_values_to_be_in_set", {"column": "k", "value_set": ["a", "b"]}),
        ("column_pair_values_to_be_in_set", {"column_A": "k", "column_B": "l", "value_pairs_set": [("a", 1), ("b", 2)]}),
        ("column_values_to_match_regex_list", {"column": "k", "regex_list": ["^a", "^b"]}),
        ("compound_columns_to_be_unique", {"column_list": ["k", "l"]}),
    ],
)  # fmt: skip
def test_what_can_be_read_once_is_read_once(expectation: str, values: dict[str, Any]) -> None:
    """A query that starts a second time, or a replay, compiles the gate again: its set was empty, and every row refused."""
    given = {name: iter(value) if isinstance(value, list) else value for name, value in values.items()}
    gate = Gate("g", [drop(expectation, **given)])
    assert gate.checks[0].kwargs == values
    assert gate.decides == Gate("g", [drop(expectation, **values)]).decides


@pytest.mark.parametrize(
    ("expectation", "argument", "wrong"),
    [
        *(("column_values_to_match_regex", "regex", wrong) for wrong in (["^a", "^b"], ("^a",), None, 5)),
        ("column_values_to_not_match_like_pattern", "like_pattern", ["a%", "b%"]),
        *(("column_values_to_match_regex_list", "regex_list", wrong) for wrong in ([], None, 5, ["a", 5], {"a": "b"})),
        ("column_values_to_match_like_pattern_list", "like_pattern_list", [["a"]]),
    ],
)
def test_patterns_of_another_form_are_refused_at_their_line(expectation: str, argument: str, wrong: Any) -> None:
    """Of a list in place of one text the first alone was used."""
    with pytest.raises(FunctionError, match=rf"{argument} must be .*text.*, not "):
        drop(expectation, column="k", **{argument: wrong})


def test_an_unknown_type_names_the_nearest() -> None:
    with pytest.raises(FunctionError, match='did you mean "expect_column_values_to_be_between"'):
        warn("column_values_to_be_betwen", column="x")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"column": "x", "min": 1}, "no argument 'min'"),
        ({"min_value": 1}, "needs column"),
        ({"column": "x", "mostly": 1.5}, "mostly must be"),
        ({"column": "x", "condition_parser": "pandas", "row_condition": "a"}, "does not work here"),
        ({"column": "x", "row_condition": 'col("k") ~ 1'}, "cannot read"),
        ({"column": "x", "row_condition": {"conditions": 5}}, "cannot read"),
        ({"column": "x", "row_condition": {"type": "and", "conditions": []}}, "cannot read"),
        ({"column": "x", "row_condition": {"type": "nullity", "column": 5}}, "cannot read"),
        ({"column": "x", "row_condition": {"type": ["and"], "conditions": []}}, "cannot read"),
        ({"column": "x", "row_condition": {}}, "cannot read"),
        (
            {
                "column": "x",
                "row_condition": {
                    "type": "pass_through",
                    "pass_through_filter": "java_method('java.lang.Runtime', 'getRuntime') is not null",
                    "conditions": [{"type": "nullity", "column": {"name": "x"}, "is_null": False}],
                },
            },
            "cannot read",
        ),
        ({"column": 5}, "column must be a text, not 5"),
        ({"column": "x", "row_condition": "java_method('java.lang.System', 'exit', 1) = 1"}, "not allowed"),
    ],
)
def test_wrong_arguments_are_refused_at_definition(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(FunctionError, match=text):
        warn("column_values_to_be_between", **arguments)


_DRAFT_4, _DRAFT_7 = (f"http://json-schema.org/draft-0{number}/schema#" for number in (4, 7))
_HERE = {"$ref": "#/$defs/a"}


@pytest.mark.parametrize(
    ("schema", "refused"),
    [
        ({"$id": "http://host/a", "examples": [{"id": "http://host/b"}], "$defs": {"a": {}}, **_HERE}, None),
        ({"$schema": "https://json-schema.org/draft/2019-09/schema", "examples": [{"id": "b"}], **_HERE}, None),
        ({"properties": {"$ref": {"type": "string"}, "$id": {}}, "items": [{"$dynamicRef": "#a"}]}, None),
        ({"properties": {"a": {"$id": "http://host/a", "const": 1}}}, None),
        # The names of parts that drafts 4, 6 and 7 have, and the address of the schema itself.
        ({"$schema": _DRAFT_7, "$id": "http://host/a", "definitions": {"a": {"$id": "#b"}}, **_HERE}, None),
        ({"$schema": _DRAFT_4, "id": "http://host/a", "definitions": {"a": {"id": "#b"}}, **_HERE}, None),
        ({"$id": "http://host/a", "x": {"a": {"$id": "#b", "not": {"$ref": "#/x"}}}}, "other than that of the whole"),
        ({"$schema": _DRAFT_7, "not": {"$schema": "a", "$id": "#b", **_HERE}}, "other than that of the whole"),
        ({"$id": "http://host/a#", "not": {"$ref": "http://host/a#/$defs/a"}, "items": {"$ref": "a#/x"}}, None),
        ({"$id": "http://host/a", "not": {"$ref": "http://host/b#/$defs/a"}}, "leads out of json_schema"),
        ({"$id": "http://host/a", "$ref": "a"}, "leads out of json_schema"),
        ({"$schema": _DRAFT_4, "$id": "http://host/a", "not": {"$ref": "http://host/a"}}, "leads out of json_schema"),
        ({"$id": "http://host/a", "$PARAMETER": "a", "not": {"$ref": "a"}}, "leads out of json_schema"),
        ({"$ref": "http://host/a"}, "leads out of json_schema"),
        ({"$ref": "file:///etc/a"}, "leads out of json_schema"),
        ({"allOf": ({"not": {"$dynamicRef": "a"}},)}, "leads out of json_schema"),
        ({"const": [{"$recursiveRef": " #"}]}, "leads out of json_schema"),
        ({"$PARAMETER": "a", "$PARAMETER.a": {"$ref": "http://host/a"}}, "leads out of json_schema"),
        # To a part that only a pointer finds, `$id` gives another base, and `#` is then all of what lies there.
        ({"$ref": "#/x/a", "x": {"a": {"not": {"$id": "http://host/a", "$ref": "#"}}}}, "other than that of the whole"),
        (
            {"$schema": "http://json-schema.org/dra\nft-04/schema#", "x": {"id": "http://host/", "not": _HERE}},
            "other than that of the whole",
        ),
    ],
)
def test_a_json_schema_refers_to_itself_alone(
    schema: dict[str, Any], refused: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reference to elsewhere jsonschema fetches, in the worker, and waits for it without end."""
    if refused is None:
        warn("column_values_to_match_json_schema", column="x", json_schema=schema)
        fetched: list[object] = []
        monkeypatch.setattr("urllib.request.urlopen", fetched.append)
        for value in ({"a": 1}, [1]):
            with suppress(Exception):
                jsonschema.validate(value, schema)
        assert not fetched
        return
    with pytest.raises(FunctionError, match=refused):
        warn("column_values_to_match_json_schema", column="x", json_schema=schema)


def test_drop_is_for_rows_only() -> None:
    with pytest.raises(FunctionError, match="no rows to drop"):
        drop("table_row_count_to_equal", value=3)
    with pytest.raises(FunctionError, match="mostly"):
        drop("column_values_to_not_be_null", column="x", mostly=0.9)
    with pytest.raises(FunctionError, match="not possible at a gate"):
        warn("unexpected_rows_expectation", unexpected_rows_query="select 1")


def test_an_expectation_object_is_taken_by_its_shape() -> None:
    configuration = SimpleNamespace(type="expect_column_values_to_be_in_set", kwargs={"column": "k", "value_set": [1]})
    check = fail(SimpleNamespace(configuration=configuration))
    assert (check.expectation, check.kwargs["value_set"], check.custom) == (configuration.type, [1], None)

    own = SimpleNamespace(configuration=SimpleNamespace(type="expect_something_of_ours", kwargs={"column": "k"}))
    assert warn(own).custom is own
    with pytest.raises(FunctionError, match="no rows to drop"):
        drop(own)
    with pytest.raises(FunctionError, match="neither an expectation"):
        warn(3)


def test_a_gate_knows_its_fields_and_refuses_a_missing_one() -> None:
    gate = Gate(
        "clean",
        [
            drop("column_values_to_not_be_null", column="a"),
            warn("column_pair_values_to_be_equal", column_A="a", column_B="st.b"),
            warn("compound_columns_to_be_unique", column_list=["c", "d"]),
            warn("table_row_count_to_equal", value=1, row_condition='col("e") == "x"'),
            warn("column_values_to_be_null", column="a", row_condition="f > 1 and g is null", condition_parser="spark"),
            warn("table_columns_to_match_set", column_set=["z"]),
            warn("column_to_exist", column="y"),
        ],
    )
    assert gate.fields == ("a", "st.b", "c", "d", "e", "f", "g")
    gate.validate(["a", "st", "c", "d", "e", "f", "g"])
    with pytest.raises(FieldError) as caught:
        gate.validate(["a", "st", "c", "d", "e", "g"])
    assert caught.value.field == "f"


@pytest.mark.parametrize(
    ("kind", "texts", "refused"),
    [
        (
            T.TimestampType(),
            ["2024-01-01 10:00:00", "2024-01-01", "2024-01-01T10:00:00.1Z", "2024", "2024-1-1 9:05 Europe/Berlin"],
            ["soon", "20240101", "2024-13-01", "2024-01-41", "2024-W01-1", "10", ""],
        ),
        (T.DateType(), ["2024-01-01 10:00:00", "2024-01", " 2024-1-1 "], ["x", "1e3"]),
        (T.DoubleType(), ["NaN", ".5", "5.", "-Infinity", " 1e-3 ", "+inf"], ["x", "1 2", ".", ""]),
        (T.LongType(), [" 5 ", "-5"], ["5.0", ".5", "NaN", "1e2"]),
        (T.BooleanType(), ["true", "f"], []),
        (T.StringType(), ["x", datetime.date(2024, 1, 1), True], [5, 1.5]),
        (None, ["x", 5], []),
    ],
)
def test_texts_of_conditions_are_left_to_spark(kind: T.DataType | None, texts: list[Any], refused: list[Any]) -> None:
    """A time that Python reads is one of the driver's zone, not of the session's."""
    assert [_value(value, kind, "x") for value in texts] == texts
    for value in refused:
        with pytest.raises(FunctionError, match="compare"):
            _value(value, kind, "x")


def test_names_are_unique_in_a_gate() -> None:
    twice = [
        warn("column_values_to_be_between", column="x", min_value=0),
        warn("column_values_to_be_between", column="x"),
    ]
    assert [check.name for check in Gate("g", twice).checks] == [
        "values_to_be_between(x)#1",
        "values_to_be_between(x)#2",
    ]
    with pytest.raises(FunctionError, match="two checks"):
        Gate("g", [warn("column_values_to_be_null", column=c, name="same") for c in "ab"])


def test_a_gate_needs_a_name_and_checks() -> None:
    with pytest.raises(BadNameError):
        Gate("Bad-name", [warn("column_values_to_be_null", column="a")])
    with pytest.raises(FunctionError, match="no checks"):
        Gate("empty", [])
    with pytest.raises(FunctionError, match="is not a check"):
        Gate("odd", ["column_values_to_be_null"])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("text", "column", "operator", "parameter"),
    [
        ('col("k") == "a b"', "k", "==", "a b"),
        ("col('k')!='x'", "k", "!=", "x"),
        ('col("n") >= -1.5e3', "n", ">=", -1500.0),
        ('col("n")<3', "n", "<", 3),
        ('col("d") > date("2024-01-01")', "d", ">", "2024-01-01"),
    ],
)
def test_simple_conditions(text: str, column: str, operator: str, parameter: object) -> None:
    expected = {"type": "comparison", "column": {"name": column}, "operator": operator, "parameter": parameter}
    assert parse_condition(text) == expected


def test_condition_fields_of_every_form() -> None:
    both = {"type": "and", "conditions": [parse_condition('col("a") > 1'), parse_condition('col("b").notnull()')]}
    assert condition_fields(both) == ("a", "b")
    assert condition_fields("x > 1 and upper(y) = 'Z'") == ("x", "y")
    assert condition_fields(None) == ()


def test_a_long_condition_is_refused() -> None:
    with pytest.raises(FunctionError, match="20,000 are the most"):
        parse_condition('col("x") == "' + " " * 20_000 + '"')


def test_a_condition_takes_the_time_of_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "MOST_TEXT", 10**6)
    begun = time.process_time()
    with pytest.raises(FunctionError, match="cannot read"):
        parse_condition('col("x") b' + " " * 100_000 + "y")
    with pytest.raises(FunctionError, match="compare"):
        _value("1" * 100_000 + "x", T.DoubleType(), "x")
    assert time.process_time() - begun < 30, "hundredths; minutes where each space or digit looks through the rest"


def test_great_expectations_gets_conditions_as_sql_that_is_written_here() -> None:
    given = {
        "type": "or",
        "conditions": [
            'col("st.a b") == "${env:HOME} it\'s \\"',
            {
                "type": "comparison",
                "column": {"name": "`a.b`"},
                "operator": "NOT_IN",
                "parameter": [1, -2.5, Decimal("-2.50"), "x"],
            },
            {"type": "and", "conditions": ['col("y").notnull()', "x > 0 or x < -1"]},
            {"type": "nullity", "column": {"name": "`n` or `m"}, "is_null": True},
        ],
    }
    assert condition_sql(given) == (
        "(`st`.`a b` == '$' '{env:HOME} it''s ' R'\\' OR `a.b` NOT IN (1, -2.5, -2.50BD, 'x')"
        " OR (`y` IS NOT NULL AND (`x` > 0 OR `x` < -1)) OR ```n`` or ``m` IS NULL)"
    )
    assert condition_sql("y > 0 /* and java_method('java.lang.System', 'getenv', 'X') */ -- x") == "(`y` > 0)"


@pytest.mark.parametrize(
    "condition",
    [
        'col("${env:HOME}") > 1',
        {"type": "comparison", "column": {"name": "x"}, "operator": "or true or", "parameter": 1},
        {"type": "comparison", "column": {"name": "x"}, "operator": ">", "parameter": float("nan")},
        {"type": "comparison", "column": {"name": "x"}, "operator": ">", "parameter": datetime.date(2024, 1, 1)},
        {"type": "comparison", "column": {"name": "x"}, "operator": ">", "parameter": Decimal("NaN")},
        {"type": "comparison", "column": {"name": "x"}, "operator": ">", "parameter": Decimal("1e999999999")},
        {"type": "comparison", "column": {"name": "x"}, "operator": ">", "parameter": Decimal("1e-999999999")},
        {"column": {"name": "x"}, "operator": ">", "parameter": 1},
        # To Spark the comment ends after `/*+ */`, and the call is one.
        "y > 0 /* /*+ */ and java_method('java.lang.System', 'getenv', 'X') -- */",
    ],
)
def test_what_cannot_be_written_as_sql_is_refused(condition: Any) -> None:
    with pytest.raises(FunctionError):
        condition_sql(condition)


@pytest.mark.parametrize(
    "text",
    [
        "`reflect`('a', 'b')",
        "REFLECT /* */ ('a')",
        "x in (select 1)",
        "count(x) > 1",
        "x >",
        "try_reflect('a') = `'` or 'b'",
    ],
)
def test_dangerous_or_wrong_sql_is_refused(text: str) -> None:
    with pytest.raises(FunctionError):
        fields_of_sql("row_condition", text)


def test_a_result_sums_up_and_refuses() -> None:
    good = CheckResult("a", "expect_a", "fail", True, rows=3, unexpected=0)
    bad_rows = CheckResult("b", "expect_b", "drop", False, rows=3, unexpected=1)
    result = GateResult("g", (good, bad_rows))
    assert (result.success, result.failed, result.refused) == (False, (bad_rows,), ())
    result.raise_if_refused("batch 1")
    broken = CheckResult("c", "expect_c", "fail", False, error="no column")
    with pytest.raises(GateError) as caught:
        GateResult("g", (good, broken)).raise_if_refused("batch 1")
    assert caught.value.failed == ("c: could not be checked: no column",)


def test_results_are_json_even_with_numpy_values() -> None:
    import datetime
    import decimal

    import numpy as np

    odd = {
        "a": np.int64(1),
        "b": np.array([1.5]),
        "c": float("nan"),
        "d": datetime.date(2024, 1, 1),
        "e": decimal.Decimal(2),
    }
    result = GateResult("g", (CheckResult("a", "e", "warn", True, observed=np.float64(2), detail=odd),))
    found = json.loads(json.dumps(result.to_json()))["checks"][0]
    assert found["observed"] == 2
    assert found["detail"] == {"a": 1, "b": [1.5], "c": None, "d": "2024-01-01", "e": 2}


def test_defining_a_gate_imports_neither_spark_nor_great_expectations() -> None:
    code = (
        "import sys; from pipelines.quality import Gate, warn, drop\n"
        "check = drop('column_values_to_not_be_null', column='x', row_condition='col(\"a\") > 1')\n"
        "Gate('g', [check]).validate(['x', 'a'])\n"
        "assert not {'pyspark', 'great_expectations'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["source", "batch"])
def test_a_gate_has_no_name_of_another_stage_of_quarantine(name: str) -> None:
    """What it rejects would leave quarantine as rows of a poison batch do."""
    with pytest.raises(FunctionError, match="quarantine calls rows by that name"):
        Gate(name, [drop("expect_column_values_to_not_be_null", column="k")])
