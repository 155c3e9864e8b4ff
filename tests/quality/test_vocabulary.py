"""The table of expectation types against the installed great-expectations."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from pipelines.quality import warn
from pipelines.quality.expectations import _quiet, _to_expectation
from pipelines.quality.vocabulary import EXPECTATIONS, UNSUPPORTED

# Arguments that every expectation takes, and fields that are no arguments.
_COMMON = {
    "id",
    "meta",
    "notes",
    "result_format",
    "description",
    "catch_exceptions",
    "rendered_content",
    "severity",
    "windows",
    "batch_id",
    "library_metadata",
}


@pytest.mark.slow
def test_the_table_is_what_great_expectations_has() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import great_expectations.expectations  # noqa: F401
        from great_expectations.expectations.registry import (
            get_expectation_impl,
            list_registered_expectation_implementations,
        )
    real = {name: get_expectation_impl(name) for name in list_registered_expectation_implementations()}
    real = {name: kind for name, kind in real.items() if kind.__module__.startswith("great_expectations.")}
    assert set(real) == set(EXPECTATIONS) | set(UNSUPPORTED)
    for name, known in EXPECTATIONS.items():
        fields = {key: field for key, field in real[name].__fields__.items() if key not in _COMMON}
        assert set(known.parameters) == set(fields), name
        assert {key for key, field in fields.items() if field.required} == set(known.required), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("condition", "sql"),
    [
        ("y > 0 /* and java_method('java.lang.System', 'getenv', 'HOME') like x */ -- x", "(`y` > 0)"),
        ("x like '${env:HOME}'", "(`x` LIKE '$' '{env:HOME}')"),
        ('col("x") == "${env:HOME}"', "`x` == '$' '{env:HOME}'"),
        ({"type": "nullity", "column": {"name": "st.x"}, "is_null": False}, "`st`.`x` IS NOT NULL"),
        (
            {
                "type": "or",
                "conditions": [
                    {"type": "comparison", "column": {"name": "y"}, "operator": "IN", "parameter": [1, 2]},
                    {
                        "type": "and",
                        "conditions": [
                            {"type": "nullity", "column": {"name": "y"}, "is_null": True},
                            {"type": "pass_through", "pass_through_filter": "x"},
                        ],
                    },
                ],
            },
            "(`y` IN (1, 2) OR (`y` IS NULL AND (`x`)))",
        ),
    ],
)
def test_great_expectations_gets_no_condition_as_it_was_given(condition: Any, sql: str) -> None:
    check = warn("column_values_to_be_json_parseable", column="x", row_condition=condition, condition_parser="spark")
    with _quiet():
        made = _to_expectation(check).configuration.kwargs
    assert made["row_condition"] == {"type": "pass_through", "pass_through_filter": sql}
