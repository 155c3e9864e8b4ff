"""Nexmark, the benchmark of an online auction: a generator of its events, and its queries as topologies."""
