"""The test flows, in workers that end by SIGKILL at a named point of a batch or of a repartition.

A worker that loads its flows from here looks for a plan, `<TRIDELTA_HOME>/kill.json`, at each point. The product knows nothing
of this: listeners and the repartition's progress are its own, and this module adds one to each.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.nimbus import deployed_flows

FLOWS = deployed_flows.FLOWS
PLAN, DONE = "kill.json", "killed.json"


def plan(home: Path, moment: str, *, group: str = "numbers", jvm: bool = False) -> None:
    """From now on the next worker that comes to this point dies there; with its JVM, or without it."""
    (home / DONE).unlink(missing_ok=True)
    draft = home / f".{PLAN}"
    draft.write_text(json.dumps({"moment": moment, "group": group, "jvm": jvm}))
    draft.rename(home / PLAN)


def killed(home: Path) -> bool:
    """Whether the planned death has come."""
    return (home / DONE).exists()


def _at(moment: str, group: str) -> None:
    home = Path(os.environ["TRIDELTA_HOME"])
    with contextlib.suppress(FileNotFoundError):
        planned = json.loads((home / PLAN).read_text())
        if (planned["moment"], planned["group"]) == (moment, group):
            (home / PLAN).rename(home / DONE)
            os.killpg(os.getpgid(0), signal.SIGKILL) if planned["jvm"] else os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)


def _listen() -> None:
    """Every query that starts in this process has one listener more, every repartition tells its phases."""
    from pipelines.execution.runners.stream import StreamRunner
    from pipelines.maintenance import repartition as maintenance

    begin, change = StreamRunner.__init__, maintenance.repartition

    def with_killer(self: StreamRunner, group: Any, checkpoint: Any, options: Any) -> None:
        def listener(moment: str, state: str, txid: int) -> None:
            _at(moment, group.name)

        begin(self, group, checkpoint, replace(options, listeners=(*options.listeners, listener)))

    def with_progress(spark: Any, checkpoint: Any, partitions: int, **more: Any) -> Any:
        progress: Callable[[str], None] = lambda phase: _at(phase, checkpoint.folder.name)  # noqa: E731
        return change(spark, checkpoint, partitions, **more, progress=progress)

    StreamRunner.__init__ = with_killer  # type: ignore[method-assign,assignment]
    maintenance.repartition = with_progress  # type: ignore[assignment]


# The test itself loads the flows, too; it must live.
if "pipelines.nimbus.processes.worker" in " ".join(getattr(sys, "orig_argv", [])):
    _listen()
