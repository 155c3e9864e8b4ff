"""A real Spark standalone cluster on loopback, out of the wheel: a master and workers, each a process."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil

from pipelines.spark.java import find_java
from pipelines.spark.session import SPARK_HOME
from tests.nimbus.deployment import PATIENCE, end_all, wait_for

# The wheel lacks Spark's start scripts; these are the classes that they start.
_MASTER, _WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
_EXECUTOR = "CoarseGrainedExecutorBackend"


class SparkCluster:
    """A master and workers of one core each. Use it in `with`.

    Args:
        home: Whose processes these are: `end_all(home)` ends them too.
        workers: How many.
    """

    def __init__(self, home: Path, workers: int = 2) -> None:
        self._home, self._number, self._folder = home.absolute(), workers, home / "spark"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.master = f"spark://127.0.0.1:{probe.getsockname()[1]}"
        self.workers: list[subprocess.Popen[bytes]] = []

    @property
    def settings(self) -> dict[str, str]:
        """Spark settings of an application that runs on it."""
        return {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "768m",
            "spark.decommission.enabled": "true",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }

    def __enter__(self) -> SparkCluster:
        self._folder.mkdir(parents=True, exist_ok=True)
        port = self.master.rpartition(":")[2]
        self._start("master", _MASTER, "--host", "127.0.0.1", "--port", port, "--webui-port", "0")
        wait_for(self._answers, PATIENCE, lambda: self.told("master"))
        for _ in range(self._number):
            self.start_worker()
        return self

    def __exit__(self, *_: object) -> None:
        end_all(self._home)
        for one in [self._master, *self.workers]:
            one.wait()

    def start_worker(self) -> None:
        """One more, of one core."""
        name = f"worker{len(self.workers)}"
        options = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0"]
        self.workers.append(self._start(name, _WORKER, self.master, *options, "--work-dir", str(self._folder / name)))
        wait_for(lambda: "Successfully registered with master" in self.told(name), PATIENCE, lambda: self.told(name))

    def executors(self) -> list[psutil.Process]:
        """The executors of all applications."""
        found, children = [], []
        for worker in self.workers:
            with contextlib.suppress(psutil.Error):
                children += psutil.Process(worker.pid).children()
        for child in children:
            # spark-class leaves a dead shell to the JVM that takes its place: a zombie, which tells no command line.
            with contextlib.suppress(psutil.Error):
                if _EXECUTOR in " ".join(child.cmdline()):
                    found.append(child)
        return found

    def told(self, name: str) -> str:
        """What a process has printed."""
        file = self._folder / f"{name}.out"
        return file.read_text("utf-8", errors="replace") if file.is_file() else ""

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        environment = {
            "JAVA_HOME": str(find_java().home),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            # SIGPWR is the notice that a host is taken away.
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dspark.decommission.enabled=true",
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
            "TRIDELTA_HOME": str(self._home),
        }
        with (self._folder / f"{name}.out").open("ab") as out:
            made = subprocess.Popen(
                [SPARK_HOME / "bin" / "spark-class", *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self._folder,
                env=os.environ | environment,
            )
        if name == "master":
            self._master = made
        return made

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(self.master.rpartition(":")[2]))):
            return True
        return False
