"""Criteria: one defined answer for every event, in Python and in Spark (Flowmix rules 6)."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pipelines.errors import FunctionError
from pipelines.flowmix import (
    Criteria,
    Event,
    and_,
    eq,
    gt,
    gte,
    has,
    has_not,
    in_,
    lt,
    lte,
    not_,
    not_eq,
    or_,
    python,
    range_,
)
from pipelines.flowmix.conditions import as_criteria
from pipelines.flowmix.values import fitted
from pipelines.graph.fields import parse_ddl
from pipelines.trident import Equals, FilterNull, Not

NOON = datetime.datetime(2013, 1, 1, 12, 0)
SCHEMA = "k string, n bigint, i int, x double, d decimal(10,2), b boolean, t timestamp, day date, many array<bigint>"
ROWS: list[dict[str, Any]] = [
    {
        "k": "a",
        "n": 5,
        "i": 5,
        "x": 5.0,
        "d": Decimal("5.00"),
        "b": True,
        "t": NOON,
        "day": NOON.date(),
        "many": [1, 5],
    },
    {"k": "b", "n": -1, "i": 7, "x": float("nan"), "d": Decimal("4.99"), "b": False, "many": []},
    {"many": [3]},
    {},
    {"k": "", "n": 0, "x": -0.0, "many": [None, 9]},
]


def event(**fields: Any) -> Event:
    return Event(fields, "e", 0)


RULES: list[tuple[Criteria, Event, bool]] = [
    (eq("k", "a"), event(k="a"), True),
    (eq("k", "a"), event(k="b"), False),
    (eq("k", "a"), event(), False),
    (not_eq("k", "a"), event(k="b"), True),
    (not_eq("k", "a"), event(k="a"), False),
    (not_eq("k", "a"), event(), False),
    (has("k"), event(k="a"), True),
    (has("k"), event(), False),
    (has_not("k"), event(k="a"), False),
    (has_not("k"), event(), True),
    (gt("n", 3), event(n=4), True),
    (gt("n", 3), event(n=3), False),
    (gt("n", 3), event(), False),
    (gte("n", 3), event(n=3), True),
    (lt("n", 3), event(n=2), True),
    (lt("n", 3), event(n=3), False),
    (lte("n", 3), event(n=3), True),
    (in_("k", "a", "b"), event(k="b"), True),
    (in_("k", ["a", "b"]), event(k="c"), False),
    (in_("k", ()), event(k="c"), False),
    (and_(eq("k", "a"), gt("n", 3)), event(k="a", n=4), True),
    (and_(eq("k", "a"), gt("n", 3)), event(k="a", n=3), False),
    (or_(eq("k", "a"), gt("n", 3)), event(k="b", n=4), True),
    (or_(eq("k", "a"), gt("n", 3)), event(k="b"), False),
    (and_(), event(), True),
    (or_(), event(), False),
    (not_(eq("k", "a")), event(), True),
]


@pytest.mark.parametrize(("criteria", "given", "answer"), RULES, ids=str)
def test_6_leaves_and_combinations(criteria: Criteria, given: Event, answer: bool) -> None:
    assert criteria.matches(given) is answer


def test_6_any_value_of_a_field_is_enough() -> None:
    several = event(k=["a", "b"])
    assert eq("k", "b").matches(several)
    assert not_eq("k", "b").matches(several)
    assert gt("k", "a").matches(several)
    assert not lt("k", "a").matches(several)
    assert not has("k").matches(event(k=[]))


def test_6_a_range_works() -> None:
    """BUG: the original has no range ("An unsupported leaf was encountered")."""
    inside = [n for n in range(6) if range_("n", 2, 4).matches(event(n=n))]
    assert inside == [2, 3, 4]


def test_6_numbers_of_different_types_compare_as_numbers() -> None:
    """BUG: the original fails where a long meets an int."""
    assert eq("x", 5).matches(event(x=5.0))
    assert gt("x", 4).matches(event(x=Decimal("4.5")))
    assert lt("x", 4.5).matches(event(x=4))


BIG = 2**53 + 1
MIXED = "d decimal(10,2), f float, b bigint, x double, u decimal(38,0)"
NUMBERS: list[dict[str, Any]] = [
    {"d": Decimal("0.10"), "f": 0.1, "b": BIG, "x": 0.1, "u": Decimal(2**64)},
    {"d": Decimal("0.30"), "f": 0.5, "b": BIG - 1, "x": 0.2, "u": Decimal(5)},
    {"d": Decimal("0.20"), "f": float(2**24), "b": 2**24 + 1, "x": float(BIG), "u": Decimal(10**38 - 1)},
]
COMPARED: list[tuple[Criteria, list[bool]]] = [
    (eq("d", 0.1), [True, False, False]),
    (in_("d", 0.1, 0.2), [True, False, True]),
    (range_("d", 0.1, 0.3), [True, True, True]),
    (eq("f", 0.1), [False, False, False]),
    (gt("f", 0.1), [True, True, True]),
    (eq("f", Decimal("0.5")), [False, True, False]),
    (eq("f", 2**24 + 1), [False, False, False]),
    (eq("b", float(BIG - 1)), [True, True, False]),
    (eq("b", BIG), [True, False, False]),
    (eq("x", Decimal("0.1")), [True, False, False]),
    (eq("x", BIG), [False, False, True]),
    (lt("x", Decimal("0.2")), [True, False, False]),
    (eq("u", 2**64), [True, False, False]),
    (gt("u", 2**64), [False, False, True]),
    (lt("u", 10**38), [True, True, True]),
    (range_("u", -(10**400), 2**64), [True, True, False]),
    (in_("b", BIG, 2**63), [True, False, False]),
    (lt("b", 2**63), [True, True, True]),
    (lt("b", -(2**63) - 1), [False, False, False]),
    (not_eq("b", 10**40), [True, True, True]),
    (gt("d", -(10**37)), [True, True, True]),
    (lt("x", 10**400), [True, True, True]),
]


def numbers() -> list[Event]:
    kinds = dict(parse_ddl(MIXED))
    return [Event({name: fitted(value, kinds[name]) for name, value in row.items()}, "e", 0) for row in NUMBERS]


@pytest.mark.parametrize(("criteria", "answers"), COMPARED, ids=str)
def test_6_a_number_beside_a_double_compares_as_one(criteria: Criteria, answers: list[bool]) -> None:
    assert [criteria.matches(event) for event in numbers()] == answers


def test_6_numbers_beside_doubles_compare_alike_on_spark(spark: SparkSession) -> None:
    frame = spark.createDataFrame([tuple(row.values()) for row in NUMBERS], MIXED).coalesce(1)
    found = frame.select(*(one.column(dict(parse_ddl(MIXED))).alias(f"c{i}") for i, (one, _) in enumerate(COMPARED)))
    rows = found.collect()
    for i, (one, answers) in enumerate(COMPARED):
        assert [row[i] for row in rows] == answers, str(one)


def test_6_values_of_different_kinds_are_neither_equal_nor_ordered() -> None:
    for value in ("5", True, b"5", NOON, NOON.date()):
        assert not eq("n", 5).matches(event(n=value))
        assert not_eq("n", 5).matches(event(n=value))
        assert not gt("n", 5).matches(event(n=value))
        assert not lte("n", 5).matches(event(n=value))
    assert not eq("t", NOON.date()).matches(event(t=NOON))


def test_what_is_no_criteria_is_refused_at_the_line() -> None:
    for given in (5, None, ["n > 3"]):
        with pytest.raises(FunctionError):
            as_criteria("filter", given, ("n",))
    for text in ("n >", "count(n) > 3", "reflect('java.lang.System', 'exit', 1) = 1", "n > 3; n > 4", "*"):
        with pytest.raises(FunctionError):
            as_criteria("filter", text, ("n",))
    with pytest.raises(FunctionError, match="mixes"):
        as_criteria("filter", and_("n > 3", python(lambda e: True)), ("n",))
    for leaf in (lambda: eq("k", "\ud800"), lambda: has("\udfff")):
        with pytest.raises(FunctionError, match="half a character"):
            leaf()
    with pytest.raises(FunctionError, match="has"):
        eq("n", None)
    for value in ({"x": 1}, [1], datetime.timedelta(1), np.int64(5)):
        for make, given in ((eq, [value]), (not_eq, [value]), (gt, [value]), (in_, [1, value])):
            with pytest.raises(FunctionError, match=r"compares s with .*, which is no number, text"):
                make("s", *given)


def test_a_callable_gets_the_columns_that_it_names_or_all() -> None:
    fields = ("k", "n", "x")
    for call, named in (
        (lambda n: n, ("n",)),
        (lambda x, n: n, ("x", "n")),
        (lambda a, b, c: a, fields),
        (lambda *all_of_them: None, fields),
        (FilterNull(), fields),
        (Not(Equals()), fields),
    ):
        assert as_criteria("filter", call, fields).fields == named
    with pytest.raises(FunctionError, match=r"takes 2 Column\(s\)"):
        as_criteria("filter", lambda a, b: a, fields)
    with pytest.raises(FunctionError, match="python"):
        as_criteria("filter", lambda event: event["n"] > 3, fields)
    assert as_criteria("filter", lambda n: n, None).fields == ("n",)


def test_a_python_predicate_is_also_a_decorator() -> None:
    @python
    def late(event: Event) -> bool:
        return event.timestamp > 5

    assert late.matches(Event({}, "e", 6))
    assert not late(Event({}, "e", 5))
    assert str(late) == "late"


LEAVES: list[Callable[[], Criteria]] = [
    lambda: eq("n", 5), lambda: eq("n", 5.0), lambda: eq("n", "5"), lambda: eq("k", "a"), lambda: eq("k", 5),
    lambda: eq("b", True), lambda: eq("b", 1), lambda: eq("x", float("nan")), lambda: gt("x", 100), lambda: lt("x", 1),
    lambda: not_eq("n", 5), lambda: not_eq("n", "5"), lambda: not_eq("x", 5), lambda: not_eq("many", 5),
    lambda: has("k"), lambda: has_not("k"), lambda: has("many"), lambda: has_not("many"), lambda: has("nowhere"),
    lambda: has_not("nowhere"), lambda: eq("nowhere", 1), lambda: not_eq("nowhere", 1),
    lambda: gte("d", 5), lambda: lt("d", Decimal("5.00")), lambda: lte("d", 4.99), lambda: gt("i", 5.5),
    lambda: gt("many", 4), lambda: eq("many", 3), lambda: eq("many", "3"), lambda: lte("many", 0),
    lambda: in_("k", "a", 5, ""), lambda: in_("n", 5, "x", 0), lambda: range_("n", 0, 5), lambda: range_("k", "", "a"),
    lambda: range_("n", 0, "z"), lambda: eq("t", NOON), lambda: gt("t", NOON.replace(hour=1)), lambda: eq("day", NOON.date()),
    lambda: eq("t", NOON.date()), lambda: and_(has("k"), gt("n", 0)), lambda: or_(eq("k", "b"), has_not("n")),
    lambda: not_(gt("n", 0)), lambda: lt("n", 2**63), lambda: range_("n", -(2**64), 2**64), lambda: lt("many", 2**64),
    lambda: gt("i", Decimal(-(10**20))), lambda: lte("i", Decimal("1e20")), lambda: not_eq("n", 2**64),
]  # fmt: skip


@pytest.mark.slow
def test_6_python_and_spark_give_the_same_answers(spark: SparkSession) -> None:
    frame = spark.createDataFrame([tuple(row.get(name) for name in NAMES) for row in ROWS], SCHEMA)
    types = {field.name: field.dataType.simpleString() for field in frame.schema}
    criteria = [leaf() for leaf in LEAVES]
    found = frame.select(*(one.column(types).alias(f"c{i}") for i, one in enumerate(criteria))).collect()
    for i, one in enumerate(criteria):
        plain = [one.matches(Event(row, "e", 0)) for row in ROWS]
        assert [row[i] for row in found] == plain, str(one)


@pytest.mark.usefixtures("in_new_york")
@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz"])
def test_6_a_time_without_zone_is_utc_wherever_the_driver_stands(spark: SparkSession, kind: str) -> None:
    frame = spark.sql(
        f"SELECT h, CAST(concat('2013-01-01 ', h, ':00:00') AS {kind}) AS t FROM VALUES 11, 12, 17 AS v(h)"
    )
    given = [Event({"h": h, "t": NOON.replace(hour=h)}, "e", 0) for h in (11, 12, 17)]
    aware = NOON.replace(hour=7, tzinfo=datetime.timezone(datetime.timedelta(hours=-5)))
    for one in (eq("t", NOON), gt("t", NOON), range_("t", NOON, NOON), in_("t", NOON), eq("t", aware)):
        found = frame.orderBy("h").select(one.column({"h": "int", "t": kind}).alias("found")).collect()
        assert [row.found for row in found] == [one.matches(event) for event in given], str(one)
    day = eq("d", NOON.date()).column({"d": "date"})
    assert frame.selectExpr("CAST(t AS DATE) AS d").where(day).count() == 3


def test_null_counts_as_false_for_sql_and_callables(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1,), (None,), (9,)], "n bigint")
    for given in ("n > 3", "n > 3 -- a remark", lambda n: n > 3):
        one = as_criteria("filter", given, ("n",))
        assert [row[0] for row in frame.select(one.column({"n": "bigint"})).collect()] == [False, False, True]
        assert [row[0] for row in frame.select(not_(one).column({"n": "bigint"})).collect()] == [True, True, False]
    # Text cannot reach beyond its own brackets.
    both = and_("n > 3 or true", gt("n", 5)).column({"n": "bigint"})
    assert [row[0] for row in frame.select(F.coalesce(both, F.lit(False))).collect()] == [False, False, True]


NAMES = [part.split()[0] for part in SCHEMA.replace("decimal(10,2)", "decimal").split(", ")]
