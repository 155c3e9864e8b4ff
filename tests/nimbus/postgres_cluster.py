"""A PostgreSQL server for the tests: Debian's, with a cluster of its own in a temporary folder, on a Unix socket only."""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path


def binaries() -> Path | None:
    """The folder of the newest server's programs; None where there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    if found:
        return found[-1].parent
    elsewhere = shutil.which("initdb")
    return Path(elsewhere).resolve().parent if elsewhere else None


def why_not() -> str | None:
    """Why there can be no server; None if there can."""
    if find_spec("psycopg") is None:
        return 'no driver for PostgreSQL: pip install "psycopg[binary]"'
    if binaries() is None:
        return "no PostgreSQL server: apt-get install postgresql"
    if os.geteuid() == 0 and _account() is None:
        return "PostgreSQL does not run as root, and there is no account postgres or nobody"
    return None


@contextmanager
def server() -> Iterator[str]:
    """Starts one, and gives its URL without a database; stops it and removes its folder."""
    with cluster() as running:
        yield running.url


class Cluster:
    """A cluster that can be stopped and started again; its databases stay.

    Args:
        folder: Where it keeps its data, its log and its socket.
    """

    def __init__(self, folder: Path) -> None:
        programs = binaries()
        assert programs is not None
        self._programs, self._folder, self._data = programs, folder, folder / "data"
        self.url = f"postgresql://tridelta@/{{database}}?host={folder}"
        self._running: subprocess.Popen[bytes] | None = None
        made = _start(
            [programs / "initdb", "-D", self._data, "-U", "tridelta", "-A", "trust", "-N", "-E", "UTF8"], folder
        )
        assert made.wait(120) == 0, (folder / "log").read_text()

    def start(self) -> None:
        """Until it answers."""
        # No fsync: this cluster is to live for a minute.
        options = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={self._folder}", "-c", "fsync=off"]
        self._running = _start([self._programs / "postgres", "-D", self._data, *options], self._folder)
        _wait(self._programs, self._folder, self._running)

    def stop(self) -> None:
        """At once: its clients are cut off in the middle of what they do."""
        if self._running is not None:
            self._running.send_signal(signal.SIGQUIT)
            self._running.wait(60)
            self._running = None


@contextmanager
def cluster() -> Iterator[Cluster]:
    """One that runs, as an unprivileged user; it is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="tridelta_pg_", dir="/tmp"))  # a socket's path must be short
    account = _account() if os.geteuid() == 0 else None
    if account is not None:
        os.chown(folder, account.pw_uid, account.pw_gid)
    try:
        made = Cluster(folder)
        try:
            made.start()
            yield made
        finally:
            made.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _account() -> pwd.struct_passwd | None:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None


def _start(command: list[object], folder: Path) -> subprocess.Popen[bytes]:
    account = _account() if os.geteuid() == 0 else None
    user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if account else {}
    # The server ends with the tests even where those are killed.
    leash = ["setpriv", "--pdeathsig", "QUIT"] if shutil.which("setpriv") else []
    name = account.pw_name if account else getpass.getuser()
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "USER": name, "LC_ALL": "C"}
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [*leash, *map(str, command)], cwd=folder, env=environment, stdout=log, stderr=log, **user
        )


def _wait(programs: Path, folder: Path, running: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while subprocess.call([programs / "pg_isready", "-q", "-h", folder], stdin=subprocess.DEVNULL) != 0:
        assert running.poll() is None, (folder / "log").read_text()
        assert time.monotonic() < until, "the server does not answer"
        time.sleep(0.05)
