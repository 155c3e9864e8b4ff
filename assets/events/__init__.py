"""Dagster events of what the engine reports: materializations, verdicts, metadata, plots."""
