"""What `tridelta plan` puts on the screen."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from ops.cli import rendering

if TYPE_CHECKING:
    from pipelines.planner.changes import Change, PlanChanges, StateChange


def show(changes: PlanChanges) -> None:
    """What would change, part by part, then the verdict in one line. What stays as it is is only counted."""
    if changes.deployed_at:
        at = datetime.fromisoformat(changes.deployed_at)
        rendering.say(f"{changes.flow}, compared with its plan of {at:%Y-%m-%d %H:%M:%S} UTC, the last that ran:")
    else:
        rendering.say(f"{changes.flow}, for the first time here (no earlier run has stored its plan):")
    _part("sources and queries", changes.spouts)
    _part("bolts", changes.bolts)
    _part("batch groups", changes.batch_groups)
    if changes.parallelism:
        rendering.rows(
            "parallelism",
            [{"component": name, "tasks": one, "then": two} for name, (one, two) in changes.parallelism.items()],
        )
    rendering.rows("states", [_state(one) for one in changes.states])
    rendering.say(_verdict(changes))


def _part(title: str, found: Sequence[Change]) -> None:
    told = [
        {"name": one.name, "change": one.change, "was": one.before or "", "what": "; ".join(one.details)}
        for one in found
        if one.change != "same"
    ]
    if told:
        rendering.rows(f"{title} ({len(found) - len(told)} stay as they are)", told)


def _state(one: StateChange) -> dict[str, str]:
    return {"state": one.name, "change": one.change, "verdict": one.verdict, "why": "; ".join(one.details)}


def _verdict(changes: PlanChanges) -> str:
    if changes.refused:
        return f"\nThe flow would be refused at its start because of: {', '.join(one.name for one in changes.refused)}"
    return "\nNothing would change." if changes.nothing else "\nThe flow can be deployed."
