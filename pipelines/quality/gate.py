"""Gates as data: which expectations stand between two stages, and what happens to what violates them.

Pure Python: a gate is defined, checked and drawn without Spark and without great-expectations.
"""

from __future__ import annotations

import re
import reprlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Literal, get_args
from urllib.parse import urldefrag, urljoin

from pipelines.errors import FieldError, FunctionError, nearest
from pipelines.graph.expressions import fields_of_sql
from pipelines.graph.fields import checked_name
from pipelines.quality.conditions import condition_fields, condition_texts
from pipelines.quality.vocabulary import DESCRIPTIVE, EXPECTATIONS, UNSUPPORTED, ExpectationType, full_name
from pipelines.state.quarantine import BATCH, SOURCE

Action = Literal["warn", "drop", "fail"]
ACTIONS: tuple[str, ...] = get_args(Action)

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60
_WITHOUT_ID = re.compile(r"https?://json-schema\.org/draft(-0[67]|/20\d\d-\d\d)/schema#?")
"""The versions of JSON Schema that give a key `id` no meaning; one that is not named is the last of them."""
_WITH_NAMED_PARTS = re.compile(r"http://json-schema\.org/draft-0[467]/schema#?")
"""The versions in which `"$id": "#a"` names a part, and gives it no address."""


@dataclass(frozen=True)
class Check:
    """One expectation and what to do when it does not hold.

    Attributes:
        expectation: the great-expectations type name; the `expect_` prefix may be left out.
        kwargs: its arguments, as great-expectations names them.
        action: `warn` keeps the rows and reports, `drop` sends the violating rows to quarantine, `fail` refuses the
            batch.
        name: unique in its gate; made from the expectation and its columns when left empty.
        custom: the user's own great-expectations object, for types that great-expectations does not ship.

    Raises:
        FunctionError: the type, the action or an argument is not known, or the action does not suit the type.
    """

    expectation: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    action: Action = "warn"
    name: str = ""
    custom: Any = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "expectation", full_name(self.expectation))
        # An iterator would be empty where the gate is compiled a second time.
        kept = {name: list(value) if isinstance(value, Iterator) else value for name, value in self.kwargs.items()}
        object.__setattr__(self, "kwargs", kept)
        _check_action(self)
        if self.custom is None:
            _check_arguments(self)
        if not self.name:
            object.__setattr__(self, "name", _default_name(self))

    @property
    def type(self) -> ExpectationType | None:
        """Look up the expectation's type; None for a user's own."""
        return None if self.custom is not None else EXPECTATIONS[self.expectation]

    @property
    def operation(self) -> str:
        """Return the name that its errors go by: `drop(expect_column_values_to_not_be_null)`."""
        return f"{self.action}({self.expectation})"

    @property
    def written(self) -> str:
        """As one writes it: `expect_column_values_to_be_between(column='v', min_value=0)`; long values are cut short."""
        return f"{self.expectation}({self.given()})"

    def given(self, *without: str) -> str:
        """Return the arguments, but for some, in the same way."""
        return ", ".join(f"{name}={_SHORT.repr(value)}" for name, value in self.kwargs.items() if name not in without)

    @property
    def is_row_rule(self) -> bool:
        """Return whether single rows can be said to violate it."""
        return self.type is not None and self.type.row

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the columns of the stream that it needs, in order of mention."""
        names: list[str] = []
        if self.type is None or self.type.shape != "table":
            names += [self.kwargs[key] for key in ("column", "column_A", "column_B") if key in self.kwargs]
            names += self.kwargs.get("column_list", ())
        names += condition_fields(self.kwargs.get("row_condition"))
        return tuple(dict.fromkeys(names))


def _check_action(check: Check) -> None:
    if check.action not in ACTIONS:
        raise FunctionError("gate", f"unknown action {check.action!r}{nearest(str(check.action), ACTIONS)}")
    if check.action != "drop":
        return
    if check.custom is not None or (check.expectation in EXPECTATIONS and not EXPECTATIONS[check.expectation].row):
        raise FunctionError(
            check.operation,
            "it says something about the batch, not about a row, so there are no rows to drop",
            hint="use warn(...) or fail(...)",
        )
    if check.kwargs.get("mostly", 1) != 1:
        raise FunctionError(
            check.operation,
            "`mostly` tolerates bad rows and `drop` removes them",
            hint="leave `mostly` out, or use warn(...) or fail(...) with it",
        )


def _check_arguments(check: Check) -> None:
    operation = check.operation
    if check.expectation in UNSUPPORTED:
        raise FunctionError(operation, f"not possible at a gate: {UNSUPPORTED[check.expectation]}")
    known = EXPECTATIONS.get(check.expectation)
    if known is None:
        raise FunctionError(operation, f"no such expectation{nearest(check.expectation, EXPECTATIONS)}")
    for parameter in check.kwargs:
        if parameter not in known.parameters and parameter not in DESCRIPTIVE:
            shown = ", ".join(known.parameters)
            raise FunctionError(
                operation, f"no argument {parameter!r}; it has: {shown}{nearest(parameter, known.parameters)}"
            )
    missing = [parameter for parameter in known.required if parameter not in check.kwargs]
    if missing:
        raise FunctionError(operation, f"needs {', '.join(missing)}")
    for parameter in ("column", "column_A", "column_B", "regex", "like_pattern"):
        if not isinstance(check.kwargs.get(parameter, ""), str):
            raise FunctionError(operation, f"{parameter} must be a text, not {check.kwargs[parameter]!r}")
    for parameter in ("regex_list", "like_pattern_list"):
        texts = check.kwargs.get(parameter, "")
        several = isinstance(texts, list | tuple | set | frozenset) and all(isinstance(text, str) for text in texts)
        if not isinstance(texts, str) and not (several and texts):
            raise FunctionError(operation, f"{parameter} must be a list of texts, not {texts!r}")
    names = check.kwargs.get("column_list", ())
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise FunctionError(operation, f"column_list must be a list of texts, not {names!r}")
    mostly = check.kwargs.get("mostly", 1)
    if isinstance(mostly, bool) or not isinstance(mostly, (int, float)) or not 0 <= mostly <= 1:
        raise FunctionError(operation, f"mostly must be a number from 0 to 1, not {mostly!r}")
    if check.kwargs.get("condition_parser") == "pandas":
        raise FunctionError(operation, 'condition_parser="pandas" does not work here', hint='use "spark" (SQL text)')
    condition_fields(check.kwargs.get("row_condition"))  # raises where it cannot be read
    _check_json_schema(operation, check.kwargs.get("json_schema"))


def _check_json_schema(operation: str, schema: Any) -> None:
    """Refuse a schema that refers to elsewhere: jsonschema fetches what lies there, file or URL, with no time-out."""
    parts = list(_mappings(schema))
    texts = [(key, text, part is schema) for part in parts for key, text in part.items() if isinstance(text, str)]
    refers = [text for key, text, _ in texts if key in ("$ref", "$dynamicRef", "$recursiveRef")]
    versions = [text for key, text, _ in texts if key == "$schema"]
    old = not all(map(_WITHOUT_ID.fullmatch, versions))
    # What has `$PARAMETER` is replaced by great-expectations.
    whole = schema if isinstance(schema, Mapping) and "$PARAMETER" not in schema else {}
    # Beside a `$ref` some versions overlook the address.
    own = None if old or "$ref" in whole else whole.get("$id")
    outward = next((to for to in refers if not to.startswith("#") and not _leads_to(own, to)), None)
    if outward is not None:
        raise FunctionError(
            operation,
            f"{outward!r} leads out of json_schema",
            hint="write what lies there into $defs, and refer to #/$defs/...",
        )
    bases = ("$id", "id") if old else ("$id",)
    named = whole.get("$schema") in versions and all(map(_WITH_NAMED_PARTS.fullmatch, versions))
    others = (text for key, text, first in texts if key in bases and not first)
    if refers and not all(named and text.startswith("#") for text in others):
        raise FunctionError(
            operation, "a part of json_schema has an address other than that of the whole", hint="leave out its $id"
        )


def _leads_to(address: object, reference: str) -> bool:
    """Return whether a reference is to the address that it stands below, or to a part of it."""
    if not isinstance(address, str):
        return False
    return urldefrag(urljoin(address, reference)).url == address.rstrip("#")


def _mappings(value: Any) -> Iterator[Mapping[Any, Any]]:
    """Give all mappings of a value, itself first."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            yield part
            waiting += part.values()
        elif isinstance(part, list | tuple | set):
            waiting += part


