"""Deployed flows: which flow runs in which worker, and what watches over it.

Names are loaded when they are asked for: the planner needs neither Spark nor a database.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelines.nimbus.nimbus import Nimbus
    from pipelines.nimbus.placement.blacklist import Blacklist
    from pipelines.nimbus.placement.model import Assignment, Component, Demand, Supervisor, UserWorker, Worker
    from pipelines.nimbus.placement.packing import number_tasks, worker_count
    from pipelines.nimbus.placement.planner import Plan, plan_assignment, plan_flows
    from pipelines.nimbus.settings import NimbusSettings
    from pipelines.nimbus.status import ClusterStatus, FlowStatus, SupervisorStatus, TaskStatus

_HOMES = {
    "Assignment": "placement.model",
    "Blacklist": "placement.blacklist",
    "ClusterStatus": "status",
    "Component": "placement.model",
    "Demand": "placement.model",
    "FlowStatus": "status",
    "Nimbus": "nimbus",
    "NimbusSettings": "settings",
    "Plan": "placement.planner",
    "Supervisor": "placement.model",
    "SupervisorStatus": "status",
    "TaskStatus": "status",
    "UserWorker": "placement.model",
    "Worker": "placement.model",
    "number_tasks": "placement.packing",
    "plan_assignment": "placement.planner",
    "plan_flows": "placement.planner",
    "worker_count": "placement.packing",
}

__all__ = [
    "Assignment",
    "Blacklist",
    "ClusterStatus",
    "Component",
    "Demand",
    "FlowStatus",
    "Nimbus",
    "NimbusSettings",
    "Plan",
    "Supervisor",
    "SupervisorStatus",
    "TaskStatus",
    "UserWorker",
    "Worker",
    "number_tasks",
    "plan_assignment",
    "plan_flows",
    "worker_count",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
