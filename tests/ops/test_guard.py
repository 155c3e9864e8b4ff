"""The guard of the UI: what a browser sends for a page of another site does not reach Dagster."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.web import services
from ops.web.guarded_webserver import LOOPBACK, WebGuard, hosts

PROJECT = Path(__file__).resolve().parent.parent.parent
MUTATION = "mutation{setNuxSeen}"


def refused(method: str = "GET", path: str = "/", names: Any = LOOPBACK, **headers: str) -> str | None:
    """What the guard says of a request; a header's name is written with `_`."""
    said = {"Host": "127.0.0.1:3000"} | {name.replace("_", "-"): value for name, value in headers.items()}
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in said.items() if value],
    }
    return WebGuard(None, names).refused(scope)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "evil.example:3000",
        "127.0.0.1.evil.example:3000",
        "evil.example@127.0.0.1:3000",
        "localhost.:3000",
        "127.1:3000",
        "0.0.0.0:3000",
        "127.0.0.1:99999",
        "127.0.0.1:x",
        "127.0.0.1:3000/",
        "[::1",
        "[::ffff:127.0.0.1]:3000",
    ],
)
def test_a_foreign_host_is_refused(host: str) -> None:
    assert "is not this UI's" in str(refused(Host=host))


def test_two_hosts_are_refused() -> None:
    headers = [(b"host", b"127.0.0.1:3000"), (b"Host", b"evil.example")]
    scope = {"type": "http", "method": "GET", "path": "/", "headers": headers}
    assert WebGuard(None).refused(scope)  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["127.0.0.1:3000", "localhost", "LocalHost:8080", "[::1]:3000"])
def test_the_hosts_own_names_pass(host: str) -> None:
    assert refused(Host=host) is None
    assert refused("POST", "/graphql", Host=host, Origin=f"http://{host}", Content_Type="application/json") is None


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "http://evil.example",
        "http://localhost:3000",
        "http://127.0.0.1:8888",
        "http://127.0.0.1",
        "x",
        "http://[",
    ],
)
def test_a_foreign_origin_is_refused(origin: str) -> None:
    said = refused("POST", "/graphql", Origin=origin, Content_Type="application/json")
    assert said is not None
    assert "another origin" in said


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Cross-Site", "", "junk"])
def test_a_foreign_site_is_refused(site: str) -> None:
    assert bool(refused(Sec_Fetch_Site=site)) == bool(site)
    assert refused("POST", "/report_asset_materialization/flights", Sec_Fetch_Site="cross-site")


def test_what_the_ui_itself_sends_passes() -> None:
    own = {"Origin": "http://127.0.0.1:3000", "Sec_Fetch_Site": "same-origin"}
    assert refused("POST", "/graphql", **own, Content_Type="application/json; charset=utf-8") is None
    assert refused(Sec_Fetch_Site="none") is None
    assert refused("GET", "/graphql", Accept="text/html,*/*", Sec_Fetch_Site="none") is None


@pytest.mark.parametrize("path", ["/graphql", "/graphql/", "/prefix/graphql"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_nothing_runs_by_get(method: str, path: str) -> None:
    assert "by POST" in str(refused(method, path, Accept="application/json"))
    assert "by POST" in str(refused(method, path))


@pytest.mark.parametrize(
    "kind",
    ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "text/plain; application/json"],
)
def test_nothing_runs_by_what_a_form_sends(kind: str) -> None:
    assert "as application/json" in str(refused("POST", "/graphql", Content_Type=kind))


def test_a_proxy_names_its_host() -> None:
    names = hosts({"TRIDELTA_UI_HOSTS": " Dagster.Example ,,other.example"})
    assert refused(Host="dagster.example", Origin="https://dagster.example:443", names=names) is None
    assert refused(Host="evil.example", names=names)
    assert refused(Host="dagster.example", Origin="https://evil.example", names=names)


def test_a_foreign_web_socket_is_not_opened() -> None:
    sent: list[Any] = []

    async def app(*_: Any) -> None:
        raise AssertionError("it got through")

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"127.0.0.1:3000"), (b"origin", b"http://evil.example")]
    scope = {"type": "websocket", "path": "/graphql", "headers": headers}
    asyncio.run(WebGuard(app)(scope, receive, send))
    assert [one["type"] for one in sent] == ["websocket.close"]


def test_dagsters_processes_are_started_with_the_guard() -> None:
    web = services.guarded([sys.executable, "-m", "dagster_webserver", "--port", "3000"])
    assert web[1:4] == ["-P", "-m", "ops.web.guarded_webserver"]
    assert services.guarded([sys.executable, "-m", "dagster._daemon", "run"])[3] == "dagster._daemon"
    with pytest.raises(ValueError, match="another way"):
        services.guarded(["dagster-webserver", "--port", "3000"])


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Dagster's own web server behind the guard, with nothing to show."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home = tmp_path_factory.mktemp("dagster")
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n", encoding="utf-8")
    server = subprocess.Popen(
        [sys.executable, "-P", "-m", "ops.web.guarded_webserver", "--empty-workspace", "--port", str(port)],
        env=os.environ | {"DAGSTER_HOME": str(home), "PYTHONPATH": str(PROJECT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        while server.poll() is None:
            try:
                urllib.request.urlopen(f"{url}/server_info", timeout=10).close()
            except urllib.error.URLError:
                time.sleep(0.1)
                continue
            break
        yield url
    finally:
        server.terminate()
        server.wait(30)


def status(request: urllib.request.Request | str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.slow
def test_dagster_behind_the_guard(address: str) -> None:
    asked = urllib.parse.urlencode({"query": MUTATION})
    assert status(f"{address}/graphql?{asked}") == (403, "Refused: queries are sent by POST.\n")
    form = urllib.request.Request(f"{address}/graphql?{asked}", data=b"a=b")
    assert status(form)[0] == 403
    body = b'{"query": "{version}"}'
    own = urllib.request.Request(f"{address}/graphql", data=body, headers={"Content-Type": "application/json"})
    assert '"version":"1.' in status(own)[1].replace(" ", "")
    for name, value in {"Origin": "http://evil.example", "Host": "evil.example", "Sec-Fetch-Site": "same-site"}.items():
        foreign = urllib.request.Request(
            own.full_url, data=body, headers={"Content-Type": "application/json", name: value}
        )
        assert status(foreign)[0] == 403, name
    with urllib.request.urlopen(address, timeout=30) as page:
        assert page.headers["X-Frame-Options"] == "SAMEORIGIN"
        assert page.read()


@pytest.mark.slow
def test_subscriptions_pass_the_guard(address: str) -> None:
    from websockets.sync.client import connect

    url = address.replace("http:", "ws:") + "/graphql"
    with connect(url, subprotocols=["graphql-ws"], origin=address) as own:  # type: ignore[arg-type,list-item]
        own.send('{"type": "connection_init"}')
        assert "connection_ack" in str(own.recv(timeout=30))
    from websockets.exceptions import InvalidStatus

    with pytest.raises(InvalidStatus), connect(url, origin="http://evil.example"):  # type: ignore[arg-type]
        pass