def _default_name(check: Check) -> str:
    """Turn `expect_column_values_to_not_be_null(column="x")` into `values_to_not_be_null(x)`."""
    short = check.expectation.removeprefix("expect_").removeprefix("column_")
    columns = [check.kwargs[key] for key in ("column", "column_A", "column_B") if key in check.kwargs]
    columns += list(check.kwargs.get("column_list") or ())
    return f"{short}({','.join(columns)})" if columns else short


def _check(action: Action, expectation: Any, name: str, kwargs: Mapping[str, Any]) -> Check:
    if isinstance(expectation, str):
        return Check(expectation, kwargs, action, name)
    # A great-expectations object, recognised by its `configuration`, so that this module need not import the package.
    configuration = getattr(expectation, "configuration", None)
    type_name, arguments = getattr(configuration, "type", None), getattr(configuration, "kwargs", None)
    if not isinstance(type_name, str) or not isinstance(arguments, Mapping):
        raise FunctionError(action, f"{expectation!r} is neither an expectation's name nor a great-expectations object")
    if kwargs:
        raise FunctionError(action, f"{type_name} is given as an object; put {', '.join(kwargs)} into the object")
    shipped = type_name in EXPECTATIONS or type_name in UNSUPPORTED
    return Check(type_name, dict(arguments), action, name, custom=None if shipped else expectation)


