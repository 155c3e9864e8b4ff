"""Gates: data checks between the stages of a pipeline. Defining one needs neither Spark nor great-expectations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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

# Loaded on first use: these import pyspark.
_LAZY = {
    "CompiledGate": "pipelines.quality.compiled",
    "compile_gate": "pipelines.quality.compiled",
    "validate_frame": "pipelines.quality.suites",
    "run_with_great_expectations": "pipelines.quality.suites",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
