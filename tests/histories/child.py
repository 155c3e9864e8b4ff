"""Drivers that are processes of their own: started ahead, told once what to run, killed or stopped at a moment by a real signal.

`python -m tests.histories.child` starts Spark, says `ready`, reads one order (JSON) and runs it. What it tells its listeners goes
into a file, line by line, before anything else happens.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from tests.histories.world import ATTEMPTS, PATIENCE, StuckError

PROJECT = Path(__file__).resolve().parents[2]


class Child:
    """A driver that waits for its order."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.histories.child"],
            cwd=PROJECT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")])},
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def order(self, **order: Any) -> None:
        """Let it run."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        while (line := self._process.stdout.readline()).strip() != "ready":
            if not line:
                raise StuckError("a driver has ended before its order")
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def ended(self) -> int:
        """Wait for its end; the return code, which is below zero where a signal ended it."""
        try:
            return self._process.wait(PATIENCE)
        finally:
            self.close()

    def stopped_or_ended(self) -> bool:
        """Wait until it stands still (true) or has ended."""
        process = psutil.Process(self._process.pid)
        for _ in range(int(PATIENCE / 0.05)):
            if self._process.poll() is not None:
                return False
            if process.status() == psutil.STATUS_STOPPED:
                return True
            time.sleep(0.05)
        raise StuckError("a driver neither stops nor ends")

    def wake(self) -> None:
        """Let it go on."""
        os.kill(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        """End it and its JVM, whatever they do."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class Drivers:
    """Children, one of which is always being started ahead."""

    def __init__(self) -> None:
        self._next: Child | None = Child()

    def take(self) -> Child:
        found = self._next or Child()
        self._next = Child()
        return found

    def close(self) -> None:
        if self._next is not None:
            self._next.close()
            self._next = None


def events_of(file: Path) -> list[tuple[str, str, int]]:
    """What a driver has told."""
    return [tuple(json.loads(line)) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


class _Signaller:
    """Writes each moment down; at one of them its process gets a signal."""

    def __init__(self, file: Path, at: int, number: int) -> None:
        self._file, self._at, self._number, self._seen = file, at, number, 0

    def __call__(self, moment: str, state: str, txid: int) -> None:
        with self._file.open("a", encoding="utf-8") as out:
            out.write(json.dumps([moment, state, txid]) + "\n")
        self._seen += 1
        if self._seen - 1 == self._at:
            os.kill(os.getpid(), self._number)


def main() -> None:
    """Start Spark, wait for the order, run it."""
    from pipelines import Lake, Runtime, spark_session
    from tests.histories.model import Model, Rules
    from tests.histories.play import Play
    from tests.histories.programs import world_of
    from tests.histories.world import small_and_quick, told_of_steps

    spark = spark_session("child", master="local[1]", conf={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"})
    print("ready", flush=True)
    order = json.loads(sys.stdin.readline())
    home = Path(order["home"])
    with small_and_quick(spark):
        world = world_of(spark, order["shape"], home)
        listener = _Signaller(Path(order["events"]), order["at"], order["signal"])
        runtime = Runtime(
            spark, Lake(world.lake.root), listeners=[listener], max_attempts=ATTEMPTS, lock_wait_seconds=20
        )
        play = Play(world, Model([], Rules(**order["rules"])))
        run = play.run_of(order["do"], order["slices"])
        try:
            with told_of_steps(listener):
                run(runtime)
        except Exception as error:
            listener("error", type(error).__name__, -1)
            raise


if __name__ == "__main__":
    main()
