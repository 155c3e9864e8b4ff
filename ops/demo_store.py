"""A store for `make demo LAKE=s3://...` where the environment names none: a server of S3 over a folder of the home."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pipelines.errors import TrideltaError
from pipelines.places.location import HDFS, Location
from pipelines.private import private_folder
from pipelines.spark.jars import cache_folder

VERSITY = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
"""A server of S3 over a folder, with atomic conditional puts (docs/object-stores.md). Go builds it, into the project's cache."""
# It answers within a second; a machine that starts Spark beside it takes longer.
_SECONDS = 60.0


class NoStoreError(TrideltaError):
    """A lake in a bucket is asked for, no store is named, and there is no server to start."""

    def __init__(self, lake: str, problem: str) -> None:
        self.lake, self.problem = lake, problem
        super().__init__(
            f"the lake {lake} is in a bucket, and {problem}",
            hint="name a store (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY; docs/object-stores.md), "
            "or install Go, with which the demo builds versitygw once",
        )


def is_named(environment: Mapping[str, str]) -> bool:
    """Return whether the environment names a store, or credentials for Amazon's."""
    return any(environment.get(name) for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_ROLE_ARN"))


@contextmanager
def store_for(lake: str, folder: Path) -> Iterator[str]:
    """Have a store answer while the block runs: the environment's, else a server over a folder, which keeps what is in it.

    Args:
        lake: where the lake is to be: a folder or one of HDFS, which need no store, or `s3://bucket/path`.
        folder: whose folders become the buckets of a server that is started.

    Yields:
        Sentences that say which store it is; empty: none is needed.
    """
    place = Location.of(lake)
    if place.is_local:
        yield ""
    elif place.scheme == HDFS:
        yield f"The lake is {lake}."
    elif is_named(os.environ):
        yield f"The lake is {lake}, in the store that the environment names."
    else:
        with _served(lake, folder) as url:
            (folder / place.bucket).mkdir(exist_ok=True)
            yield (
                f"The lake is {lake}, in a store that runs with the demo: {url} over {folder}. To look at it later, start "
                "versitygw over that folder; name it in AWS_ENDPOINT_URL, and the lake in TRIDELTA_LAKE (docs/object-stores.md)."
            )


def versity_program(cache: Path) -> Path | None:
    """Return versitygw: the installed one, else one that is built with Go into the cache once. None: neither is there."""
    found = shutil.which("versitygw") or shutil.which("versitygw", path=str(cache / "go"))
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if found is None and go is not None:
        print("Building versitygw with Go, once", file=sys.stderr, flush=True)
        (cache / "go").mkdir(parents=True, exist_ok=True)
        environment = os.environ | {"GOBIN": str((cache / "go").resolve())}
        subprocess.run([go, "install", VERSITY], env=environment, check=False, capture_output=True)
        found = shutil.which("versitygw", path=str(cache / "go"))
    return Path(found) if found else None


@contextmanager
def versity(program: Path, folder: Path, key: str, secret: str, log: Path | None = None) -> Iterator[str]:
    """Run versitygw on the loopback. Yield its URL; the folders in `folder` are its buckets.

    Args:
        log: where it writes a line per request.
    """
    port = free_port()
    logged = ["--access-log", str(log)] if log else []
    command = [str(program), "--port", f"127.0.0.1:{port}", *logged, "posix", str(folder)]
    with serving(command, port, {"ROOT_ACCESS_KEY": key, "ROOT_SECRET_KEY": secret}):
        yield f"http://127.0.0.1:{port}"


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


@contextmanager
def serving(command: list[str], port: int, given: Mapping[str, str]) -> Iterator[None]:
    """Run a server until the block ends, which begins when it answers."""
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, env=os.environ | dict(given), stdout=quiet, stderr=quiet) as process:
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
    raise TrideltaError(
        f"the server {process.args!r} does not answer on port {port}", hint="start it by hand to see what it says"
    )


@contextmanager
def _served(lake: str, folder: Path) -> Iterator[str]:
    """Run a server, and name it in the environment, for this process and those that it starts."""
    program = versity_program(cache_folder())
    if program is None:
        raise NoStoreError(lake, "the environment names no store; versitygw is not here, nor Go to build it with")
    private_folder(folder)
    key, secret = "demo", secrets.token_urlsafe(24)
    with versity(program, folder, key, secret) as url:
        ours = {
            "AWS_ENDPOINT_URL": url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_REGION": "us-east-1",
        }
        os.environ.update(ours)
        try:
            yield url
        finally:
            for name in ours:
                os.environ.pop(name, None)
