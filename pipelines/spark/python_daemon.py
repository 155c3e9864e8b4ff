"""Spark's Python daemon, with imported what its workers need. A worker is a fork of it and begins at once.

Spark's own daemon imports nothing before it forks, for pandas and pyarrow may start threads, which a fork loses. So each worker
takes about a second to begin: the first ones, those after a minute without work, and one after every error in a user's code.
Here the libraries are set to start none: numpy's algebra by the number of threads that Spark sets too, and allocators by
their own settings.
"""

from __future__ import annotations

import gc
import importlib
import os

SINGLE_THREADED = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # jemalloc's thread that gives memory back: Arrow's, and that of delta-rs.
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "_RJEM_MALLOC_CONF": "background_thread:false",
}

# The last two bring what the functions of a plan refer to: half a second of a worker's start.
NEEDED = (
    "pandas",
    "pyarrow.compute",
    "pyspark.sql.conversion",
    "pyspark.sql.pandas.serializers",
    "pyspark.worker",
    "pipelines.planner.compile",
    "pipelines.planner.windows",
)


def main() -> None:
    """Import, and serve forks until Spark closes the input."""
    os.environ |= SINGLE_THREADED
    for name in NEEDED:
        importlib.import_module(name)
    from pyspark.daemon import manager

    # What is there now is never garbage: collections in a worker need not look at it, nor copy its pages.
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
