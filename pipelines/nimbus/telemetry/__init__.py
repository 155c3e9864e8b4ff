"""Metrics, figures and logs of deployed flows."""
