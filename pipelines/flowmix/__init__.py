"""Flows: named streams of event operations, written fluently or as YAML, run by the same engines as topologies.

Names load on first use, so that a part of the engine that needs one module does not load all.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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

_HOMES = {
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
    "pipelines.flowmix.conditions": (
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
    "pipelines.flowmix.criteria": ("Criteria",),
    "pipelines.flowmix.definition": ("StreamDefinition",),
    "pipelines.flowmix.flow": ("Flow",),
    "pipelines.flowmix.stream": ("FlowStream",),
    "pipelines.flowmix.yaml_form": ("load_flow", "load_flows"),
    "pipelines.windows.event": ("Event",),
    "pipelines.windows.policy": ("Policy",),
}
_LAZY = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
