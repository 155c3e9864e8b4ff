"""Dagster jobs and schedules, the command line, the demo."""
