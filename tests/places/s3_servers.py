"""Real servers that speak as S3 does, each started by its test run on the loopback and gone with it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

VERSITY = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
_SECONDS = 60.0
_MOTO = """
import sys
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
run_simple("127.0.0.1", int(sys.argv[1]), DomainDispatcherApplication(create_backend_app), threaded=False)
"""


@dataclass(frozen=True)
class Server:
    """A server that answers.

    Attributes:
        url: where.
        folder: where a bucket is a folder; None: the server has buckets of its own.
    """

    url: str
    folder: Path | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What a client of it finds in its environment."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "testing-key",
            "AWS_SECRET_ACCESS_KEY": "testing-secret",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def bucket(self) -> str:
        """Make a bucket and return its name."""
        name = f"test-{uuid4().hex[:12]}"
        if self.folder is not None:
            (self.folder / name).mkdir()
        else:
            # moto asks nobody who he is.
            with urllib.request.urlopen(urllib.request.Request(f"{self.url}/{name}", method="PUT")):
                pass
        return name


@contextlib.contextmanager
def moto() -> Iterator[Server]:
    """Run moto's server, which keeps buckets in memory.

    One request at a time: between the look at a condition and the put that hangs on it, threads of moto let others in.
    """
    port = _free_port()
    command = [sys.executable, "-W", "ignore", "-c", _MOTO, str(port)]
    with _running(command, port, {}):
        yield Server(f"http://127.0.0.1:{port}")


@contextlib.contextmanager
def versity(folder: Path) -> Iterator[Server]:
    """Run versitygw over a folder."""
    port, buckets = _free_port(), folder / "buckets"
    buckets.mkdir()
    given = {"ROOT_ACCESS_KEY": "testing-key", "ROOT_SECRET_KEY": "testing-secret"}
    command = [str(versity_program()), "--port", f"127.0.0.1:{port}", "posix", str(buckets)]
    with _running(command, port, given):
        yield Server(f"http://127.0.0.1:{port}", buckets)


def versity_program() -> Path | None:
    """Return the program, built once with Go into the cache; None where neither is there."""
    cache = Path(os.environ.get("TRIDELTA_CACHE") or Path(__file__).parents[2] / ".cache").resolve()
    found = shutil.which("versitygw") or shutil.which("versitygw", path=str(cache / "go"))
    if found is None and shutil.which("go"):
        (cache / "go").mkdir(parents=True, exist_ok=True)
        environment = os.environ | {"GOBIN": str(cache / "go")}
        subprocess.run(["go", "install", VERSITY], env=environment, check=False, capture_output=True)
        found = shutil.which("versitygw", path=str(cache / "go"))
    return Path(found) if found else None


def _free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


@contextlib.contextmanager
def _running(command: list[str], port: int, given: dict[str, str]) -> Iterator[None]:
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, env=os.environ | given, stdout=quiet, stderr=quiet) as process:
        try:
            _wait_for(port, process)
            yield
        finally:
            process.terminate()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise RuntimeError(f"the server does not answer on port {port}")
