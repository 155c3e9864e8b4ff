"""Flows: named streams of event operations, written fluently or as YAML, run by the same engines as topologies.

Names load on first use, so that a part of the engine that needs one module does not load all.
"""

from typing import TYPE_CHECKING

from pipelines.lazy import lazy

if TYPE_CHECKING:
    from pipelines.aggregators import AssocCount as AssocCount
    from pipelines.aggregators import Average as Average
    from pipelines.aggregators import Collect as Collect
    from pipelines.aggregators import Count as Count
    from pipelines.aggregators import DistinctCount as DistinctCount
    from pipelines.aggregators import FirstN as FirstN
    from pipelines.aggregators import GroupCount as GroupCount
    from pipelines.aggregators import LastN as LastN
    from pipelines.aggregators import Max as Max
    from pipelines.aggregators import Min as Min
    from pipelines.aggregators import StdDev as StdDev
    from pipelines.aggregators import Sum as Sum
    from pipelines.aggregators.window import WindowAggregator as WindowAggregator
    from pipelines.flowmix.conditions import and_ as and_
    from pipelines.flowmix.conditions import eq as eq
    from pipelines.flowmix.conditions import gt as gt
    from pipelines.flowmix.conditions import gte as gte
    from pipelines.flowmix.conditions import has as has
    from pipelines.flowmix.conditions import has_not as has_not
    from pipelines.flowmix.conditions import in_ as in_
    from pipelines.flowmix.conditions import lt as lt
    from pipelines.flowmix.conditions import lte as lte
    from pipelines.flowmix.conditions import not_ as not_
    from pipelines.flowmix.conditions import not_eq as not_eq
    from pipelines.flowmix.conditions import or_ as or_
    from pipelines.flowmix.conditions import python as python
    from pipelines.flowmix.conditions import range_ as range_
    from pipelines.flowmix.criteria import Criteria as Criteria
    from pipelines.flowmix.definition import StreamDefinition as StreamDefinition
    from pipelines.flowmix.flow import Flow as Flow
    from pipelines.flowmix.stream import FlowStream as FlowStream
    from pipelines.flowmix.yaml_form import load_flow as load_flow
    from pipelines.flowmix.yaml_form import load_flows as load_flows
    from pipelines.windows.event import Event as Event
    from pipelines.windows.policy import Policy as Policy

__getattr__, __all__ = lazy(__name__, __file__)
