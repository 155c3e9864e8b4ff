"""The three kinds of functions, and where their types come from."""

from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines.errors import FunctionError
from pipelines.sources import FixedBatches
from pipelines.trident import (
    ArrowFunction,
    ColumnFunction,
    Not,
    RowFunction,
    Split,
    TridentTopology,
    arrow_function,
    row_function,
)
from pipelines.trident.functions import as_function, as_predicate
from tests.planner.plans import rows_of, source


def untyped(n: int) -> Any:
    yield from range(n)


def annotated(n: int) -> Iterator[int]:
    yield from range(n)


def annotated_pair(n: int) -> Iterator[tuple[int, str]]:
    yield n, str(n)


def test_a_callable_is_a_column_function() -> None:
    function, names = as_function("each", lambda column: column + 1, "x")
    assert isinstance(function, ColumnFunction)
    assert (names, str(function), function(1)) == (("x",), "function", 2)


def test_a_named_callable_keeps_its_name() -> None:
    def upper(column: Any) -> Any:
        return column

    assert str(as_function("each", upper, "x")[0]) == "upper"


def test_a_generator_is_a_row_function_with_types_of_its_annotation() -> None:
    assert as_function("each", annotated, "d") == (RowFunction(annotated, ("bigint",)), ("d",))
    assert as_function("each", annotated_pair, ["a", "b"])[0].types == ("bigint", "string")


def test_types_in_the_outputs() -> None:
    assert as_function("each", untyped, "d int") == (RowFunction(untyped, ("int",)), ("d",))
    assert as_function("each", untyped, ["d int", "e string"])[0].types == ("int", "string")
    assert as_function("each", untyped, "d int, e string")[1] == ("d", "e")


def test_types_in_the_outputs_go_before_the_annotation() -> None:
    assert as_function("each", annotated, "d smallint")[0].types == ("smallint",)


def test_decorators() -> None:
    @row_function("bigint")
    def rows(n: int) -> Any:
        yield n

    @arrow_function(["double", "string"])
    def arrays(n: Any) -> Any:
        return n, n

    assert isinstance(rows, RowFunction)
    assert isinstance(arrays, ArrowFunction)
    assert (rows.types, arrays.types) == (("bigint",), ("double", "string"))
    assert (str(rows), str(arrays)) == ("rows", "arrays")
    assert as_function("each", rows, "x") == (rows, ("x",))


@pytest.mark.parametrize(
    ("given", "outputs"),
    [
        (untyped, "d"),
        (annotated, ["d", "e"]),
        (annotated_pair, "d"),
        (RowFunction(untyped), "d"),
        (RowFunction(untyped, ("bigint",)), ["d", "e"]),
        (ArrowFunction(untyped), "d"),
        ("word", "d"),
        (None, "d"),
    ],
)
def test_types_that_do_not_fit(given: Any, outputs: Any) -> None:
    with pytest.raises(FunctionError):
        as_function("each", given, outputs)


def test_predicates() -> None:
    assert as_predicate("filter", "a > 1") == "a > 1"
    assert isinstance(as_predicate("filter", lambda a: a), ColumnFunction)
    kept = RowFunction(lambda a: a > 1)
    assert as_predicate("filter", kept) is kept
    for wrong in (7, None, ArrowFunction(lambda a: a), annotated, RowFunction(annotated), Not(RowFunction(annotated))):
        with pytest.raises(FunctionError):
            as_predicate("filter", wrong)


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ("hello the man said", ["hello", "the", "man", "said"]),
        ("the", ["the"]),
        ("  two  spaces ", ["two", "spaces"]),
        ("tab\tstays", ["tab\tstays"]),
        ("", []),
        (None, []),
    ],
)
def test_rule_1_3_split(sentence: str | None, words: list[str]) -> None:
    assert list(Split().rows(sentence)) == words


SPLIT: list[tuple[str, Any, list[str]]] = [
    ("bigint", -12, ["-12"]),
    ("boolean", True, ["true"]),
    ("decimal(12,8)", Decimal("0.00000010"), ["0.00000010"]),
    ("date", date(2024, 1, 1), ["2024-01-01"]),
    ("timestamp", datetime(2024, 1, 1, 12), ["2024-01-01", "12:00:00"]),
    ("timestamp", datetime(2024, 1, 1, 12, microsecond=1500), ["2024-01-01", "12:00:00.0015"]),
]


def test_other_values_are_split_as_texts() -> None:
    for _, value, words in SPLIT:
        assert list(Split().rows(value)) == words
    with pytest.raises(FunctionError, match="takes texts"):
        list(Split().rows(1.5))


def test_other_values_are_split_as_texts_on_spark(spark: SparkSession) -> None:
    for kind, value, words in SPLIT:
        stream = (
            TridentTopology("t").new_stream("s", FixedBatches(f"x {kind}", [])).each("x", Split(), "w").project("w")
        )
        assert rows_of(stream, {"s": source(spark, f"x {kind}", [(value,)])}) == [(word,) for word in sorted(words)]
