"""Flows: named streams of event operations, written fluently or as YAML, run by the same engines as topologies.

Names load on first use, so that a part of the engine that needs one module does not load all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.lazy import lazy

if TYPE_CHECKING:
    from pipelines.aggregators import (
        AssocCount,
        Average,
        Collect,
        Count,
        DistinctCount,
        FirstN,
        GroupCount,
        LastN,
        Max,
        Min,
        StdDev,
        Sum,
    )
    from pipelines.aggregators.window import WindowAggregator
    from pipelines.flowmix.conditions import (
        and_,
        eq,
        gt,
        gte,
        has,
        has_not,
        in_,
        lt,
        lte,
        not_,
        not_eq,
        or_,
        python,
        range_,
    )
    from pipelines.flowmix.criteria import Criteria
    from pipelines.flowmix.definition import StreamDefinition
    from pipelines.flowmix.flow import Flow
    from pipelines.flowmix.stream import FlowStream
    from pipelines.flowmix.yaml_form import load_flow, load_flows
    from pipelines.windows.event import Event
    from pipelines.windows.policy import Policy

__all__ = [
    "AssocCount",
    "Average",
    "Collect",
    "Count",
    "Criteria",
    "DistinctCount",
    "Event",
    "FirstN",
    "Flow",
    "FlowStream",
    "GroupCount",
    "LastN",
    "Max",
    "Min",
    "Policy",
    "StdDev",
    "StreamDefinition",
    "Sum",
    "WindowAggregator",
    "and_",
    "eq",
    "gt",
    "gte",
    "has",
    "has_not",
    "in_",
    "load_flow",
    "load_flows",
    "lt",
    "lte",
    "not_",
    "not_eq",
    "or_",
    "python",
    "range_",
]

__getattr__ = lazy(
    __name__,
    {
        ".conditions": (
            "and_",
            "eq",
            "gt",
            "gte",
            "has",
            "has_not",
            "in_",
            "lt",
            "lte",
            "not_",
            "not_eq",
            "or_",
            "python",
            "range_",
        ),
        ".criteria": ("Criteria",),
        ".definition": ("StreamDefinition",),
        ".flow": ("Flow",),
        ".stream": ("FlowStream",),
        ".yaml_form": ("load_flow", "load_flows"),
        "pipelines.aggregators": (
            "AssocCount",
            "Average",
            "Collect",
            "Count",
            "DistinctCount",
            "FirstN",
            "GroupCount",
            "LastN",
            "Max",
            "Min",
            "StdDev",
            "Sum",
        ),
        "pipelines.aggregators.window": ("WindowAggregator",),
        "pipelines.windows.event": ("Event",),
        "pipelines.windows.policy": ("Policy",),
    },
)
