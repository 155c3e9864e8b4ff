"""What a run reports while it runs: hooks, listeners, OpenLineage events."""
