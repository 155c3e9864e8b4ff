"""A server before a store that keeps a commit of Delta's and loses the answer to it.

`python -m tests.places.losing_proxy STORE PORT` passes all on to STORE (`host:port`). A POST of `/-/error` or `/-/cut` has it
answer the next commit that is stored with a 500, or with nothing; a GET of `/-/lost` says how many answers were lost so far.

A process of its own: some calls of delta-rs keep Python's lock while they wait.
"""

from __future__ import annotations

import contextlib
import re
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ops import demo_store
from tests.places.s3_servers import Server

_COMMIT = re.compile(r"/_delta_log/\d{20}\.json$")
_OF_A_CONNECTION = ("connection", "keep-alive", "transfer-encoding", "content-length", "date", "server")
_KINDS = ("error", "cut")


@dataclass(frozen=True)
class LosingServer(Server):
    """A server of S3 that loses answers."""

    def lose(self, answer: str) -> None:
        """Lose the answer to the next commit that is stored: `error` or `cut`."""
        with urllib.request.urlopen(f"{self.url}/-/{answer}", data=b""):
            pass

    @property
    def lost(self) -> int:
        """How many answers were lost so far."""
        with urllib.request.urlopen(f"{self.url}/-/lost") as answer:
            return int(answer.read())


@contextlib.contextmanager
def losing(store: Server) -> Iterator[LosingServer]:
    """Run a proxy before a store."""
    port = demo_store.free_port()
    command = [sys.executable, "-m", "tests.places.losing_proxy", store.url.removeprefix("http://"), str(port)]
    with demo_store.serving(command, port, {}):
        yield LosingServer(f"http://127.0.0.1:{port}", store.folder)


class _Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store, due, lost = "", "", 0

    def _passed_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.startswith("/-/"):
            self._told(self.path.removeprefix("/-/"))
            return
        behind = HTTPConnection(self.store, timeout=60)
        behind.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            behind.putheader(name, value)
        behind.endheaders(body)
        answer = behind.getresponse()
        data, status = answer.read(), answer.status
        behind.close()
        cls = type(self)
        if cls.due and self.command == "PUT" and status == 200 and _COMMIT.search(self.path.partition("?")[0]):
            due, cls.due, cls.lost = cls.due, "", cls.lost + 1
            if due == "cut":
                self.close_connection = True
                return
            status, data = 500, b""
        self.send_response_only(status)
        for name, value in answer.getheaders():
            if name.lower() not in _OF_A_CONNECTION:
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", length or "0")
        self.send_header("Date", answer.getheader("Date") or self.date_time_string())
        self.end_headers()
        self.wfile.write(data)

    def _told(self, what: str) -> None:
        if what in _KINDS:
            type(self).due = what
        data = str(type(self).lost).encode()
        self.send_response_only(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _passed_on  # noqa: N815  # as http.server asks for them


if __name__ == "__main__":
    _Proxy.store = sys.argv[1]
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), _Proxy).serve_forever()
