"""What a replay of quarantined rows refuses."""

from __future__ import annotations

from pipelines.errors import TrideltaError


class ReplayError(TrideltaError):
    """Quarantined rows cannot be run through the flow again without counting something twice, or losing it."""

    def __init__(self, flow: str, rows: str, problem: str, hint: str) -> None:
        self.flow, self.rows, self.problem = flow, rows, problem
        super().__init__(f'flow "{flow}": {rows} cannot be replayed: {problem}', hint=hint)
