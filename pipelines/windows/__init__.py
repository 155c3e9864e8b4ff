"""The one window engine: policies (data), buffers (plain Python), and the processor that runs them on Spark."""
