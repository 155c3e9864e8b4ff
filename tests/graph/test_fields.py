"""Names and schemas."""

import time

import pytest

from pipelines.ddl import nested_too_deeply
from pipelines.errors import BadNameError, DefinitionError, DuplicateFieldError, FieldError, nearest
from pipelines.graph.fields import added, as_names, checked_name, distinct, parse_ddl, require, storable


@pytest.mark.parametrize("name", ["a", "word_counts", "s3_events", "x1"])
def test_a_legal_name_is_returned(name: str) -> None:
    assert checked_name("state", name) == name


@pytest.mark.parametrize("name", ["", "A", "1a", "_a", "a-b", "a b", "a.b", "../a", "ä", "a\n", None, 7])
def test_any_other_name_is_refused(name: object) -> None:
    with pytest.raises(BadNameError) as caught:
        checked_name("state", name)
    assert (caught.value.kind, caught.value.name) == ("state", name)


def test_field_arguments_take_a_name_or_a_list() -> None:
    assert (as_names("ab"), as_names(["a", "b"]), as_names(None)) == (("ab",), ("a", "b"), ())


def test_require_names_the_first_field_that_is_not_there() -> None:
    with pytest.raises(FieldError) as caught:
        require("group_by", ["word", "wrod"], ["sentence", "word"])
    assert (caught.value.operation, caught.value.field) == ("group_by", "wrod")
    assert caught.value.available == ("sentence", "word")
    assert str(caught.value) == (
        'group_by("wrod"): no such field; this stream has: sentence, word (did you mean "word"?)'
    )


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("WORD", ["word"], "word"),
        ("word", ["sentence", "WORD"], "WORD"),
        ("Wrod", ["WORD"], "WORD"),
        ("WORDS", ["WORM", "words"], "words"),
        ("origin", ["Origin", "ORIGINS"], "Origin"),
    ],
)
def test_a_guess_looks_past_capitals_and_shows_the_name_as_it_is(name: str, known: list[str], meant: str) -> None:
    assert nearest(name, known) == f' (did you mean "{meant}"?)'


def test_no_name_is_near_enough_no_guess() -> None:
    with pytest.raises(FieldError) as caught:
        require("each", "zzz", ["sentence"])
    assert str(caught.value) == 'each("zzz"): no such field; this stream has: sentence'


@pytest.mark.parametrize("names", ["a", ["b", "b"], ["c", "C"], "A"])
def test_a_field_is_added_once_whatever_its_case(names: str | list[str]) -> None:
    with pytest.raises(DuplicateFieldError):
        added("each", names, ["a"])


@pytest.mark.parametrize("name", ["", "_hidden", "a`b", "a${b}"])
def test_a_field_that_the_engine_could_not_name_is_refused(name: str) -> None:
    with pytest.raises(BadNameError):
        added("each", name, [])


@pytest.mark.parametrize("name", ["dep delay", "a,b", "a;b", "f(x)", "a\tb", "a=b", "{a}"])
def test_a_field_that_delta_cannot_store_is_refused(name: str) -> None:
    with pytest.raises(BadNameError):
        storable(["good", name])


@pytest.mark.parametrize(
    ("ddl", "columns"),
    [
        ("word string", (("word", "string"),)),
        ("word STRING, n BIGINT", (("word", "string"), ("n", "bigint"))),
        ("`dep delay` double", (("dep delay", "double"),)),
        ("price decimal(10,2), at timestamp", (("price", "decimal(10, 2)"), ("at", "timestamp"))),
        ("xs array<string>", (("xs", "array<string>"),)),
        ("s struct<A: INT, `b C`: string>, n int", (("s", "struct<A: int, `b C`: string>"), ("n", "int"))),
        ("x int NOT NULL COMMENT 'of a -- b', -- a note\r\n /* b */ y int", (("x", "int"), ("y", "int"))),
    ],
)
def test_ddl(ddl: str, columns: tuple[tuple[str, str], ...]) -> None:
    assert parse_ddl(ddl) == columns


@pytest.mark.parametrize("ddl", ["", "word", "word string, n", "string word)", "word string; drop table x", ","])
def test_what_is_no_schema_is_refused(ddl: str) -> None:
    with pytest.raises(DefinitionError, match="not a schema"):
        parse_ddl(ddl)


