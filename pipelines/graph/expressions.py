"""SQL text over one row (filters, slices, checks): parsed at definition, so that a fault is refused at its line.

Spark never sees the text that was given: it gets what is written anew from the tree that was checked, so that nothing stands
in it that the check has not seen (`docs/adr/0043`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.tokens import Token, TokenType  # type: ignore[attr-defined]

from pipelines.ddl import MOST_TEXT, decimal_problem, nested_too_deeply
from pipelines.errors import FunctionError
from pipelines.graph.dialects import SPARK
from pipelines.graph.fields import distinct
from pipelines.graph.row_functions import ROW_FUNCTIONS

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
        *(exp.CurrentTimestamp, exp.Anonymous, exp.Alias, exp.PropertyEQ, exp.Collate),
    }
)
_LIKE = (exp.Like, exp.ILike)
_UNITS = (
    *("microsecond", "millisecond", "second", "minute", "hour", "day", "dayofyear", "week", "month", "quarter", "year"),
)
_WITH_UNITS = ("dateadd", "date_add", "datediff", "date_diff", "timestampadd", "timestampdiff")
# Of functions with a syntax of their own sqlglot makes parts of their own kind; all others stay calls by their names.
_RENAMED = frozenset({"position", "substr"})
_OWN_SYNTAX = ("CAST", "TRY_CAST", "EXTRACT", "OVERLAY", "POSITION", "SUBSTRING", "SUBSTR", "TRIM")


class _RowParser(Spark.Parser):  # type: ignore[misc, valid-type]
    FUNCTIONS: Any = {}
    # `array(1, 2)[0]` would become the array `[0]`.
    ARRAY_CONSTRUCTORS: Any = {}
    FUNCTION_PARSERS: Any = {name: Spark.Parser.FUNCTION_PARSERS[name] for name in _OWN_SYNTAX}
    NO_PAREN_FUNCTION_PARSERS: Any = {
        name: parser for name, parser in Spark.Parser.NO_PAREN_FUNCTION_PARSERS.items() if name in ("ANY", "CASE", "IF")
    }


class _RowGenerator(Spark.Generator):  # type: ignore[misc, valid-type]
    def literal_sql(self, expression: exp.Literal) -> str:
        return SPARK.text(expression.name) if expression.is_string else expression.name

    def not_sql(self, expression: exp.Not) -> str:
        said = super().not_sql(expression)
        # `a IS NOT NULL = b` is a NOT within an operator: without brackets it would be the operator within NOT.
        plain = (exp.And, exp.Or, exp.Not, exp.Paren, exp.Func)
        return said if expression.parent is None or isinstance(expression.parent, plain) else f"({said})"


class _Rows(Spark):
    """Spark's SQL with function names and texts exactly as they were written."""

    Parser = _RowParser
    Generator = _RowGenerator


def fields_of_sql(operation: str, text: str) -> tuple[str, ...]:
    """The columns that a Spark SQL expression reads, in order of appearance.

    Raises:
        FunctionError: if the text is not one expression over the fields of one tuple (an aggregate, a window, a
            subquery, a parameter or a star is not), or calls a function that is not on the list.
    """
    return distinct(column.parts[0].name for column in _read(operation, text)[0].find_all(exp.Column))


def spark_sql(operation: str, text: str) -> str:
    """The same expression as Spark is to get it: written anew from what was checked.

    Raises:
        FunctionError: as `fields_of_sql`.
    """
    return _read(operation, text)[1]


