"""Runners of batch groups: the stream, the bounded run, and queries."""
