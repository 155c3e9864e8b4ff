"""Deployed flows: which flow runs in which worker, and what watches over it.

Names are loaded when they are asked for: the planner needs neither Spark nor a database.
"""

from typing import TYPE_CHECKING

from pipelines.lazy import lazy

if TYPE_CHECKING:
    from pipelines.nimbus.nimbus import Nimbus as Nimbus
    from pipelines.nimbus.placement.blacklist import Blacklist as Blacklist
    from pipelines.nimbus.placement.model import Assignment as Assignment
    from pipelines.nimbus.placement.model import Component as Component
    from pipelines.nimbus.placement.model import Demand as Demand
    from pipelines.nimbus.placement.model import Supervisor as Supervisor
    from pipelines.nimbus.placement.model import UserWorker as UserWorker
    from pipelines.nimbus.placement.model import Worker as Worker
    from pipelines.nimbus.placement.packing import number_tasks as number_tasks
    from pipelines.nimbus.placement.packing import worker_count as worker_count
    from pipelines.nimbus.placement.planner import Plan as Plan
    from pipelines.nimbus.placement.planner import plan_assignment as plan_assignment
    from pipelines.nimbus.placement.planner import plan_flows as plan_flows
    from pipelines.nimbus.settings import NimbusSettings as NimbusSettings
    from pipelines.nimbus.status import ClusterStatus as ClusterStatus
    from pipelines.nimbus.status import FlowStatus as FlowStatus
    from pipelines.nimbus.status import SupervisorStatus as SupervisorStatus
    from pipelines.nimbus.status import TaskStatus as TaskStatus

__getattr__, __all__ = lazy(__name__, __file__)
