"""Bounds of numbers and choices: one place, which the command line, forms of Dagster, YAML, the environment and Python share.

A value that is taken here holds for as long as it is used: no process finds out later that it cannot work with it. pydantic does
the reading; it is imported by the first value, for the command line starts without it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Annotated, Any, get_origin, get_type_hints

from pipelines.errors import DefinitionError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_SHOWN = 60


class OutOfBoundsError(ValueError):
    """A value is not what is taken. Whoever asked says of what, in an error of its own."""


@dataclass(frozen=True)
class Range:
    """A number and its limits, both included.

    Attributes:
        least, most: The limits. There is no number without: NaN and infinities are never taken.
    """

    least: float
    most: float
    whole: bool = False

    def __str__(self) -> str:
        return f"a {'whole ' if self.whole else ''}number from {_plain(self.least)} to {_plain(self.most)}"

    def __contains__(self, number: float) -> bool:
        return self.least <= number <= self.most

    def taken(self, given: Any) -> Any:
        """Return the number.

        Args:
            given: A number; or a text, from a command line or the environment, that is read as one.
        """
        from pydantic import ValidationError

        try:
            return self._adapter.validate_python(given, strict=not isinstance(given, str))
        except ValidationError:
            raise OutOfBoundsError(f"must be {self}, not {shown(given)}") from None

    def field(self, default: Any = ..., *, description: str | None = None) -> Any:
        """Return pydantic's field with these limits, for models and forms."""
        from pydantic import Field

        finite: dict[str, Any] = {} if self.whole else {"allow_inf_nan": False}
        return Field(default, ge=self._limit(self.least), le=self._limit(self.most), description=description, **finite)

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        from pydantic import TypeAdapter

        kind: Any = int if self.whole else float
        return TypeAdapter(Annotated[kind, self.field()])

    def _limit(self, number: float) -> float:
        return int(number) if self.whole else number


@cache
def limits(kind: type) -> dict[str, Range]:
    """Return the ranges of a class's fields, with which they are annotated."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if get_origin(hint) is Annotated}


def shown(given: object) -> str:
    """Return a value as an error shows it: short."""
    text = repr(given)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


MASTER = r"local(\[(\*|[1-9]\d{0,3})(,[1-9]\d{0,3})?\])?|local-cluster\[\d+,\d+,\d+\]|yarn|spark://\S+|k8s://\S+"
"""The form of a Spark master."""


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else f"{number:g}"


_DAY, _YEAR = 86_400, 366 * 86_400

PORT = Range(1, 65_535, whole=True)
PORT_OR_NONE = Range(0, 65_535, whole=True)
"""0: nowhere."""

TRIGGER_SECONDS = Range(0.05, _DAY)
"""Seconds between the starts of two batches."""
WAIT_SECONDS = Range(0, 7 * _DAY)
"""Seconds to wait; 0: not at all."""
MESSAGE_TIMEOUT_SECONDS = Range(-7 * _DAY, 7 * _DAY)
"""A negative one means the default (Nimbus rules 4)."""
TIMEOUT_SECONDS = Range(0.05, 7 * _DAY)
"""Beats, leases and time-outs of Nimbus' processes."""
POLL_SECONDS = Range(0.2, _DAY)
"""Seconds between two drawings of a screen."""

WORKERS = Range(1, 1_000, whole=True)
TASKS = Range(1, 10_000, whole=True)
"""Tasks of a stream or a state: Spark's partitions."""
ATTEMPTS = Range(1, 1_000, whole=True)
"""Tries per batch."""
MEMORY_MB = Range(512, 4_194_304, whole=True)
"""Memory of a Spark driver, which does not start with less."""
LOG_MEGABYTES = Range(0.001, 1_000_000)
LOG_FILES = Range(1, 10_000, whole=True)
"""With none a log file would never be turned over."""

TXID = Range(0, 2**63 - 1, whole=True)
COMMIT = Range(0, 2**63 - 1, whole=True)
"""A version of a Delta table."""
VERSION = Range(1, 2**31 - 1, whole=True)
ROWS = Range(1, 1_000_000_000, whole=True)
"""Rows, lines, commits or batches that are shown or run at most."""
LINES = Range(0, 1_000_000_000, whole=True)

SECONDS_APART = Range(0, _DAY)
"""How often a stream of Python's looks; 0: as often as it can."""

THRESHOLD = Range(0, 2**40, whole=True)
"""Events of a window, or seconds of a window or a delay: with 35,000 years arrays can still calculate."""
LIFETIME_MS = Range(1, 1000 * 2**40, whole=True)

FILES = Range(1, 2**31 - 1, whole=True)
"""Files per batch: Spark reads an int."""
BYTES = Range(1, 2**63 - 1, whole=True)

DAYS = Range(0, 100_000)
"""How long something is kept: further back there are no dates."""
HOURS = Range(0, 24 * 100_000)
KEPT = Range(0, 1_000_000_000)
"""So many of something are kept."""

ON_FRESH = ("refuse", "continue", "reset")
"""What a start does with tables that hold batches when its checkpoint is fresh."""
CHANGED_WINDOWS = ("refuse", "begin")
"""What a start does with windows whose operation is another than that of their state."""
SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
"""How a variable of the environment says yes or no."""


def choice(given: object, choices: tuple[str, ...]) -> str:
    """Check that a value is one of several words, and return it."""
    if not isinstance(given, str) or given not in choices:
        raise OutOfBoundsError(f"must be one of {', '.join(choices)}, not {shown(given)}")
    return given


def required(what: str, limit: Range, given: Any) -> Any:
    """Return an argument of Python's, within its limits; None: not said.

    Args:
        what: Its name, for the error.
    """
    try:
        return None if given is None else limit.taken(given)
    except OutOfBoundsError as error:
        raise DefinitionError(f"{what} {error}") from None


def required_choice(what: str, choices: tuple[str, ...], given: object) -> str:
    """Return an argument of Python's that is one of several words."""
    try:
        return choice(given, choices)
    except OutOfBoundsError as error:
        raise DefinitionError(f"{what} {error}") from None


def required_master(what: str, given: str) -> str:
    """Return a Spark master as Spark knows it."""
    if not re.fullmatch(MASTER, given):
        known = "local, local[4], local[*], yarn, spark://HOST:PORT, k8s://..."
        raise DefinitionError(f"{what} must be a master of Spark, not {shown(given)}", hint=f"write one of {known}")
    return given


def own_master() -> str:
    """Return where Spark runs unless a flow or a caller says otherwise: TRIDELTA_SPARK_MASTER, else all cores of this host."""
    return os.environ.get("TRIDELTA_SPARK_MASTER") or "local[*]"


def switch(text: str) -> bool:
    """Read yes or no from the environment; an empty text is no."""
    asked = text.strip().lower()
    if asked and asked not in SWITCH:
        raise OutOfBoundsError(f"must be 1 or 0, not {shown(text)}")
    return SWITCH.get(asked, False)