def warn(expectation: Any, *, name: str = "", **kwargs: Any) -> Check:
    """Return a check that only reports: all rows pass.

    Args:
        expectation: a great-expectations type name (with or without `expect_`) or an Expectation object.
        name: the check's name in its gate; made from the expectation and its columns when left empty.
        **kwargs: the expectation's arguments.

    Raises:
        FunctionError: unknown type or argument.
    """
    return _check("warn", expectation, name, kwargs)


def drop(expectation: Any, *, name: str = "", **kwargs: Any) -> Check:
    """Return a check whose violating rows leave the stream for quarantine. Arguments and errors as in `warn`."""
    return _check("drop", expectation, name, kwargs)


def fail(expectation: Any, *, name: str = "", **kwargs: Any) -> Check:
    """Return a check that refuses the batch when it does not hold. Arguments and errors as in `warn`."""
    return _check("fail", expectation, name, kwargs)


def _unique_names(gate: str, checks: Sequence[Check]) -> tuple[Check, ...]:
    """Number the made-up names that occur twice; refuse the given ones that do."""
    total, seen, named = Counter(check.name for check in checks), Counter[str](), []
    for check in checks:
        seen[check.name] += 1
        if total[check.name] > 1:
            if check.name != _default_name(check):
                raise FunctionError(f"gate {gate}", f"two checks are named {check.name!r}")
            check = replace(check, name=f"{check.name}#{seen[check.name]}")
        named.append(check)
    return tuple(named)


@dataclass(frozen=True)
class Gate:
    """A named list of checks between two stages.

    Raises:
        BadNameError: the name does not match `[a-z][a-z0-9_]*`.
        FunctionError: no checks, or two of the same name; or the name is another stage of quarantine.
    """

    name: str
    checks: tuple[Check, ...]

    def __init__(self, name: str, checks: Iterable[Check]) -> None:
        checked_name("gate", name)
        if name in (SOURCE, BATCH):
            # Its rows would be taken for those of malformed records, or of poison batches, which leave with their batch.
            hint = "give the gate another name"
            raise FunctionError(
                f"gate {name}", "quarantine calls rows by that name that no gate has rejected", hint=hint
            )
        given = tuple(checks)
        for check in given:
            if not isinstance(check, Check):
                raise FunctionError(
                    f"gate {name}", f"{check!r} is not a check", hint="use warn(...), drop(...) or fail(...)"
                )
        if not given:
            raise FunctionError(f"gate {name}", "has no checks")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "checks", _unique_names(name, given))

    @classmethod
    def of(cls, checks: Sequence[Any], name: str | None, taken: Collection[str]) -> Gate:
        """Return the gate of `gate(warn(...), ..., name=...)` or `gate(Gate(...))`.

        Args:
            checks: the arguments.
            name: its name; None: `gate<n>` with the next number that is free.
            taken: the names of the gates that are there.
        """
        if len(checks) == 1 and isinstance(checks[0], Gate):
            return checks[0]
        free = (f"gate{number}" for number in count(len(taken) + 1) if f"gate{number}" not in taken)
        return cls(name or next(free), checks)

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the columns that its checks name, in order of mention."""
        return tuple(dict.fromkeys(name for check in self.checks for name in check.fields))

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the SQL texts of its checks' conditions."""
        return tuple(text for check in self.checks for text in condition_texts(check.kwargs.get("row_condition")))

    @property
    def decides(self) -> tuple[str, ...]:
        """Return what decides which rows leave the stream here, in words that are the same in each process; no names."""
        return tuple(
            f"{check.expectation} {_words({n: v for n, v in check.kwargs.items() if n not in DESCRIPTIVE})}"
            for check in self.checks
            if check.action == "drop"
        )

    @property
    def drops(self) -> bool:
        """Return whether rows may leave the stream here."""
        return any(check.action == "drop" for check in self.checks)

    def validate(self, fields: Sequence[str]) -> None:
        """Refuse a gate that names a column which its stream does not have.

        Args:
            fields: the stream's columns. `a.b` in a check means the column `a.b`, or the field `b` of the column `a`.

        Raises:
            FieldError: the first column that is missing.
            FunctionError: a condition has a word that Spark takes for one of them, and the check does not.
        """
        for text in self.texts:
            fields_of_sql(f"gate {self.name}", text, fields)
        for name in self.fields:
            if not is_within(name, fields):
                raise FieldError(f"gate {self.name}", name, fields)


def is_within(name: str, fields: Collection[str]) -> bool:
    """Return whether a name in a check is one of the fields, or leads into one of them."""
    return name in fields or name.split(".")[0].strip("`") in fields


def _words(value: Any) -> str:
    """Return a value of an argument as text. The order in a set, and the place of an object in memory, say nothing."""
    if hasattr(value, "dict") and not isinstance(value, Mapping):  # a Condition of great-expectations
        value = value.dict()
    if isinstance(value, Mapping):
        return f"{{{', '.join(sorted(f'{name}: {_words(part)}' for name, part in value.items()))}}}"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(_words, value)))}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_words, value))}]"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def as_checks(items: Iterable[Any]) -> tuple[Check, ...]:
    """Return `items` as checks: great-expectations objects among them become `warn` checks."""
    return tuple(item if isinstance(item, Check) else warn(item) for item in items)
