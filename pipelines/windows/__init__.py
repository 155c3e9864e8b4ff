"""The one window engine: policies (data), buffers (plain Python), and the processor that runs them on Spark."""

BUCKETS = 32
"""Buckets of an operation's keys. A checkpoint keeps the number that it began with: it is part of every state's key.

So many that two to sixteen cores share them evenly; each costs a batch about 2 ms for its state's way to and from RocksDB.
"""
