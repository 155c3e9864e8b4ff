"""Jobs that the tests of the run launcher launch."""

import os
import signal
import time

import dagster as dg


@dg.op(config_schema={"does": str})
def work(context: dg.OpExecutionContext) -> None:
    """Ends well, goes on until it is interrupted, fails, or dies."""
    does = context.op_config["does"]
    context.log.info(f"parent {os.getppid()}")
    if does == "go_on":
        while True:
            time.sleep(0.05)
    if does == "fail":
        raise ValueError("as told")
    if does == "die":
        os.kill(os.getpid(), signal.SIGKILL)


@dg.job(executor_def=dg.in_process_executor)
def launched() -> None:
    work()
