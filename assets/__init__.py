"""Dagster assets and asset checks, made from the catalog."""

from assets.factory import FlowAssets, assets_of, flow_assets
from assets.view import FlowView

__all__ = ["FlowAssets", "FlowView", "assets_of", "flow_assets"]
