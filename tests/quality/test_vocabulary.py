"""The table of expectation types against the installed great-expectations."""

from __future__ import annotations

import warnings

import pytest

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
