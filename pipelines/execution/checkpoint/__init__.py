"""Checkpoints: what the engine keeps beside Spark's, whose they are, and whether they belong to the tables."""