def keeps_values(before: str, now: str) -> bool:
    """Whether an expression gives each row the value that an earlier one gave it, unless that was null.

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
    """The tree of an expression, and its text for Spark."""
    if len(text) > MOST_TEXT:
        raise FunctionError(operation, f"a SQL expression of {len(text):,} characters; {MOST_TEXT:,} are the most")
    if nested_too_deeply(text):
        raise FunctionError(operation, f"its brackets are nested too deeply: {text[:60]!r}...")
    try:
        tree = _parsed(operation, text)
        _check(operation, text, tree)
        said = tree.sql(_Rows, identify=True, comments=False)
        if problem := decimal_problem(said):
            raise FunctionError(operation, problem)
        # What is read back must be what was written, or it means something that was not checked.
        again = _parsed(operation, said)
        if again.sql(_Rows, identify=True, comments=False) != said or "${" in said or _lost(text, said):
            raise FunctionError(operation, f"cannot be read without doubt: {text!r}", hint="write it in a plainer way")
    except RecursionError:
        raise FunctionError(operation, f"is nested too deeply: {text[:60]!r}...") from None
    return tree, said


def _parsed(operation: str, text: str) -> exp.Expr:
    dialect = _Rows()
    try:
        tokens = list(_with_values(text, dialect.tokenize(text)))
        trees = dialect.parser().parse(tokens, text)
    except sqlglot.errors.SqlglotError as error:
        # The parser names its own classes; a reader knows the operator by its short name.
        said = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", str(error).splitlines()[0])
        raise FunctionError(operation, f"not a SQL expression: {text!r} ({said})") from None
    tree = trees[0] if len(trees) == 1 else None
    if not isinstance(tree, exp.Condition) or tree.find(*_NOT_A_VALUE):
        raise FunctionError(operation, f"not a single SQL expression: {text!r}")
    return _with_units(tree)


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
        if isinstance(node, exp.HexString) and not re.fullmatch("[0-9A-Fa-f]*", node.name):
            raise FunctionError(operation, f"X'{node.name}' holds other characters than those of bytes in hexadecimal")


def _refuse_call(operation: str, text: str, call: exp.Anonymous) -> None:
    name = call.name.lower()
    known = Spark.Parser.FUNCTIONS.get(name.upper())
    owner = getattr(known, "__self__", None)
    if isinstance(owner, type) and issubclass(owner, _NOT_OF_ONE_TUPLE):
        raise FunctionError(operation, f"{call.sql(_Rows)} does not look at one tuple alone")
    hint = "Spark's functions of one row's values are allowed, no others: docs/flows.md"
    raise FunctionError(operation, f"the function {name} is not allowed in {text!r}", hint=hint)


def _nodes(tree: exp.Expr) -> Iterator[tuple[exp.Expr, int]]:
    """All parts with their depths, without recursion."""
    waiting = [(tree, 0)]
    while waiting:
        node, depth = waiting.pop()
        yield node, depth
        for child in node.iter_expressions():
            chained = isinstance(node, exp.Binary) and type(child) is type(node)
            waiting.append((child, depth if chained else depth + 1))


def _with_units(tree: exp.Expr) -> exp.Expr:
    """A unit of time (`dateadd(DAY, 1, at)`) is no column."""
    for call in list(tree.find_all(exp.Anonymous)):
        first = call.expressions[0] if len(call.expressions) == 3 else None
        if call.name.lower() in _WITH_UNITS and isinstance(first, exp.Column) and first.name.lower() in _UNITS:
            first.replace(exp.var(first.name.upper()))
    return tree


def _lost(text: str, said: str) -> set[str]:
    """The names and values of a text that are not in what was written anew: nothing may get lost between the two."""
    found = (_words(one, _Rows().tokenize(one)) for one in (text, said))
    return set.difference(*found) - _RENAMED


def _words(text: str, tokens: Iterable[Token]) -> set[str]:
    kinds = (TokenType.STRING, TokenType.NUMBER, TokenType.VAR, TokenType.IDENTIFIER, TokenType.HEX_STRING)
    return {token.text.lower() for token in _with_values(text, tokens) if token.token_type in kinds}


# --- texts ----------------------------------------------------------------------------------------------------------

_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[01][0-7]{2}|.)", re.DOTALL)
_ESCAPED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


def _with_values(text: str, tokens: Iterable[Token]) -> Iterator[Token]:
    """The tokens without comments, and each text as one token whose value is what Spark reads.

    To Spark texts side by side are one; with nothing in between, two quotes are one quote.
    """
    last: Token | None = None
    for token in tokens:
        token.comments = []
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
            doubled = not raw and token.start == last.end + 1 and text[last.end] == written[0]
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
    if last is not None:
        yield last


def _meant(found: re.Match[str]) -> str:
    one = found[1]
    if one[0] in "uU" and len(one) > 1:
        return chr(int(one[1:], 16))
    return chr(int(one, 8)) if len(one) == 3 else _ESCAPED.get(one, one)
