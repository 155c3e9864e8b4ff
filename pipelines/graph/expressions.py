"""SQL text over one row (filters, slices, checks): parsed at definition, so that a fault is refused at its line.

Spark never sees the text that was given: it gets what is rewritten from the tree that was checked, so that nothing stands
in it that the check has not seen (`docs/adr/0043`).
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.tokens import Token, TokenType  # type: ignore[attr-defined]

from pipelines.ddl import MOST_TEXT, SURROGATE, decimal_problem, nested_too_deeply
from pipelines.errors import FunctionError
from pipelines.graph.dialects import SPARK
from pipelines.graph.fields import distinct
from pipelines.sql_parser import BoundedParser, EndlessTextError

DEEPEST = 64
"""Parts within parts; a chain of the same operator (`a OR b OR ...`) counts once."""

_NOT_A_VALUE = (exp.Query, exp.DDL, exp.Command, exp.Placeholder, exp.Parameter, exp.Star)
_NOT_OF_ONE_TUPLE = (exp.AggFunc, exp.Window, exp.UDTF)
# What an expression is made of. A kind of part that is not here is refused, whatever a later parser makes of a text.
_PARTS = frozenset(
    {
        *(exp.Column, exp.Identifier, exp.Literal, exp.HexString, exp.Boolean, exp.Null, exp.Paren, exp.Tuple, exp.Var),
        *(exp.Not, exp.Neg, exp.BitwiseNot, exp.And, exp.Or, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Is),
        *(
            exp.NullSafeEQ,
            exp.NullSafeNEQ,
            exp.In,
            exp.Between,
            exp.Like,
            exp.ILike,
            exp.RegexpLike,
            exp.Escape,
            exp.Any,
        ),
        *(exp.All, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.DPipe, exp.BitwiseAnd, exp.BitwiseOr),
        *(exp.BitwiseXor, exp.BitwiseLeftShift, exp.BitwiseRightShift, exp.Case, exp.If, exp.Cast, exp.TryCast),
        *(exp.DataType, exp.DataTypeParam, exp.ColumnDef, exp.Interval, exp.IntervalSpan, exp.Bracket, exp.Dot),
        *(exp.Lambda, exp.Extract, exp.Substring, exp.Trim, exp.Overlay, exp.StrPosition, exp.CurrentDate),
        *(exp.CurrentTimestamp, exp.Anonymous, exp.Alias, exp.Collate),
    }
)
_CLOCKS = (exp.CurrentDate, exp.CurrentTimestamp)
"""What is called without brackets: to Spark the words are fields where there are such."""
_LIKE = (exp.Like, exp.ILike)
_SHIFTS = (exp.BitwiseLeftShift, exp.BitwiseRightShift)
_NULL_SAFE = (exp.NullSafeEQ, exp.NullSafeNEQ)
_COMPARED = (*_NULL_SAFE, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE)
_CONDITIONS = (*_COMPARED, exp.In, exp.Between, exp.Like, exp.ILike, exp.RegexpLike, exp.Escape, exp.Is, exp.Not)
_OPERATORS = (exp.Binary, exp.Between, exp.Neg, exp.BitwiseNot)
# The parser here takes them for timestamps: what Spark casts to one has the date of the day on which it is cast.
_TIMES_OF_DAY = (exp.DataType.Type.TIME, exp.DataType.Type.TIMETZ)
# Spark takes the L of `1.5L` for a name.
_NUMBER = re.compile(r"-?[0-9]+(?:[LSY]|\.?[0-9]*(?:E[+-]?[0-9]+)?(?:BD|D|F)?)", re.IGNORECASE)
_UNITS = (
    *("microsecond", "millisecond", "second", "minute", "hour", "day", "dayofyear", "week", "month", "quarter", "year"),
)
_WITH_UNITS = ("dateadd", "date_add", "datediff", "date_diff", "timestampadd", "timestampdiff")
# sqlglot gives functions with a syntax of their own a class each; all others stay calls by their names.
_RENAMED = frozenset({"position", "substr"})
_OWN_SYNTAX = ("CAST", "TRY_CAST", "EXTRACT", "OVERLAY", "POSITION", "SUBSTRING", "SUBSTR", "TRIM")


class _NoCharacterError(Exception):
    """An escape stands for a number that no character has."""


class _DoubtError(Exception):
    """Spark reads a part of a text in another grouping than the parser."""


def _negative(parser: Any) -> exp.Expr:
    """Give the sign to the number behind it, as Spark does: `-128::int` is `(-128)::int`, `-cast(128 as int)` no number."""
    of_number = parser._curr.token_type == TokenType.NUMBER
    value: exp.Expr = parser._parse_unary()
    if not of_number:
        return parser.expression(exp.Neg(this=value))
    first = value
    while isinstance(first.this, exp.Expr):
        first = first.this
    if not isinstance(first, exp.Literal):
        raise _DoubtError("a sign in front of what is no plain number")
    first.set("this", f"-{first.name}")
    return value


def _positive(parser: Any) -> exp.Expr:
    """Keep a sign + in front of a value, which sqlglot drops: to Spark `+'05'` is the number 5.0."""
    value: exp.Expr = parser._parse_unary()
    if isinstance(value, exp.Literal) and not value.is_string:
        # `-+128Y` is not `-128Y`.
        return exp.paren(value, copy=False)
    return exp.Anonymous(this="positive", expressions=[value])


def _typed(parser: Any, value: exp.Expr, kind: exp.DataType) -> exp.Expr:
    """Read `date '2020-01-01'`, with nothing behind it: `date '2020-01-01'::string` is a text to Spark, and to sqlglot a date."""
    if not isinstance(value, exp.Literal):
        raise _DoubtError("an operator behind a date or a time without brackets")
    return exp.Cast(this=value, to=kind)


class _RowParser(BoundedParser):
    FUNCTIONS: Any = {}
    UNARY_PARSERS: Any = {**Spark.Parser.UNARY_PARSERS, TokenType.DASH: _negative, TokenType.PLUS: _positive}
    TYPE_LITERAL_PARSERS: Any = dict.fromkeys(exp.DType, _typed)
    # `array(1, 2)[0]` would become the array `[0]`.
    ARRAY_CONSTRUCTORS: Any = {}
    FUNCTION_PARSERS: Any = {name: Spark.Parser.FUNCTION_PARSERS[name] for name in _OWN_SYNTAX}
    NO_PAREN_FUNCTION_PARSERS: Any = {
        name: parser for name, parser in Spark.Parser.NO_PAREN_FUNCTION_PARSERS.items() if name in ("ANY", "CASE", "IF")
    }

    def _build_predicate(self, klass: Any, this: Any, expression: Any, *given: Any, **more: Any) -> Any:
        """Put no brackets of its own around parts of `a <=> b < c`: Spark reads that as `(a <=> b) < c`."""
        if klass in _NULL_SAFE and (isinstance(this, _CONDITIONS) or isinstance(expression, _CONDITIONS)):
            raise _DoubtError("a comparison of nulls beside another one")
        return super()._build_predicate(klass, this, expression, *given, **more)


class _RowGenerator(Spark.Generator):  # type: ignore[misc, valid-type]
    def literal_sql(self, expression: exp.Literal) -> str:
        return SPARK.text(expression.name) if expression.is_string else expression.name

    # A bare `CURRENT_DATE` is a field to Spark where the frame has one of the name.
    def currentdate_sql(self, expression: exp.CurrentDate) -> str:
        return f"{expression.sql_name()}()"

    def not_sql(self, expression: exp.Not) -> str:
        said = super().not_sql(expression)
        # `a IS NOT NULL = b` is a NOT within an operator: without brackets it would be the operator within NOT.
        plain = (exp.And, exp.Or, exp.Not, exp.Paren, exp.Func)
        return said if expression.parent is None or isinstance(expression.parent, plain) else f"({said})"


class _RowDialect(Spark):
    """Spark's SQL with function names and texts exactly as they were written."""

    Parser = _RowParser
    Generator = _RowGenerator


