"""The plan of a deployed flow, as a run stores it beside its checkpoint."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pipelines.errors import PlanFileError
from pipelines.places.location import Place, by_name, put_whole
from pipelines.planner.plan import PLAN_FORMAT, TopologyPlan

if TYPE_CHECKING:
    from pipelines.graph.lineage import HasGraph

PLAN_FILE = "plan.json"


@dataclass(frozen=True)
class StoredPlan:
    """A plan that a run has stored: when, and `TopologyPlan.to_json()`."""

    saved_at: datetime
    plan: dict[str, Any]


def save_plan(topology: HasGraph, folder: Place) -> Place:
    """Store a topology's plan in the checkpoint folder of one of its batch groups, in one piece.

    Args:
        topology: the flow that starts to run.
        folder: `<lake>/checkpoints/<flow>/<group>`; made if it is not there.

    Returns:
        The file.
    """
    file = folder / PLAN_FILE
    stored = {
        "format": PLAN_FORMAT,
        "saved_at": datetime.now(UTC).isoformat(),
        "plan": TopologyPlan.of(topology).to_json(),
    }
    put_whole(file, json.dumps(stored, indent=1).encode())
    return file


def load_plan(folder: Place) -> StoredPlan | None:
    """Return the plan that is stored in a folder, or None if there is none.

    Raises:
        PlanFileError: if the file is damaged, or of a format that this version does not know.
    """
    file = folder / PLAN_FILE
    if not file.exists():
        return None
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        if stored["format"] != PLAN_FORMAT:
            raise PlanFileError(str(file), f"is of format {stored['format']}, and this version reads {PLAN_FORMAT}")
        return StoredPlan(datetime.fromisoformat(stored["saved_at"]), dict(stored["plan"]))
    except (ValueError, KeyError, TypeError) as error:
        raise PlanFileError(str(file), f"cannot be read: {error!r}") from error


def deployed_plan(checkpoints: Place) -> StoredPlan | None:
    """Read the plan stored last among those of a flow's batch groups (`<lake>/checkpoints/<flow>`); None if there is none."""
    folders = by_name(checkpoints.iterdir()) if checkpoints.is_dir() else []
    plans = [stored for stored in map(load_plan, folders) if stored is not None]
    return max(plans, key=lambda plan: plan.saved_at, default=None)
