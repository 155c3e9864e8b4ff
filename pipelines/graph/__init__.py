"""The model of topologies and flows: pure Python, no Spark."""
