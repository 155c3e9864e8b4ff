"""Gates: data checks between the stages of a pipeline. Defining one needs neither Spark nor great-expectations."""

from typing import TYPE_CHECKING

from pipelines.lazy import lazy

if TYPE_CHECKING:
    from pipelines.quality.compiled import CompiledGate as CompiledGate
    from pipelines.quality.compiled import compile_gate as compile_gate
    from pipelines.quality.gate import Action as Action
    from pipelines.quality.gate import Check as Check
    from pipelines.quality.gate import Gate as Gate
    from pipelines.quality.gate import as_checks as as_checks
    from pipelines.quality.gate import drop as drop
    from pipelines.quality.gate import fail as fail
    from pipelines.quality.gate import warn as warn
    from pipelines.quality.results import CheckResult as CheckResult
    from pipelines.quality.results import GateResult as GateResult
    from pipelines.quality.suites import run_with_great_expectations as run_with_great_expectations
    from pipelines.quality.suites import validate_frame as validate_frame

__getattr__, __all__ = lazy(__name__, __file__)
