"""The results of a gate: one per check, and their sum."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipelines.errors import GateError


def to_json_value(value: Any) -> Any:
    """Return `value` as plain JSON: numpy scalars and arrays, dates, decimals, rows and NaN included.

    great-expectations leaves numpy values in some results, and `json` refuses them.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, decimal.Decimal):
        near = float(value)
        # As text where a double has other digits.
        return near if math.isfinite(near) and decimal.Decimal(repr(near)) == value else str(value)
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): to_json_value(item) for key, item in value.items()}
    if hasattr(value, "asDict"):  # a Spark Row, which is a tuple too
        return to_json_value(value.asDict(recursive=True))
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json_value(item) for item in value]
    if hasattr(value, "tolist"):  # numpy scalars and arrays, without importing numpy
        return to_json_value(value.tolist())
    return str(value)


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check on one batch (or slice, or table).

    Attributes:
        name: the check's name in its gate.
        expectation: the great-expectations type name.
        action: `warn`, `drop` or `fail`.
        success: whether the expectation holds. False too when it could not be evaluated; then `error` says why.
        rows: the rows looked at, or None where they were not counted.
        unexpected: the rows that violate it, or None for expectations that are not about rows.
        observed: the observed value of aggregate and schema expectations.
        detail: more facts: bounds, the share of good rows, sample rows.
        error: why the expectation could not be evaluated: a fault of the check, not of the data.
    """

    name: str
    expectation: str
    action: str
    success: bool
    rows: int | None = None
    unexpected: int | None = None
    observed: Any = None
    detail: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a dict that `json.dumps` takes."""
        return {
            "name": self.name,
            "expectation": self.expectation,
            "action": self.action,
            "success": self.success,
            "rows": self.rows,
            "unexpected": self.unexpected,
            "observed": to_json_value(self.observed),
            "detail": to_json_value(self.detail),
            "error": self.error,
        }

    def __str__(self) -> str:
        if self.error is not None:
            return f"{self.name}: could not be checked: {self.error}"
        if self.success:
            return f"{self.name}: holds"
        if self.unexpected is not None:
            return f"{self.name}: {self.unexpected} of {'?' if self.rows is None else self.rows} rows"
        return f"{self.name}: observed {to_json_value(self.observed)}"


@dataclass(frozen=True)
class GateResult:
    """All results of a gate on one batch (or slice, or table)."""

    gate: str
    checks: tuple[CheckResult, ...]

    @property
    def success(self) -> bool:
        """Return whether every check holds, whatever its action."""
        return all(check.success for check in self.checks)

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        """Return the checks that do not hold, of every action."""
        return tuple(check for check in self.checks if not check.success)

    @property
    def refused(self) -> tuple[CheckResult, ...]:
        """Return the checks with action `fail` that do not hold: not empty means that the batch must not pass."""
        return tuple(check for check in self.failed if check.action == "fail")

    def raise_if_refused(self, batch: str) -> None:
        """Stop the batch if a `fail` check does not hold.

        Raises:
            GateError: names each check that refuses `batch`.
        """
        if self.refused:
            raise GateError(self.gate, [str(check) for check in self.refused], batch)

    def to_json(self) -> dict[str, Any]:
        """Return a dict that `json.dumps` takes, for batch records and Dagster metadata."""
        return {"gate": self.gate, "success": self.success, "checks": [check.to_json() for check in self.checks]}


def merge_results(gate: str, names: Sequence[str], results: Sequence[CheckResult]) -> GateResult:
    """Return a `GateResult` with `results` in the order of `names`."""
    order = {name: index for index, name in enumerate(names)}
    return GateResult(gate, tuple(sorted(results, key=lambda result: order.get(result.name, len(order)))))
