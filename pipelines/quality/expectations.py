"""Checks that great-expectations runs itself, on a batch or a table.

It is imported inside the functions only (seven seconds), and asked for yes or no first: the rows of an expectation cost
extra queries, so they are fetched for the failed ones alone.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pipelines.quality.conditions import condition_sql, parse_condition
from pipelines.quality.gate import Check
from pipelines.quality.results import CheckResult, to_json_value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COMPLETE = {"result_format": "COMPLETE", "return_unexpected_index_query": False}
# Facts of a complete result that are the check's own numbers already, or would repeat every bad row.
_NOT_DETAIL = {"element_count", "unexpected_count", "observed_value", "unexpected_list", "unexpected_index_list"}

Validate = Callable[[Sequence[Any], Any], list[Any]]


def run_expectations(df: DataFrame, checks: Sequence[Check], *, complete: bool = False) -> tuple[CheckResult, ...]:
    """Run checks by great-expectations on a bounded frame.

    Args:
        df: the rows; not a streaming frame. It is read several times: persist it.
        checks: what to run; any expectation type.
        complete: fetch counts and samples of the successful ones too.

    Returns:
        One result a check, in order. What could not be evaluated has `error` set: great-expectations does not raise.
    """
    if not checks:
        return ()
    with _quiet():
        expectations = [_to_expectation(check) for check in checks]
        runnable = [expectation for expectation in expectations if not isinstance(expectation, str)]
        validate = _validator(df)
        outcomes = iter(validate(runnable, _COMPLETE if complete else "BOOLEAN_ONLY"))
        answers = [made if isinstance(made, str) else next(outcomes) for made in expectations]
        if not complete:
            answers = _with_details(answers, expectations, validate)
    return tuple(_to_result(check, answer) for check, answer in zip(checks, answers, strict=True))


def _with_details(answers: list[Any], expectations: list[Any], validate: Validate) -> list[Any]:
    """Return the answers, with the failed ones asked again in full."""
    again = [i for i, answer in enumerate(answers) if not isinstance(answer, str) and _failed(answer)]
    if again:
        for i, answer in zip(again, validate([expectations[i] for i in again], _COMPLETE), strict=True):
            answers[i] = answer
    return answers


def _failed(answer: Any) -> bool:
    return not answer.success and exception_text(answer.exception_info) is None


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the notes on old argument forms and on metrics: results and errors say all that matters."""
    logger = logging.getLogger("great_expectations")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _validator(df: DataFrame) -> Validate:
    """Return a function that validates expectations on `df` and returns their results in the order given."""
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    # persist=False: the default caches the frame and never frees it.
    source = context.data_sources.add_spark("batch", persist=False)
    definition = source.add_dataframe_asset("rows").add_batch_definition_whole_dataframe("all")
    batch = definition.get_batch({"dataframe": df})

    def validate(expectations: Sequence[Any], result_format: Any) -> list[Any]:
        if not expectations:
            return []
        # The suite refuses equal expectations and its results come back in an order of its own.
        marked = [_marked(expectation, position) for position, expectation in enumerate(expectations)]
        suite = gx.ExpectationSuite(name="checks", expectations=marked)
        results = batch.validate(suite, result_format=result_format).results
        by_position = {_meta(result)["position"]: result for result in results}
        return [by_position[position] for position in range(len(expectations))]

    return validate


def _meta(result: Any) -> Mapping[str, Any]:
    meta: Mapping[str, Any] = result.expectation_config.meta
    return meta


def _marked(expectation: Any, position: int) -> Any:
    marked = expectation.copy()
    marked.id = None
    marked.meta = {**(expectation.meta or {}), "position": position}
    return marked


def _to_expectation(check: Check) -> Any:
    """Return the great-expectations object of a check, or the text of the error that it cannot be made."""
    if check.custom is not None:
        return check.custom
    from great_expectations.expectations.registry import get_expectation_impl

    kwargs = dict(check.kwargs)
    condition = parse_condition(kwargs.pop("row_condition", None))
    kwargs.pop("condition_parser", None)
    if condition is not None:
        kwargs["row_condition"] = condition
    for key in ("value_set", "column_list"):
        if isinstance(kwargs.get(key), (set, tuple)):
            kwargs[key] = list(kwargs[key])
    try:
        made: Any = get_expectation_impl(check.expectation)(**kwargs)
        if condition is None:
            return made
        # What it has read, in SQL of ours: its own way from a condition to Spark's text is open to `${...}` and comments.
        ours = {"type": "pass_through", "pass_through_filter": condition_sql(made.row_condition)}
        return type(made)(**{**kwargs, "row_condition": ours})
    except Exception as error:  # pydantic v1 errors, whose class great-expectations hides behind a shim
        return f"{type(error).__name__}: {error}"


def exception_text(info: Any) -> str | None:
    """Return the error in a result's `exception_info`, or None.

    It has two shapes: `{"raised_exception": ..., "exception_message": ...}` itself, or such dicts keyed by metric.
    """
    if not isinstance(info, Mapping):
        return None
    if "raised_exception" in info:
        return str(info.get("exception_message") or "unknown error") if info["raised_exception"] else None
    texts = [text for text in map(exception_text, info.values()) if text]
    return texts[0] if texts else None


def _to_result(check: Check, answer: Any) -> CheckResult:
    if isinstance(answer, str):
        return CheckResult(check.name, check.expectation, check.action, False, error=answer)
    error = exception_text(answer.exception_info)
    if error is not None:
        return CheckResult(check.name, check.expectation, check.action, False, error=error)
    result: Mapping[str, Any] = to_json_value(answer.result or {})
    detail = {key: value for key, value in result.items() if key not in _NOT_DETAIL}
    return CheckResult(
        check.name,
        check.expectation,
        check.action,
        bool(answer.success),
        rows=result.get("element_count"),
        unexpected=result.get("unexpected_count"),
        observed=result.get("observed_value"),
        detail=detail,
    )
