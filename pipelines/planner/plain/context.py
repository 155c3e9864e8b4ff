"""The run that the steps of a batch serve."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pipelines.errors import NeedsSparkError
from pipelines.planner.plain.table import Row, Table
from pipelines.state.views import StateView


@dataclass(frozen=True)
class Evaluated:
    """For each row of the inputs the rows that came of it, and the types of the outputs."""

    rows: list[list[Row]]
    types: tuple[str | None, ...]


class Evaluate(Protocol):
    """Evaluates, with Spark, SQL text or a callable of Columns over a table's fields; `names` are the outputs."""

    def __call__(
        self, table: Table, expression: str | Callable[..., Any], names: tuple[str, ...], label: str
    ) -> Evaluated: ...


def _no_state(name: str) -> StateView:
    raise NotImplementedError(f"this run reads no states; asked for {name}")


def _no_types(name: str) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True)
class PlainContext:
    """One batch.

    Attributes:
        batch: the txid, or what stands for it; aggregators that ask for a batch id are given it.
        label: the batch's name in errors.
        tasks: by node id in how many tasks it runs (`graph.bolts.node_tasks`); a node that is not named: one.
        evaluate: evaluates with Spark; None: NeedsSparkError.
        gate: passes a table through a gate (`gate(node's gate, table, label)`); None: NeedsSparkError.
        view: a state by its name, as the batch may see it.
        state_types: Spark SQL types of a state's columns, as far as they are known.
    """

    batch: int = 0
    label: str = "batch 0"
    tasks: Mapping[int, int] = field(default_factory=dict)
    evaluate: Evaluate | None = None
    gate: Callable[[Any, Table, str], Table] | None = None
    view: Callable[[str], StateView] = _no_state
    state_types: Callable[[str], Mapping[str, str | None]] = _no_types

    def tasks_of(self, node_id: int) -> int:
        return self.tasks.get(node_id, 1)

    def evaluated(
        self, table: Table, expression: str | Callable[..., Any], names: tuple[str, ...], label: str
    ) -> Evaluated:
        """Return what Spark makes of an expression.

        Raises:
            NeedsSparkError: if the run has no Spark.
        """
        if self.evaluate is None:
            raise NeedsSparkError(label)
        return self.evaluate(table, expression, names, label)
