"""The end of all of a host: supervisors first, then their workers, each with its patience."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.nimbus.processes.life import Ended, Life, shut_down
from pipelines.nimbus.processes.supervisor import worker_environment
from pipelines.nimbus.settings import NimbusSettings
from pipelines.processes import ProcessIdentity
from tests.nimbus.test_supervisor import Host
from tests.nimbus.test_supervisor import host as host
from tests.nimbus.test_supervisor import settings as settings

pytestmark = pytest.mark.slow


def test_all_of_a_host_can_be_ended(host: Host, settings: NimbusSettings) -> None:
    host.submit()
    host.until(host.works)
    worker = host.worker()
    assert worker is not None
    supervisor = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    record = {"life": "x", **ProcessIdentity.of(supervisor.pid).to_json()}
    (settings.supervisor_folder("s1") / "supervisor.json").write_text(json.dumps(record), "utf-8")
    port = next(iter(host.places.used_slots()))[1]
    assert shut_down(settings) == Ended(("s1",), (f"s1:{port}",), ())
    assert supervisor.wait() == -signal.SIGTERM
    assert worker.process() is None
    assert shut_down(settings) == Ended((), (), ())


# A supervisor that starts a worker in the moment in which it ends.
_ENDS_LATE = """
import os, signal, subprocess, sys, time
from pathlib import Path
from pipelines.nimbus.processes.life import Life
from pipelines.nimbus.settings import NimbusSettings
from pipelines.processes import ProcessIdentity

def end(*_):
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "started by a worker"])
    Life(NimbusSettings(Path(sys.argv[1])), "s1", 2).starting("y", ProcessIdentity.of(worker.pid))
    os._exit(0)

signal.signal(signal.SIGTERM, end)
print("up", flush=True)
time.sleep(600)
"""


def test_a_shutdown_ends_workers_that_are_starting(host: Host, settings: NimbusSettings) -> None:
    host.restart("starts slowly")
    host.submit()
    host.until(lambda: host.supervisor._children)
    (worker,) = host.supervisor._children
    assert host.worker() is None
    command = [sys.executable, "-c", _ENDS_LATE, str(settings.home)]
    with subprocess.Popen(command, env=worker_environment(host.store, settings), stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        supervisor.stdout.readline()
        record = {"life": "x", **ProcessIdentity.of(supervisor.pid).to_json()}
        (settings.supervisor_folder("s1") / "supervisor.json").write_text(json.dumps(record), "utf-8")
        assert shut_down(settings) == Ended(("s1",), ("s1:1", "s1:2"), ())
        assert supervisor.wait(30) == 0
    assert worker.wait(30) == -signal.SIGTERM
    late = Life(settings, "s1", "2.starting").read()
    assert late is not None
    assert late.process() is None


# A supervisor that hangs, and a worker that it has started.
_HANGS = """
import signal, subprocess, sys
from pathlib import Path
worker = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(open(sys.argv[1], 'x').close()));"
worker += "print('up', flush=True); signal.pause()"
signal.signal(signal.SIGTERM, signal.SIG_IGN)
command = [sys.executable, "-c", worker, sys.argv[1]]
worker = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
worker.stdout.readline()
print(worker.pid, flush=True)
worker.wait()
"""


def test_a_shutdown_drains_the_workers_of_a_supervisor_that_hangs(settings: NimbusSettings, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _HANGS, str(tmp_path / "drained")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as supervisor:
        assert supervisor.stdout is not None
        worker = int(supervisor.stdout.readline())
        settings.supervisor_folder("s1").mkdir(parents=True)
        for slot, pid in (("supervisor", supervisor.pid), ("1", worker)):
            record = {"life": slot, **ProcessIdentity.of(pid).to_json()}
            (settings.supervisor_folder("s1") / f"{slot}.json").write_text(json.dumps(record), "utf-8")
        assert shut_down(settings) == Ended(("s1",), ("s1:1",), ("s1:supervisor",))
        assert supervisor.wait(30) == -signal.SIGKILL
    assert (tmp_path / "drained").exists()
