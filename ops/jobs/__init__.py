"""Dagster jobs."""