def fields_of_sql(operation: str, text: str, among: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the columns that a Spark SQL expression reads, in order of appearance.

    Args:
        operation: the name of what takes the text, for errors.
        text: the expression.
        among: the fields that there are, as far as they are known; the word `current_date` is refused where it is one of them.
    """
    tree = _read(operation, text)[0]
    taken = {name.lower() for name in among}
    for clock in tree.find_all(*_CLOCKS):
        if (word := clock.sql_name().lower()) in taken:
            hint = f"write `{word}` in backticks for the field, {word}() for the clock"
            problem = f"cannot be read without doubt: {text!r} has {word}, which is a field, too"
            raise FunctionError(operation, problem, hint=hint)
    return distinct(column.parts[0].name for column in tree.find_all(exp.Column))


def spark_sql(operation: str, text: str) -> str:
    """Return the same expression as Spark gets it: rewritten from what was checked."""
    return _read(operation, text)[1]


def keeps_values(before: str, now: str) -> bool:
    """Check whether an expression gives each row the value that an earlier one gave it, unless that was null.

    It is the same expression, or `coalesce(before, ...)`.
    """
    if before == now:
        return True
    try:
        old, new = (_read("slice_by", text)[0] for text in (before, now))
    except FunctionError:
        return False
    is_coalesce = isinstance(new, exp.Anonymous) and new.name.lower() == "coalesce" and new.expressions
    return bool(old == new or (is_coalesce and new.expressions[0] == old))


@lru_cache(maxsize=1024)
def _read(operation: str, text: str) -> tuple[exp.Expr, str]:
    """Return the tree of an expression, and its text for Spark."""
    if SURROGATE.search(text):
        raise FunctionError(operation, f"holds half a character, a surrogate: {text[:60]!r}")
    if len(text) > MOST_TEXT:
        raise FunctionError(operation, f"a SQL expression of {len(text):,} characters; {MOST_TEXT:,} are the most")
    if nested_too_deeply(text):
        raise FunctionError(operation, f"its brackets are nested too deeply: {text[:60]!r}...")
    try:
        tree = _parsed(operation, text)
        _check(operation, text, tree)
        said = tree.sql(_RowDialect, identify=True, comments=False)
        if problem := decimal_problem(said):
            raise FunctionError(operation, problem)
        # What is read back must be what was written, or it means something that was not checked.
        again = _parsed(operation, said)
        _check(operation, text, again)
        if again.sql(_RowDialect, identify=True, comments=False) != said or "${" in said or _lost(text, said):
            raise FunctionError(operation, f"cannot be read without doubt: {text!r}", hint="write it in a plainer way")
    except RecursionError:
        raise FunctionError(operation, f"is nested too deeply: {text[:60]!r}...") from None
    return tree, said


def _parsed(operation: str, text: str) -> exp.Expr:
    dialect = _RowDialect()
    try:
        found = dialect.tokenize(text)
        _check_between(text, found)
        tokens = list(_with_values(text, found))
        trees = dialect.parser().parse(tokens, text)
    except sqlglot.errors.SqlglotError as error:
        # The parser names its own classes; a reader knows the operator by its short name.
        said = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", str(error).splitlines()[0])
        raise FunctionError(operation, f"not a SQL expression: {text!r} ({said})") from None
    except EndlessTextError as error:
        raise FunctionError(operation, f"{error}: {text[:60]!r}...") from None
    except _DoubtError as error:
        raise _doubtful(operation, text, error) from None
    except _NoCharacterError as error:
        raise FunctionError(
            operation, f"{error} is no character: {text!r}", hint="write the character itself"
        ) from None
    tree = trees[0] if len(trees) == 1 else None
    if not isinstance(tree, exp.Condition) or tree.find(*_NOT_A_VALUE):
        raise FunctionError(operation, f"not a single SQL expression: {text!r}")
    return _with_brackets(_with_units(tree))


def _check(operation: str, text: str, tree: exp.Expr) -> None:
    for node, depth in _nodes(tree):
        if depth > DEEPEST:
            raise FunctionError(operation, f"is nested too deeply: {text[:60]!r}...")
        if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Func):
            raise FunctionError(operation, f"a function of a catalog is not allowed in {text!r}")
        if isinstance(node, exp.Anonymous) and node.name.lower() not in ROW_FUNCTIONS:
            _refuse_call(operation, text, node)
        if isinstance(node, _NOT_OF_ONE_TUPLE):
            raise FunctionError(operation, f"{node.sql('spark')} does not look at one tuple alone")
        if type(node) not in _PARTS or (isinstance(node, exp.Any | exp.All) and not isinstance(node.parent, _LIKE)):
            raise FunctionError(operation, f"{type(node).__name__} is not allowed in {text!r}")
        if isinstance(node, exp.Var) and not re.fullmatch("[A-Za-z_][A-Za-z_0-9]*", node.name):
            raise FunctionError(operation, f"{node.name[:60]!r} is no unit, and no collation, in {text!r}")
        if problem := _doubt(node):
            raise _doubtful(operation, text, problem)
        if isinstance(node, exp.HexString) and not re.fullmatch("[0-9A-Fa-f]*", node.name):
            raise FunctionError(operation, f"X'{node.name}' holds other characters than those of bytes in hexadecimal")


def _doubtful(operation: str, text: str, problem: object) -> FunctionError:
    hint = "write it with brackets, or in a plainer way"
    return FunctionError(operation, f"cannot be read without doubt: {text!r} has {problem}", hint=hint)


def _doubt(node: exp.Expr) -> str | None:
    """Return why a part may mean something else to Spark than to the parser, which binds some operators in another order."""
    if isinstance(node, exp.DataType) and node.this in _TIMES_OF_DAY:
        return "the type time, which no table holds"
    if isinstance(node, exp.Cast) and node.args.get("format") is not None:
        return "a cast with a format"
    if isinstance(node, exp.Literal) and not node.is_string and not _NUMBER.fullmatch(node.name):
        return f"{node.name[:60]}, which is no number"
    # The parser takes `1e3.k` and `1e3+1e0` for names.
    if isinstance(node, exp.Identifier) and not node.quoted and not re.fullmatch(r"\w+", node.name):
        return f"{node.name[:60]}, which is no name without backticks"
    if isinstance(node, exp.Lambda) and {one.name.upper() for one in node.expressions} & {
        one.sql_name() for one in _CLOCKS
    }:
        return "a variable with the name of a clock"
    parent = node.parent
    if isinstance(node, exp.Interval) and node.this is not None and not _is_whole(node):
        return "an interval of what is no number with a unit"
    if isinstance(node, exp.Alias) and not (isinstance(parent, exp.Anonymous) and parent.name.lower() == "struct"):
        return "a name that is given outside struct(...)"
    # An operator behind these is theirs to the parser: `a COLLATE c::int`, `a LIKE ANY (b, c)::int`.
    if isinstance(node, exp.Collate) and not isinstance(node.expression, exp.Var | exp.Column | exp.Identifier):
        return "an operator behind a collation"
    if isinstance(node, exp.Any | exp.All) and not isinstance(node.this, exp.Tuple | exp.Paren):
        return "an operator behind a list of patterns"
    # To Spark a shift binds tighter than `&`, `^` and `|`, and `||` tighter than a shift.
    if isinstance(node, _SHIFTS) and isinstance(node.this, exp.BitwiseAnd | exp.BitwiseOr | exp.BitwiseXor):
        return "a shift behind an operator of bits"
    if isinstance(node, exp.DPipe) and isinstance(node.this, _SHIFTS):
        return "a shift in front of ||"
    # To Spark `a = b NOT IN (c)` asks whether `a = b` is not in the list, `a NOT BETWEEN b AND c = d` compares `c = d`, and
    # `a = NOT (b) < c` calls a function NOT.
    in_front = node.arg_key == "this" and isinstance(node.this, exp.Is) and not isinstance(parent, exp.Unary)
    operand = isinstance(parent, _OPERATORS) and not isinstance(parent, exp.Connector)
    if isinstance(node, exp.Not) and operand and not in_front:
        return "a comparison with what is compared once more"
    return None


def _is_whole(interval: exp.Interval) -> bool:
    """Return whether an interval is a number with a unit, or a text with all of its units: `interval '1 day 2 hours'`.

    What stands behind a plus is read as one more unit of the interval in front: `interval '1' day + '2 hours'`.
    """
    if not isinstance(interval.this, exp.Literal):
        return False
    total = interval.parent if interval.arg_key == "expression" else None
    one_more = isinstance(total, exp.Add) and isinstance(total.this, exp.Interval)
    is_text = interval.this.is_string and re.search("[A-Za-z]", interval.this.name) is not None
    return bool(interval.args.get("unit")) or (is_text and not one_more)


def _refuse_call(operation: str, text: str, call: exp.Anonymous) -> None:
    name = call.name.lower()
    known = Spark.Parser.FUNCTIONS.get(name.upper())
    owner = getattr(known, "__self__", None)
    if isinstance(owner, type) and issubclass(owner, _NOT_OF_ONE_TUPLE):
        raise FunctionError(operation, f"{call.sql(_RowDialect)} does not look at one tuple alone")
    hint = "Spark's functions of one row's values are allowed, no others: docs/flows.md"
    raise FunctionError(operation, f"the function {name} is not allowed in {text!r}", hint=hint)


def _nodes(tree: exp.Expr) -> Iterator[tuple[exp.Expr, int]]:
    """Return all parts with their depths, without recursion."""
    waiting = [(tree, 0)]
    while waiting:
        node, depth = waiting.pop()
        yield node, depth
        for child in node.iter_expressions():
            chained = isinstance(node, exp.Binary) and type(child) is type(node)
            waiting.append((child, depth if chained else depth + 1))


def _with_units(tree: exp.Expr) -> exp.Expr:
    """Take a unit of time (`dateadd(DAY, 1, at)`) for no column."""
    for call in list(tree.find_all(exp.Anonymous)):
        first = call.expressions[0] if len(call.expressions) == 3 else None
        if call.name.lower() in _WITH_UNITS and isinstance(first, exp.Column) and first.name.lower() in _UNITS:
            first.replace(exp.var(first.name.upper()))
    return tree


def _with_brackets(tree: exp.Expr) -> exp.Expr:
    """Keep an interval of several units together: `at - INTERVAL 1 DAY 2 HOURS` is read as a sum, and printed as one."""
    for total in list(tree.find_all(exp.Add)):
        parent = total.parent
        apart = parent is not None and not isinstance(parent, exp.Paren | exp.Add)
        if apart and all(isinstance(part, exp.Interval) for part in total.flatten()):
            total.replace(exp.paren(total, copy=True))
    return tree


def _lost(text: str, said: str) -> set[str]:
    """Return the names and values of a text that are not, or not as often, in the rewritten text: nothing may get lost."""
    written, rewritten = (_words(wording, _RowDialect().tokenize(wording)) for wording in (text, said))
    return (written - rewritten).keys() - _RENAMED


def _words(text: str, tokens: Iterable[Token]) -> Counter[str]:
    kinds = (TokenType.STRING, TokenType.NUMBER, TokenType.VAR, TokenType.IDENTIFIER, TokenType.HEX_STRING)
    return Counter(token.text.lower() for token in _with_values(text, tokens) if token.token_type in kinds)


# --- texts ----------------------------------------------------------------------------------------------------------

_BETWEEN = re.compile(r"(?:\s|--[^\r\n]*+(?!(?<=\\)\n)|/\*(?:(?!\*/|/\*).)*+\*/)*+", re.DOTALL)
"""Space, and comments that end where Spark ends them: a line that ends in a backslash goes on, and a comment may hold others."""
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[01][0-7]{2}|.)", re.DOTALL)
_ESCAPED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


def _check_between(text: str, tokens: Iterable[Token]) -> None:
    """Check that Spark, too, takes what stands around the tokens for comments: it may end one elsewhere than the parser."""
    end = 0
    for token in tokens:
        if not _BETWEEN.fullmatch(text, end, max(end, token.start)):
            break
        end = max(end, token.end + 1)
    else:
        if _BETWEEN.fullmatch(text, end):
            return
    raise _DoubtError("a comment that Spark may end elsewhere")


def _with_values(text: str, tokens: Iterable[Token]) -> Iterator[Token]:
    """Return the tokens without comments, and each text as one token whose value is what Spark reads.

    To Spark texts side by side are one; with nothing in between, two quotes are one quote, unless one is of a raw text.
    """
    last: Token | None = None
    was_raw = False
    for token in _with_suffixes(text, tokens):
        token.comments = []
        if token.token_type == TokenType.HEX_STRING and text[token.start] == "0":
            raise _DoubtError(f"{text[token.start : token.end + 1][:60]}, which is a name to Spark")
        raw = token.token_type == TokenType.RAW_STRING
        if not raw and token.token_type != TokenType.STRING:
            if last is not None:
                yield last
            last = None
            yield token
            continue
        written = text[token.start : token.end + 1]
        value = written[2:-1] if raw else _ESCAPE.sub(_meant, written[1:-1])
        if last is not None:
            doubled = not raw and not was_raw and token.start == last.end + 1 and text[last.end] == written[0]
            last = Token(
                TokenType.STRING,
                last.text + (written[0] if doubled else "") + value,
                last.line,
                last.col,
                last.start,
                token.end,
                [],
            )
        else:
            last = Token(TokenType.STRING, value, token.line, token.col, token.start, token.end, [])
        was_raw = raw
    if last is not None:
        yield last


def _with_suffixes(text: str, tokens: Iterable[Token]) -> Iterator[Token]:
    """Keep a number with its suffix as it was written: `-0D` is another value than `-0::double`, which sqlglot makes of it."""
    start = -1
    for token in tokens:
        if token.token_type == TokenType.NUMBER:
            start, token.text = token.start, text[token.start : token.end + 1]
        elif token.start == start:
            continue
        yield token


def _meant(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] in "uU" and len(code) > 1:
        number = int(code[1:], 16)
        if number > sys.maxunicode or SURROGATE.match(chr(number)):
            raise _NoCharacterError(match[0])
        return chr(number)
    return chr(int(code, 8)) if len(code) == 3 else _ESCAPED.get(code, code)


# The functions that SQL text over one row may call: what Spark has that looks at its arguments alone. Left out on purpose:
# what calls Java (`reflect`), reads files or the network (`from_xml` takes the path of a schema, `from_avro` and
# `from_protobuf` that of a description), tells about the session and the cluster (`current_user`, `spark_partition_id`,
# `input_file_name`), and what looks at more than one row (aggregates, windows, generators).
_CONDITIONAL = """
coalesce if ifnull nanvl nullif nullifzero nvl nvl2 zeroifnull equal_null isnan isnotnull isnull assert_true raise_error
"""
_MATHS = """
abs acos acosh asin asinh atan atan2 atanh bin bround cbrt ceil ceiling conv cos cosh cot csc degrees e exp expm1 factorial
floor greatest hex hypot least ln log log10 log1p log2 mod negative pi pmod positive pow power radians rand randn random
randstr uniform rint round sec sign signum sin sinh sqrt tan tanh try_add try_divide try_mod try_multiply try_subtract
width_bucket bit_count bit_get getbit shiftleft shiftright shiftrightunsigned div
"""
_TEXT = """
ascii base64 bit_length btrim char char_length character_length chr collate collation concat concat_ws contains decode elt
encode endswith find_in_set format_number format_string ilike initcap instr is_valid_utf8 lcase left len length levenshtein
like locate lower lpad ltrim make_valid_utf8 mask octet_length overlay position printf quote regexp regexp_count
regexp_extract regexp_extract_all regexp_instr regexp_like regexp_replace regexp_substr repeat replace reverse right rlike
rpad rtrim sentences soundex space split split_part startswith substr substring substring_index to_binary to_char to_number
to_varchar translate trim try_to_binary try_to_number try_validate_utf8 ucase unbase64 unhex upper validate_utf8
aes_decrypt aes_encrypt try_aes_decrypt crc32 hash md5 sha sha1 sha2 xxhash64 uuid
parse_url try_parse_url try_url_decode url_decode url_encode
"""
_TIMES = """
add_months convert_timezone curdate current_date current_time current_timestamp current_timezone date_add date_diff date_format
date_from_unix_date date_part date_sub date_trunc dateadd datediff datepart day dayname dayofmonth dayofweek dayofyear extract
from_unixtime from_utc_timestamp hour last_day localtimestamp make_date make_dt_interval make_interval make_time make_timestamp
make_timestamp_ltz make_timestamp_ntz make_ym_interval minute month monthname months_between next_day now quarter second
time_diff time_trunc timestamp_micros timestamp_millis timestamp_seconds timestampadd timestampdiff to_date to_time
to_timestamp to_timestamp_ltz to_timestamp_ntz to_unix_timestamp to_utc_timestamp trunc try_make_interval
try_make_timestamp try_make_timestamp_ltz try_make_timestamp_ntz try_to_date try_to_time try_to_timestamp unix_date
unix_micros unix_millis unix_seconds unix_timestamp weekday weekofyear year
"""
_NESTED = """
aggregate array array_append array_compact array_contains array_distinct array_except array_insert array_intersect array_join
array_max array_min array_position array_prepend array_remove array_repeat array_size array_sort array_union arrays_overlap
arrays_zip cardinality element_at exists filter flatten forall get map map_concat map_contains_key map_entries map_filter
map_from_arrays map_from_entries map_keys map_values map_zip_with named_struct reduce sequence shuffle size slice sort_array
str_to_map struct transform transform_keys transform_values try_element_at zip_with
from_csv from_json get_json_object json_array_length json_object_keys schema_of_csv schema_of_json to_csv to_json
is_variant_null parse_json schema_of_variant to_variant_object try_parse_json try_variant_get variant_get
"""
_TYPES = "bigint binary boolean cast date decimal double float int smallint string timestamp tinyint try_cast typeof"

ROW_FUNCTIONS = frozenset(" ".join((_CONDITIONAL, _MATHS, _TEXT, _TIMES, _NESTED, _TYPES)).split())
