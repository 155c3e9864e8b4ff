"""Dagster's web interface on this machine, behind a guard."""
