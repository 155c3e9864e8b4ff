"""Runs the flights flow in a process of its own and ends that process by SIGKILL at a chosen moment.

python -m tests.crash.driver '{"home": "...", "do": "catch_up", "kill": {"moment": "opened", "txid": 2}, ...}'
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pipelines import Lake, Runtime, spark_session
from tests.crash.flights_case import settings_of, topology


class Killer:
    """A listener that ends the process: at a named moment, or some time after the n-th of all moments."""

    def __init__(self, kill: dict[str, Any]) -> None:
        self.kill, self.seen = kill, 0

    def __call__(self, moment: str, state: str, txid: int) -> None:
        self.seen += 1
        kill = self.kill
        if "after" in kill:
            if self.seen == kill["after"]:
                threading.Timer(kill["delay"], self.end).start()
        elif (moment, state) == (kill["moment"], kill.get("state", "")) and txid >= kill.get("txid", -1):
            kill["times"] = kill.get("times", 1) - 1
            if not kill["times"]:
                self.end()

    def end(self) -> None:
        """This process alone, or the JVM with it; a JVM that is left behind notices by itself, some time later."""
        if self.kill.get("jvm"):
            os.killpg(os.getpgid(0), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)


def main(plan: dict[str, Any]) -> None:
    settings = settings_of(Path(plan["home"]))
    spark = spark_session("crash", master="local[2]", conf={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"})
    listeners = [Killer(plan["kill"])] if plan.get("kill") else []
    runtime = Runtime(spark, Lake(settings.lake), listeners=listeners)
    flights = topology(settings, files_per_batch=plan["files_per_batch"])
    if plan["do"] == "catch_up":
        runtime.catch_up(flights)
    else:
        runtime.backfill(flights, plan["slices"])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
