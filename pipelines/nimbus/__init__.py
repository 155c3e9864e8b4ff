"""Deployed flows: which flow runs in which worker, and what watches over it.

Names are loaded when they are asked for: the planner needs neither Spark nor a database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.lazy import lazy

if TYPE_CHECKING:
    from pipelines.nimbus.nimbus import Nimbus
    from pipelines.nimbus.placement.blacklist import Blacklist
    from pipelines.nimbus.placement.model import Assignment, Component, Demand, Supervisor, UserWorker, Worker
    from pipelines.nimbus.placement.packing import number_tasks, worker_count
    from pipelines.nimbus.placement.planner import Plan, plan_assignment, plan_flows
    from pipelines.nimbus.settings import NimbusSettings
    from pipelines.nimbus.status import ClusterStatus, FlowStatus, SupervisorStatus, TaskStatus


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

__getattr__ = lazy(
    __name__,
    {
        ".nimbus": ("Nimbus",),
        ".placement.blacklist": ("Blacklist",),
        ".placement.model": ("Assignment", "Component", "Demand", "Supervisor", "UserWorker", "Worker"),
        ".placement.packing": ("number_tasks", "worker_count"),
        ".placement.planner": ("Plan", "plan_assignment", "plan_flows"),
        ".settings": ("NimbusSettings",),
        ".status": ("ClusterStatus", "FlowStatus", "SupervisorStatus", "TaskStatus"),
    },
)
