"""Hand-over of runs to a worker whose Spark is already up."""
