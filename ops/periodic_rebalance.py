"""The periodic rebalance: from the figures of deployed flows to what is to change. Applying it is the caller's.

The judgement itself, with its thresholds, is `pipelines.maintenance.rebalance.decide`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelines.nimbus.nimbus import Nimbus


@dataclass(frozen=True)
class Judged:
    """What was decided for one flow.

    Attributes:
        flow: Its name.
        queries: A line a query: its figures, what was decided, and why.
        request: What a rebalance is to ask for; empty: nothing.
    """

    flow: str
    queries: tuple[Mapping[str, Any], ...] = ()
    request: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """The decision, for people."""
        return "\n".join(f"{self.flow}/{one['query']}: {one['decision']}; {one['why']}" for one in self.queries)

    def rows(self) -> list[dict[str, Any]]:
        """A table's rows."""
        return [{"flow": self.flow, **one} for one in self.queries]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"flow": self.flow, "queries": [dict(one) for one in self.queries], "request": dict(self.request)}


def judge(nimbus: Nimbus, flows: Sequence[str] | None) -> list[Judged]:
    """What the figures of deployed flows ask for.

    Args:
        nimbus: Where they are deployed.
        flows: Their names; None: all.

    Raises:
        NotAliveError: One is not deployed.
    """
    return [Judged(one) for one in flows or [flow.name for flow in nimbus.cluster().flows]]
