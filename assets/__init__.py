"""Dagster assets and asset checks, made from the catalog."""
