"""Dagster's web server behind a guard, which blocks requests that a page of another site made a browser send.

Dagster asks for no login and no token, so whoever can send it a request can start runs. On a loopback port that is each
program of this host, and each web page in a browser of this host: by a form, by an image's address, or by a host name of the
page's own that has come to mean 127.0.0.1. What tells them apart is what a browser says by itself and no page can change:
`Host`, `Origin` and `Sec-Fetch-Site`.

`python -P -m ops.web.guarded_webserver`, with the options of `dagster-webserver`.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from dagster_webserver import cli

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HOSTS = "TRIDELTA_UI_HOSTS"
"""Names, with commas, under which browsers reach the UI beside those of this host: what a proxy before it is called."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
# A page of another site cannot send these without asking first, which Dagster never allows.
_GRAPHQL_TYPES = ("application/json", "application/graphql")
_HEADERS = (
    (b"x-frame-options", b"SAMEORIGIN"),
    (b"content-security-policy", b"frame-ancestors 'self'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
)


def hosts(environment: Mapping[str, str] = os.environ) -> frozenset[str]:
    """Return the host names that the UI answers to."""
    more = (name.strip().lower() for name in environment.get(HOSTS, "").split(","))
    return frozenset([*LOOPBACK, *(name for name in more if name)])


class WebGuard:
    """An ASGI application around another: what is not to pass gets 403, a web socket is not opened.

    Args:
        names: The host names that it answers to, without ports: a tunnel may have another one.
    """

    def __init__(self, app: App, names: Iterable[str] = LOOPBACK) -> None:
        self._app, self._names = app, frozenset(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        reason = self.refused(scope)
        if reason is None:
            await self._app(scope, receive, _with_headers(send))
        elif scope["type"] == "websocket":
            # Closed before it is accepted: the server answers 403.
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": reason[:100]})
        else:
            await _answer(send, reason)

    def refused(self, scope: Scope) -> str | None:
        """Say why a request does not pass, in a sentence; None if it does."""
        headers = _by_name(scope.get("headers", ()))
        said = headers.get("host", [])
        name = _host_name(said[0]) if len(said) == 1 else None
        if name not in self._names:
            shown = ", ".join(said) or "none"
            return (
                f"the host that was asked for ({shown}) is not this UI's. Open it as localhost, or name it in {HOSTS}"
            )
        host = said[0].lower()
        for origin in headers.get("origin", []):
            if not _same_origin(origin, host):
                return f"a page of another origin ({origin}) sent this request"
        for site in headers.get("sec-fetch-site", []):
            if site.strip().lower() not in ("same-origin", "none"):
                return "a page of another site sent this request, or a link there led here. Open the address by hand"
        if scope["type"] == "http" and scope["path"].rstrip("/").endswith("/graphql"):
            return _refused_query(scope["method"], headers)
        return None


def _refused_query(method: str, headers: Mapping[str, list[str]]) -> str | None:
    """Return why a query is refused: Dagster runs mutations by GET, and takes what a form can send."""
    if method in _SAFE_METHODS:
        # The page to write queries in; with that in its `Accept`, Dagster runs nothing.
        reads_page = method == "GET" and any("text/html" in value for value in headers.get("accept", [])[:1])
        return None if reads_page else "queries are sent by POST"
    kinds = [value.split(";")[0].strip().lower() for value in headers.get("content-type", [])]
    return None if len(kinds) == 1 and kinds[0] in _GRAPHQL_TYPES else "queries are sent as application/json"


def _by_name(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for name, value in headers:
        values.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1").strip())
    return values


def _host_name(host: str) -> str | None:
    """Return the name in a `Host`; None if it is no host, or more than one."""
    try:
        parts = urlsplit(f"//{host}")
        parts.port  # noqa: B018 (a port that is none raises)
    except ValueError:
        return None
    return parts.hostname if parts.netloc == host and "@" not in host else None


def _same_origin(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin.lower())
    except ValueError:
        return False
    default = {"http": ":80", "https": ":443"}.get(parts.scheme)
    return default is not None and parts.netloc.removesuffix(default) == host.removesuffix(default)


def _with_headers(send: Send) -> Send:
    """Forbid other sites to frame, read or embed answers."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
        await send(message)

    return sent


async def _answer(send: Send, reason: str) -> None:
    text = f"Refused: {reason}.\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": 403, "headers": [*headers, *_HEADERS]})
    await send({"type": "http.response.body", "body": text})


def guard() -> None:
    """Put the guard around what the command line of `dagster-webserver` is about to serve.

    Raises:
        AttributeError: This Dagster makes its application in another way; then nothing is served.
    """
    made = cli.create_app_from_workspace_process_context  # type: ignore[attr-defined]

    def guarded(*args: Any, **options: Any) -> Any:
        return WebGuard(made(*args, **options), hosts())

    cli.create_app_from_workspace_process_context = guarded  # type: ignore[attr-defined]


def main() -> None:
    """Serve."""
    guard()
    cli.main()


if __name__ == "__main__":
    main()
