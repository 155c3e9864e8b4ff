"""SQL text over one row: what Spark gets is what was checked, and nothing else is let through."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import sqlglot
from pyspark.errors import ParseException
from sqlglot import exp

from pipelines.errors import FunctionError
from pipelines.flowmix import Flow, gt, or_
from pipelines.graph.expressions import ROW_FUNCTIONS, fields_of_sql, keeps_values, spark_sql
from pipelines.quality import drop
from pipelines.sources import FixedBatches, JsonFiles
from pipelines.trident import TridentTopology
from tests.hostile_text import hostile_texts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.flowmix.stream import FlowStream
    from pipelines.trident.stream import Stream

CALL = "reflect('java.lang.System', 'exit', '1')"
# Two units of an interval are read as any token, which is printed without its quotes; the second text is what would be missed.
IN_UNITS = "second or reflect(lower('A'), lower('B')) <> 'X'"
BYPASSES = [
    f'x > now() - INTERVAL \'1 1:1:1\' DAY TO "{IN_UNITS}" or k = "{IN_UNITS}"',
    f"x > now() - INTERVAL '1 1:1:1' DAY TO `{IN_UNITS}` or k = \"{IN_UNITS}\"",
    "x - INTERVAL '1' \"day) or reflect(lower('A'), lower('B')) <> 'X'\" is null",
    f'extract("{IN_UNITS}" from x) = k or k = "{IN_UNITS}"',
    f'dateadd(`{IN_UNITS}`, 1, x) = k or k = "{IN_UNITS}"',
    f"/* /*+ */ or {CALL} -- */ n > 1",
    f"/*+ {CALL} */ n > 1",
    f"n > 1 --\\\n or {CALL}",
    f"n > 1 /* ' */ or '' = {CALL} -- '",
    f"n = 'a\\' or {CALL} or \\''",
    f"n = R'a\\' or {CALL} or '1' = '1'",
    f'n = "a\\" or {CALL} or \\""',
    f"`n` = 1 or `n``` = {CALL}",
    f"reflect/**/{CALL[7:]} is null",
    f"`reflect`{CALL[7:]} is null",
    f"REFLECT\t{CALL[7:]} is null",
    f"system.builtin.{CALL} is null",
    f"`system`.`builtin`.`reflect`{CALL[7:]} is null",
    "n > 1 or ${env:HOME}",
    "`${env:HOME}` = 1",
    "cast(n as struct<`${env:HOME}`: int>) is null",
    "from_xml(n, 'a int', map('rowValidationXSDPath', '/etc/passwd')) is null",
    "from_avro(n, '{}') is null",
    "input_file_name() = n",
    "current_user() = n",
    "current_user = n",
    "session_user = n",
    "my_udf(n)",
    "exists(select 1)",
    "n in (select 1)",
    "n > 1; drop table t",
    "n -> 'a'",
    "n > :x",
    "transform(xs, x -> reflect('a', 'b', x))[0] = n",
    "case when n > 1 then java_method('a', 'b') end",
]


@pytest.mark.parametrize("text", BYPASSES)
def test_no_way_of_writing_reaches_what_is_not_on_the_list(text: str) -> None:
    """It is refused, or Spark gets none of it."""
    try:
        said = spark_sql("filter", text)
    except FunctionError:
        return
    tree = sqlglot.parse_one(said, read="spark")
    assert not list(tree.find_all(exp.Anonymous))
    assert not [sign for sign in ("${", "/*", "--") if sign in said]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("n > 1 -- a comment", "`n` > 1"),
        (r"a = 'x\dy\'z\n'", "`a` = 'xdy''z\n'"),
        (r"a rlike '\\d+'", r"`a` RLIKE R'\' 'd+'"),
        (r"a rlike R'\d+'", r"`a` RLIKE R'\' 'd+'"),
        ("a = 'it''s' or a = 'x' 'y'", "`a` = 'it''s' OR `a` = 'xy'"),
        # A raw text has no doubled quote, the text behind it may have one.
        ("a = R'it''s' or a = r\"x\"\"y\"", "`a` = 'its' OR `a` = 'xy'"),
        ("a = R'a''b''c' or a = 'a''b'R'c''d'", "`a` = 'ab''c' OR `a` = 'a''bcd'"),
        (r"a = '\u0041\101\%'", r"`a` = 'AA' R'\' '%'"),
        ("a = '${env:HOME}'", "`a` = '$' '{env:HOME}'"),
        ("(a is not null) = b", "(NOT `a` IS NULL) = `b`"),
        ("a is not null = b", "(NOT `a` IS NULL) = `b`"),
        ("named_struct('a', 1).a = ifnull(x, 1)", "NAMED_STRUCT('a', 1).`a` = IFNULL(`x`, 1)"),
        ("dateadd(DAY, 1, at) > now()", "DATEADD(DAY, 1, `at`) > NOW()"),
        ("array(1, n)[0] = 1", "ARRAY(1, `n`)[0] = 1"),
        ("x = 1.5BD", "`x` = 1.5BD"),
        # A sign is part of the number behind it, and of nothing else.
        ("n = -128::int::tinyint", "`n` = CAST(CAST(-128 AS INT) AS TINYINT)"),
        ("-2147483648L::int", "CAST(-2147483648L AS INT)"),
        ("-128.9::tinyint = -128Y", "CAST(-128.9 AS TINYINT) = -128Y"),
        ("-0::double = - 0D", "CAST(-0 AS DOUBLE) = -0D"),
        ("-1.5D::string || -1::date::string", "CAST(-1.5D AS STRING) || CAST(CAST(-1 AS DATE) AS STRING)"),
        ("-cast(128 as tinyint)", "-CAST(128 AS TINYINT)"),
        ("-(128)::tinyint - -try_cast(1 as int)", "-CAST((128) AS TINYINT) - -TRY_CAST(1 AS INT)"),
        ("-cast('5' as string) || -cast('1' as interval day)", "-CAST('5' AS STRING) || -CAST('1' AS INTERVAL DAY)"),
        ("- -128Y", "- -128Y"),
        ("n > +1 and -+2147483648 < n", "`n` > (1) AND -(2147483648) < `n`"),
        # To Spark `+'05'` is a number.
        ("concat(+'05', 'x') || +n", "CONCAT(POSITIVE('05'), 'x') || POSITIVE(`n`)"),
        ("k = +1::string", "`k` = POSITIVE(CAST(1 AS STRING))"),
        ("at + interval '1 day 2 hours' > x", "`at` + INTERVAL '1 day 2 hours' > `x`"),
        # Several units of one interval belong together, whatever stands in front of them.
        ("at > x - interval 1 day 12 hours", "`at` > `x` - (INTERVAL '1' DAY + INTERVAL '12' HOURS)"),
        ("2 * interval 1 day 2 hours", "2 * (INTERVAL '1' DAY + INTERVAL '2' HOURS)"),
        ("at + interval 1 day + interval 2 hours", "`at` + INTERVAL '1' DAY + INTERVAL '2' HOURS"),
        ("a <=> b = c", "(`a` IS NOT DISTINCT FROM `b`) = `c`"),
        ("a = b is not null", "NOT (`a` = `b`) IS NULL"),
    ],
)
def test_spark_gets_the_same_expression_written_anew(text: str, said: str) -> None:
    assert spark_sql("filter", text) == said
    assert spark_sql("filter", said) == said


@pytest.mark.parametrize(
    "text",
    [
        "flags & 1 << 3 > 0",
        "1 << n | 1 << m",
        "a ^ b >> 1",
        "a << 1 || b",
        "a = b not in (1, 2)",
        "a <> b not rlike 'x'",
        "n = 1.5L",
        "1e3.k = 0.k",
        "n > 1e3+1e0",
        "n not between 1 and 3 = b",
        "at + interval +1 day",
        "at - interval '1' day + 2",
        "at - (interval '1' day + '2 hours 3 minutes')",
        "at > x + interval '2'",
        "timestamp '2013-01-01 00:00:00'::date",
        "date '2013-01-01'::string = k",
        "a <=> n between 1 and 2",
        "n < m <=> m <= 2",
        "a <=> n not in (1)",
        "a like 'x' > b <=> n",
        "a like 'x' <=> k",
        "a = not (b) < c",
        "- not (b) = c",
        "a collate UTF8_LCASE::int",
        "a like any ('x', 'y')::string",
        "cast(a as time)",
        "time '10:00' < a",
        "cast(a as array<time>) is null",
        "cast(a as int format 'x')",
        "n := 1",
        "(table t)",
        # Names to Spark.
        "n = 0x1F",
        "n = 0X1f.k",
        "-0x1F = n",
    ],
)
def test_what_spark_reads_in_another_way_is_refused(text: str) -> None:
    with pytest.raises(FunctionError, match=r"without doubt|not allowed"):
        spark_sql("filter", text)


@pytest.mark.parametrize(
    "text",
    [
        # To Spark the comment goes on in the next line: `a > 1`.
        "a > 1 -- only big \\\nAND b",
        "a > 1 --\\\nAND b",
        "a > 1 -- two \\\\\nAND b",
        "a = '--' -- '\\\n or b = ''",
        # To Spark a hint within a comment begins none: `n > 1 and b`.
        "n > 1 /* /*+ */ and b -- */",
        "n > 1 {# c #}",
    ],
)
def test_a_comment_that_spark_ends_elsewhere_is_refused(text: str) -> None:
    with pytest.raises(FunctionError, match=r"without doubt.* a comment that Spark may end elsewhere"):
        fields_of_sql("filter", text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a > 1 -- x \\ \nAND b -- y", "`a` > 1 AND `b`"),
        ("a > 1 -- x \\\r\nAND b", "`a` > 1 AND `b`"),
        ("a > 1 /* -- \\\n **/ AND b /**/ -- /*", "`a` > 1 AND `b`"),
        ("-- /* \na = 1.5BD /*/ x */ -- it's \\", "`a` = 1.5BD"),
        ("a = '-- \\\n'", "`a` = '-- \n'"),
        ("`--\\\nx` = R'--\\'\n", "`--\\\nx` = '--' R'\\'"),
    ],
)
def test_other_comments_and_what_looks_like_one_are_read(text: str, said: str) -> None:
    assert spark_sql("filter", text) == said


def test_a_bare_clock_is_no_field_and_refused_where_there_is_one() -> None:
    text = "at > Current_Timestamp and d > current_date"
    assert set(fields_of_sql("filter", text, ("at", "d"))) == {"at", "d"}
    # Spark itself never takes it for a field.
    assert spark_sql("filter", text) == "`at` > CURRENT_TIMESTAMP() AND `d` > CURRENT_DATE()"
    for name in ("current_timestamp", "Current_Date"):
        with pytest.raises(
            FunctionError, match=rf"without doubt.* has {name.lower()}, which is a field, too"
        ) as caught:
            fields_of_sql("filter", text, ("at", "d", name))
        assert f"`{name.lower()}` in backticks" in caught.value.hint
    plain = "`current_date` > current_date() or s.current_date is null"
    assert set(fields_of_sql("filter", plain, ("current_date", "s"))) == {"current_date", "s"}
    with pytest.raises(FunctionError, match="without doubt"):
        spark_sql("filter", "transform(xs, current_date -> current_date)")


FIELDS = "id bigint, `current_date` string"
BARE = "current_date > '2020-01-01'"


def of_topology(define: Callable[[Stream], object]) -> Callable[[], object]:
    return lambda: define(TridentTopology("t").new_stream("s", FixedBatches(FIELDS, [])))


def of_flow(define: Callable[[FlowStream], object]) -> Callable[[], object]:
    return lambda: define(Flow("f").stream("s", FIELDS))


@pytest.mark.parametrize(
    "define",
    [
        of_topology(lambda s: s.filter(BARE)),
        of_topology(lambda s: s.gate(drop("expect_column_values_to_not_be_null", column="id", row_condition=BARE))),
        of_flow(lambda s: s.filter(BARE)),
        of_flow(lambda s: s.filter(or_(BARE, gt("id", 1)))),
        of_flow(lambda s: s.split(default=gt("id", 1), paths={"other": BARE})),
        of_flow(lambda s: s.split(default=BARE, paths={})),
        of_flow(lambda s: s.compute({"it boolean": BARE})),
        of_flow(lambda s: s.gate(drop("expect_column_values_to_not_be_null", column="id", row_condition=BARE))),
        lambda: Flow("f").stream("s", FIELDS, timestamp="current_date"),
        lambda: TridentTopology("t").new_stream("s", JsonFiles("in", FIELDS), slice_by="current_date"),
    ],
)
def test_a_definition_with_a_bare_clock_that_is_a_field_is_refused(define: Callable[[], object]) -> None:
    with pytest.raises(FunctionError, match="has current_date, which is a field, too"):
        define()


def test_a_name_may_begin_with_a_digit_and_bytes_with_x() -> None:
    assert set(fields_of_sql("filter", "`0x1F` = X'1F' or 0b01 = x'' or 0xfg = 1")) == {"0x1F", "0b01", "0xfg"}


def test_units_of_time_and_variables_are_no_fields() -> None:
    found = fields_of_sql("filter", "timestampadd(HOUR, n, at) > b and exists(xs, x -> x = c)")
    assert set(found) == {"n", "at", "b", "xs", "c"}


@pytest.mark.parametrize(
    "text",
    [
        "(" * 300 + "n" + ")" * 300,
        "[" * 300,
        "not " * 5000 + "n",
        "- " * 5000 + "n",
        "case when n then " * 700 + "1" + " end" * 700,
        "f(" * 49 + "n" + ")" * 49,
        "n + " * 10_000 + "n",
        " or ".join(["n = 1"] * 100_000),
        "cast(n as " + "array<" * 300 + "int" + ">" * 300 + ")",
        "timestamp(" * 40 + "n" + ")" * 40,
        "cast(n as " + "decimal(" * 40 + "1" + ")" * 40 + ")",
    ],
)
def test_what_is_too_deep_or_too_long_is_one_sentence(text: str) -> None:
    with pytest.raises(FunctionError) as caught:
        fields_of_sql("filter", text)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("text", ["k = '\\UFFFFFFFF'", "k = '\\uD800'", "k = R'\ud800'", "`\udfff` = 1"])
def test_what_is_no_character_is_refused(text: str) -> None:
    with pytest.raises(FunctionError, match=r"no character|half a character"):
        fields_of_sql("filter", text)


def test_a_long_list_of_alternatives_is_no_depth() -> None:
    assert fields_of_sql("filter", " or ".join(f"n = {number}" for number in range(900))) == ("n",)


def test_a_refusal_names_the_function_and_what_is_allowed() -> None:
    with pytest.raises(FunctionError, match=r"the function my_udf is not allowed") as caught:
        fields_of_sql("filter", "my_udf(n) > 1")
    assert "docs/flows.md" in caught.value.hint
    with pytest.raises(FunctionError, match="does not look at one tuple alone"):
        fields_of_sql("filter", "sum(n) > 1")


def test_the_same_slice_expression_in_other_words() -> None:
    assert keeps_values("to_date(at)", "TO_DATE( at )")
    assert keeps_values("to_date(at)", "coalesce(to_date(at), 'none')")
    assert not keeps_values("to_date(at)", "to_date(other)")
    assert keeps_values("was_allowed_once(at)", "was_allowed_once(at)")


def test_hostile_texts_are_refused_or_written_anew_to_a_fixed_point() -> None:
    for one in hostile_texts(400, seed=11):
        for text in (one, f"a = '{one}'", f"a = {one}", f"f({one})"):
            try:
                said = spark_sql("filter", text)
            except FunctionError:
                continue
            assert spark_sql("filter", said) == said
            assert "${" not in said


@pytest.mark.slow
def test_every_allowed_function_is_sparks_own_and_of_one_row(spark: SparkSession) -> None:
    """None of them is an aggregate, a generator, a window or of the groups that reach outside."""
    registry = spark._jsparkSession.sessionState().functionRegistry()  # type: ignore[attr-defined]
    syntax = {"extract", "try_cast", "timestampadd", "timestampdiff"}
    listed = registry.listFunction()
    known = [listed.apply(number) for number in range(listed.size())]
    groups = dict.fromkeys(ROW_FUNCTIONS - syntax, "unknown")
    for one in known:
        if one.funcName() in groups:
            groups[one.funcName()] = registry.lookupFunction(one).get().getGroup()
    bad = ("agg_funcs", "generator_funcs", "window_funcs", "xml_funcs", "table_funcs", "unknown")
    assert {name: group for name, group in groups.items() if group in bad} == {}


SAME = r"""
a COLLATE UTF8_LCASE = 'x'
at > now() - interval 1 day 12 hours and at < now() + INTERVAL '1 02:03:04' DAY TO SECOND
extract(YEAR FROM at) = year(at) and dateadd(DAY, 1, at) > at
a = 'x\dy\'z\n\\q'
a like 'x\_%' or a rlike '^\\w+$'
a = 'it''s' or a = "it's" or a = 'x' 'y'
concat(R'it''s', r"x""y", R'a''b''c', 'a''b'R'c''d', R'a'"b")
R'\d' || a
1.5BD + n
concat(+'05', 'x')
+n::string
1L + n
2S * n
1.0F / n
1e3
n div 2
n % 2 = 0
-n - -1
(a is not null) = true
not n between 1 and 2
n not in (1, 2)
a <=> null
a is distinct from 'x'
n << 2 | 1 ^ 3 & ~n
(n & 1) << 3 > 0 or n << 1 + 1 = 4 or n | (1 << 3) = n
at between at - interval 1 hour 30 minutes and at
cast(timestamp '2013-01-02 00:00:00' - interval 1 hour 30 minutes as string)
a || n + 1
n::string
n <> -1L and n in (-1L, 0L) and n between -10L and 10L
n - 1000L > 0 or n-1L = 1 or n = -128Y or n > -9223372036854775808L or n <> -2147483648::int
n - 1::string = '8' or n = -1::bigint
-128::int::tinyint = -128Y or -2147483648L::int = n or -32768::int::smallint = -32768S
-128.9::tinyint || -2147483648.5::int || -1.5D::string || -1::string
-0::double
-0.0::float
-0D
-0.0
-0e0::string
-cast(127 as tinyint) - -cast('5' as string)
-try_cast(1 as int) - -(127)::tinyint + -'5'::int
n > +1 and -+2147483648 < n
- -127Y + ~-1
-1::timestamp < at
concat(-cast(1 as double), -1::double::string)
n * -1.0BD > 0 or n > -0.5D or n - 2S > 0
n - 1::int > 0 or n - 0.5::double > 1
xs[n - 9::int] = 1 or date_add(date '2013-01-01', -1::int) < at
(n - 1)::string = '8' or (n) - 1::string = '8'
cast(n as decimal(10,2))
try_cast(a as int)
date '2013-01-01' + interval 1 day
timestamp '2013-01-01 00:00:00'
cast(timestamp '2013-01-01 00:00:00' - interval '1 02:03:04' day to second as string)
dateadd(DAY, n, date '2013-01-01')
timestampdiff(HOUR, timestamp '2013-01-01 00:00:00', timestamp '2013-01-02 00:00:00')
extract(year from date '2013-01-01')
date_format(date '2013-02-03', 'yyyy-MM')
substring(a from 1 for 1) || substr(a, 2) || substring(a, 1, 1)
trim(both 'x' from a) || trim(a) || trim(leading 'x' from a)
position('x' in a) + position('x', a) + locate('x', a, 2)
overlay(a placing '_' from 2)
left(a, 1) || right(a, 1) || replace(a, 'x', 'y') || char(65)
if(n > 1, 'a', 'b')
case n when 1 then 'one' else a end
case when n > 1 then null else n end
coalesce(a, ifnull(a, nvl(a, 'z')))
array(1, n)[0] + element_at(array(n, 2), 1)
map('a', n)['a']
named_struct('k', n).k + struct(n as m).m
size(filter(xs, x -> x > 1)) + aggregate(xs, 0, (acc, x) -> acc + x)
to_json(transform(xs, (x, i) -> x * i))
exists(xs, x -> x = n)
split(a, '\\|')[0]
regexp_replace(a, '(\\d+)', '<$1>')
get_json_object('{"k": {"j": 1}}', '$.k.j')
concat_ws(',', a, 'b')
hex(X'1F2e')
ceil(1.234, 1) + floor(n) + round(2.5)
int(n) = 1 and string(n) = '1'
`n` = 1 and s.k = 2
n = 1 or n = 2 and n = 3
a ilike 'X%' or a like any ('x', 'y') or a like 'x!%' escape '!'
decode(n, 1, 'one', 'other')
""".strip().splitlines()


def test_usual_expressions_are_taken_and_come_to_a_fixed_point() -> None:
    for text in SAME:
        said = spark_sql("filter", text)
        assert spark_sql("filter", said) == said


@pytest.mark.slow
@pytest.mark.parametrize("ansi", ["true", "false"])
def test_spark_gives_what_it_gives_for_the_text_that_was_written(spark: SparkSession, ansi: str) -> None:
    rows = spark.sql(
        "select 'x' as a, 9 as n, timestamp '2013-01-01 00:00:00' as at, array(1, 9) as xs, named_struct('k', 2) as s"
        " union all select '3', 2, timestamp '2020-02-29 23:59:59', array(), null"
    )
    known = {"a", "n", "at", "xs", "s"}
    texts = [text for text in SAME if set(fields_of_sql("filter", text)) <= known and "COLLATE" not in text]
    if ansi == "true":
        # A text that is no number ends the test then, and so does an element that an array does not have.
        texts = [text for text in texts if not set(fields_of_sql("filter", text)) & {"a", "xs"}]
    assert len(texts) > 30
    pairs = [(f"to_json(struct({text} as v))", f"to_json(struct({spark_sql('filter', text)} as v))") for text in texts]
    with reading_as(spark, ansi):
        found = rows.selectExpr(*(one for pair in pairs for one in pair)).collect()
    for row in found:
        values = list(row)
        both = {text: (values[2 * at], values[2 * at + 1]) for at, text in enumerate(texts)}
        assert {text: pair for text, pair in both.items() if pair[0] != pair[1]} == {}


@contextmanager
def reading_as(spark: SparkSession, ansi: str) -> Iterator[None]:
    setting = "spark.sql.ansi.enabled"
    before = str(spark.conf.get(setting))
    spark.conf.set(setting, ansi)
    try:
        yield
    finally:
        spark.conf.set(setting, before)


# What is written anew in other words (`IS NOT NULL`, clocks, dates, intervals of two units, `+1`) is left out: its tree differs.
VALUES = (
    """
