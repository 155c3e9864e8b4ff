"""Dagster assets and asset checks, made from the catalog."""

from assets.factory import FlowAssets, flow_assets
from assets.view import FlowView

__all__ = ["FlowAssets", "FlowView", "flow_assets"]
