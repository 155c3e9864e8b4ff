"""Reports of a run while it runs: hooks, listeners, OpenLineage events."""
