"""One batch of a batch group: its sources, its plan, its commits, its quarantine."""
