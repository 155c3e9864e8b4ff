"""The run launcher: runs of Dagster, forked from a preloaded process."""
