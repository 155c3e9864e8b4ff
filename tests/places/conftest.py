"""A server of S3 for the tests of places, started with the first of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.places.s3_servers import Server, moto, versity, versity_program


@pytest.fixture(scope="session")
def moto_server() -> Iterator[Server]:
    with moto() as server:
        yield server


@pytest.fixture(scope="session")
def versity_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if versity_program() is None:
        pytest.skip("versitygw is not there, and there is no Go to build it with")
    with versity(tmp_path_factory.mktemp("versity")) as server:
        yield server


def use(server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """Point this process at a server. Return a bucket of it."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server.bucket()


@pytest.fixture
def bucket(moto_server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    return use(moto_server, monkeypatch)
