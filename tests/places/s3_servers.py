"""Real servers that speak as S3 does, each started by its test run on the loopback and gone with it."""

from __future__ import annotations

import contextlib
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from ops import demo_store
from pipelines.spark.jars import cache_folder

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
    port = demo_store.free_port()
    command = [sys.executable, "-W", "ignore", "-c", _MOTO, str(port)]
    with demo_store.serving(command, port, {}):
        yield Server(f"http://127.0.0.1:{port}")


@contextlib.contextmanager
def versity(folder: Path) -> Iterator[Server]:
    """Run versitygw over a folder."""
    program, buckets = versity_program(), folder / "buckets"
    assert program is not None
    buckets.mkdir()
    with demo_store.versity(program, buckets, "testing-key", "testing-secret") as url:
        yield Server(url, buckets)


def versity_program() -> Path | None:
    """Return the program, built once with Go into the cache; None where neither is there."""
    return demo_store.versity_program(cache_folder())
