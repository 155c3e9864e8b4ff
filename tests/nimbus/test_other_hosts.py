"""Where the queries of a flow run, as the leases say."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pipelines.execution.checkpoint import ownership
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.execution.checkpoint.ownership import OtherHostError
from pipelines.nimbus.handover.other_hosts import elsewhere, query_elsewhere, watch_registry
from pipelines.nimbus.processes.life import holder_of
from pipelines.nimbus.registry.placements import Places
from pipelines.nimbus.registry.registry import Registry
from pipelines.nimbus.registry.store import Store


def deployed(store: Store) -> None:
    """A flow whose query runs on host a, and one with a longer name."""
    for supervisor, host in (("s1", "a"), ("s2", "b")):
        Places(store).beat_supervisor(supervisor, host, (6900,), started_at=0.0)
    leases = Registry(store).leases
    leases.take("task:sales/q", holder_of("s1", 6900, "x"), 60)
    leases.take("task:sales_2/q", holder_of("s2", 6900, "y"), 60)


def test_a_query_with_a_live_lease_on_another_host_is_told(store: Store) -> None:
    deployed(store)
    where = query_elsewhere(store, "sales", "b")
    assert where == 'its query "q" runs on host a (supervisor s1, slot 6900)'
    assert query_elsewhere(store, "sales", "a") is None
    assert query_elsewhere(store, "nothing", "b") is None
    assert query_elsewhere(store, "sale_", "b") is None
    assert query_elsewhere(store, "sales", "b", now=time.time() + 100) is None, "the lease has run out"


def test_runs_are_refused_where_the_registry_shows_the_flow_on_another_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/registry.db"
    monkeypatch.setenv("TRIDELTA_REGISTRY", url)
    assert elsewhere("sales", "b") is None, "nothing was ever deployed"
    store = Store.migrated(url)
    deployed(store)
    store.close()
    monkeypatch.setattr(ownership, "_registry", ownership._Registry())
    watch_registry()
    ownership.ask_of_leases(ownership._registry.elsewhere, always=True)
    checkpoint = Checkpoint("sales", tmp_path / "q")
    monkeypatch.setenv(ownership.HOST, "b")
    with pytest.raises(OtherHostError, match="runs on host a"), checkpoint.rewriting(0):
        pass
    monkeypatch.setenv(ownership.HOST, "a")
    with checkpoint.rewriting(0):
        pass