@pytest.mark.parametrize("ddl", ["a time", "a TIME(6)", "a string, b array<struct<c: time>>"])
def test_a_time_of_the_day_is_refused(ddl: str) -> None:
    """The parser takes it for a timestamp."""
    with pytest.raises(DefinitionError, match="no table holds the type time"):
        parse_ddl(ddl)


@pytest.mark.parametrize(
    "more",
    ["DEFAULT 5", "GENERATED ALWAYS AS (1)", "PRIMARY KEY", "COLLATE UTF8_LCASE", "CHECK (x > 1)", "REFERENCES y(z)", "FIRST",
     ") AS (SELECT 1", ") COMMENT ('x'", ") PARTITIONED BY (x"],
)  # fmt: skip
def test_a_column_is_a_name_and_a_type(more: str) -> None:
    """Spark would take what the engine does not see."""
    schemas = [f"y int, x string {more}"] + ([f"y struct<x: string {more}>"] if more.startswith("DEFAULT") else [])
    schemas += [f"y map<array<string {more}>, int>"] * more.startswith("COLLATE")
    for ddl in schemas:
        with pytest.raises(DefinitionError, match="not a schema"):
            parse_ddl(ddl)


@pytest.mark.parametrize(
    "text",
    ["/* /*+ */, y int -- */", "/*+ a */", "-- a\\\n, y int", "-- it's\n /*+ '*/", "/* ' */ /*+ ' */",
     "COMMENT R'\\' /*+ */, y int COMMENT ''", "-- \"\n, y int -- a\\\n, z int --\""],
)  # fmt: skip
def test_a_comment_that_spark_ends_elsewhere_is_refused(text: str) -> None:
    with pytest.raises(DefinitionError, match=r"not a schema: .* comment"):
        parse_ddl(f"x string {text}")


@pytest.mark.parametrize(
    "text", ["COMMENT 'glob /data/*/x/*.json, /*+ --\\\n'", 'COMMENT "/*+"', "-- a /*\n -- /*+", "/* --\\\n */"]
)
def test_what_only_looks_like_such_a_comment_is_none(text: str) -> None:
    assert parse_ddl(f"x string {text}\n, `/*+ y` int") == (("x", "string"), ("/*+ y", "int"))


def test_a_quote_in_a_comment_hides_nothing() -> None:
    with pytest.raises(DefinitionError, match="nested more than"):
        parse_ddl("x int -- '\n, y " + "array<" * 300 + "int" + ">" * 300 + " -- '")
    begun = time.process_time()
    assert not nested_too_deeply("\\'" * 100_000)
    assert time.process_time() - begun < 30, "hundredths; minutes where each quote looks through the rest"


@pytest.mark.parametrize(
    ("ddl", "column"),
    [
        ("day string, n bigin", "n bigin"),
        ("a decimal(10,2), b struct<x int, y strin>, c int", "b struct<x int, y strin>"),
    ],
)
def test_the_wrong_column_of_a_schema_is_named(ddl: str, column: str) -> None:
    with pytest.raises(DefinitionError, match=f'"{column}" is not a column as "name type"'):
        parse_ddl(ddl)


def test_a_schema_names_a_column_once() -> None:
    with pytest.raises(DuplicateFieldError):
        parse_ddl("a string, A bigint")


def test_distinct_keeps_the_order() -> None:
    assert distinct(["b", "a", "b"]) == ("b", "a")


@pytest.mark.parametrize(
    ("ddl", "problem"),
    [
        ("x decimal(99,2)", r"no decimal\(99,2\)"),
        ("x array<struct<y: DECIMAL(5, 6)>>", "no DECIMAL"),
        ("x decimal(0)", "no decimal"),
        ("x " + "array<" * 300 + "int" + ">" * 300, "nested more than"),
        ("x " + "(" * 300, "nested more than"),
        ("x int, " * 5000 + "y int", "characters"),
        ("`${env:HOME}` int", "Spark would replace"),
        ("x " + "decimal(" * 40 + "1" + ")" * 40, "is not a column"),
        ("x " + "timestamp(" * 40 + "n" + ")" * 40, "is not a column"),
    ],
)
def test_types_that_spark_does_not_have_are_refused_when_they_are_written(ddl: str, problem: str) -> None:
    with pytest.raises(DefinitionError, match=problem) as caught:
        parse_ddl(ddl)
    assert len(str(caught.value)) < 400