1;0;128;2147483648;1.5;0.0;1.;0e0;1e3;7L;127Y;2S;0D;1.5F;1.50BD;n;m;a;b;s.k;'5';null;true;at;xs[0];X'1F';a like 'x';n < m;a <=> n
CAST(n AS tinyint);CAST('5' as string);try_cast(a as int);ABS(n);ARRAY(1, n);IF(b, 1, -1);case when b then 1 else -2 end
interval 1 day;interval '1 2' day to hour;CURRENT_DATE();a is distinct from n
""".strip()
    .replace("\n", ";")
    .split(";")
)
BEFORE = ("-", "- ", "~", "not ", "! ", "- -", "-~")
BETWEEN = (
    *("+", "-", "*", "/", "%", " div ", "&", "|", "^", "||", "=", "==", "<>", "!=", "<", ">", "<=", ">=", "<=>"),
    *(" and ", " or ", " AND ", " is distinct from ", " is not distinct from ", " like ", " not like ", " rlike "),
)
BEHIND = (
    *(
        "::tinyint",
        "::int",
        "::bigint",
        "::float",
        "::double",
        "::decimal(10,2)",
        "::string",
        "::date",
        "::boolean",
        "[0]",
    ),
    *("[-1]", ".k", " is null", " is true", " in (1, -2)", " not in (1)", " between 1 and 2", " not between -1 and 2"),
    *(" like 'x'", " not like 'x%' escape '!'", " collate UTF8_LCASE", "::interval day"),
)
AROUND = (
    *(
        "({})",
        "CONCAT({}, {})",
        "IF(b, {}, {})",
        "case {} when {} then 1 else -1 end",
        "a in ({}, {})",
        "ARRAY({}, {})[-1]",
    ),
    *("n between {} and {}", "{} not between {} and 3"),
)


def generated(pick: random.Random, depth: int) -> str:
    kind = pick.choice(("value", "before", "behind", "around", "between", "between")) if depth else "value"
    if kind == "before":
        return pick.choice(BEFORE) + generated(pick, depth - 1)
    if kind == "behind":
        return generated(pick, depth - 1) + pick.choice(BEHIND)
    if kind == "around":
        return pick.choice(AROUND).format(generated(pick, depth - 1), generated(pick, depth - 1))
    if kind == "between":
        space = pick.choice(("", " "))
        return generated(pick, depth - 1) + space + pick.choice(BETWEEN) + space + generated(pick, depth - 1)
    return pick.choice(VALUES)


@pytest.mark.slow
@pytest.mark.parametrize("ansi", ["true", "false"])
def test_sparks_own_parser_makes_the_same_tree_of_both_texts(spark: SparkSession, ansi: str) -> None:
    """The same tree gives the same values, or the same error, on every row."""
    parser = spark._jsparkSession.sessionState().sqlParser()  # type: ignore[attr-defined]
    pick = random.Random(5)
    same, other = 0, {}
    with reading_as(spark, ansi):
        for _ in range(1500):
            text = generated(pick, pick.choice((2, 3, 4)))
            try:
                said = spark_sql("filter", text)
            except FunctionError:
                continue
            try:
                written = parser.parseExpression(text)
            except ParseException:
                continue
            if written.equals(parser.parseExpression(said)):
                same += 1
            else:
                other[text] = said
    assert other == {}
    assert same > 500
