"""The former place of `ops.flow_component`, which component files name; it goes with version 0.3."""

from ops.flow_component import FlowComponent

__all__ = ["FlowComponent"]
