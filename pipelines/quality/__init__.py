"""Gates: data checks between the stages of a pipeline. Defining one needs neither Spark nor great-expectations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.lazy import lazy
from pipelines.quality.gate import Action, Check, Gate, as_checks, drop, fail, warn
from pipelines.quality.results import CheckResult, GateResult

if TYPE_CHECKING:
    from pipelines.quality.compiled import CompiledGate, compile_gate
    from pipelines.quality.suites import run_with_great_expectations, validate_frame

__all__ = [
    "Action",
    "Check",
    "CheckResult",
    "CompiledGate",
    "Gate",
    "GateResult",
    "as_checks",
    "compile_gate",
    "drop",
    "fail",
    "run_with_great_expectations",
    "validate_frame",
    "warn",
]

__getattr__ = lazy(
    __name__,
    {
        ".compiled": ("CompiledGate", "compile_gate"),
        ".suites": ("run_with_great_expectations", "validate_frame"),
    },
)
