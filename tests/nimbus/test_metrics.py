"""What Prometheus gets: over HTTP, on this host alone, in its own words."""

from __future__ import annotations

import socket
import urllib.request
from dataclasses import replace

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from pipelines.nimbus.errors import RegistryError, SettingError
from pipelines.nimbus.status import ClusterStatus
from pipelines.nimbus.telemetry.metrics import MetricsServer, serve
from tests.nimbus.looks import NOW, RUNNING, SILENT, cluster, flow


class FakeNimbus:
    """Gives one look, or none."""

    def __init__(self, seen: ClusterStatus | None) -> None:
        self.seen = seen

    def cluster(self) -> ClusterStatus:
        if self.seen is None:
            raise RegistryError("sqlite:///gone", "does not answer: disk I/O error")
        return self.seen


def scrape(server: MetricsServer) -> dict[str, Metric]:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def values(family: Metric) -> dict[tuple[str, ...], float]:
    """By the values of its labels, these in the order of their names."""
    return {tuple(one for _, one in sorted(sample.labels.items())): sample.value for sample in family.samples}


def test_a_scrape_tells_flows_queries_supervisors_and_workers() -> None:
    flows = flow("flights", RUNNING, SILENT), flow("trips", status="INACTIVE", problem="not enough workers")
    with serve(FakeNimbus(cluster(*flows)), 0) as server:
        found = scrape(server)
    assert all(name.startswith("tridelta_") for name in found)
    assert all(family.documentation.endswith((".", ",")) or ":" in family.documentation for family in found.values())
    assert values(found["tridelta_registry_up"]) == {(): 1}
    assert values(found["tridelta_supervisor_up"]) == {("here", "s1"): 1, ("there", "s2"): 0}
    assert values(found["tridelta_supervisor_slots_used"]) == {("here", "s1"): 1, ("there", "s2"): 0}
    status = values(found["tridelta_flow_status"])
    assert len(status) == 8
    assert [at for at, one in status.items() if one] == [("flights", "ACTIVE"), ("trips", "INACTIVE")]
    assert values(found["tridelta_flow_problem"]) == {("flights",): 0, ("trips",): 1}
    assert values(found["tridelta_flow_uptime_seconds"])["flights",] == 3600
    query, silent = ("flights", "flights"), ("flights", "weather")
    expected = {
        "rows_per_second": 250.5,
        "batch_seconds": 2.0,
        "lag_seconds": 7.5,
        "attempt": 1,
        "txid": 41,
        "beat_age_seconds": 0.4,
        "query_running": 1,
        "last_batch_timestamp_seconds": NOW - 3,
        "partition_skew_ratio": 1.25,
        "state_rows": 64,
    }
    assert {name: values(found[f"tridelta_{name}"])[query] for name in expected} == expected
    assert silent not in values(found["tridelta_lag_seconds"])
    assert values(found["tridelta_query_running"])[silent] == 0
    assert silent not in values(found["tridelta_state_rows"])
    assert values(found["tridelta_backlog"]) == {(*query, "files"): 3, (*query, "bytes"): 4096}
    # Both queries run in one worker, whose memory counts once.
    assert values(found["tridelta_worker_memory_bytes"]) == {("6900", "s1"): 900_000_000}
    checks = {at[1]: one for at, one in values(found["tridelta_gate_failing"]).items()}
    assert checks == {"origin_is_there": 1, "few_are_cancelled": 0, "table_is_long": 0}
    there, long = [(name, "flights", "accepted", "flights") for name in ("origin_is_there", "table_is_long")]
    assert values(found["tridelta_gate_failures"]) == {there: 4, long: 0}
    assert values(found["tridelta_gate_rows"]) == {there: 6000, long: 0}
    assert values(found["tridelta_gate_unexpected_rows"]) == {there: 9, long: 0}


@pytest.mark.parametrize(("name", "number"), [("batches", 12), ("rows", 6000), ("quarantined", 9), ("restarts", 1)])
def test_what_only_grows_is_a_counter(name: str, number: int) -> None:
    with serve(FakeNimbus(cluster(flow("flights", RUNNING))), 0) as server:
        family = scrape(server)[f"tridelta_{name}"]
    assert family.type == "counter"
    assert [(sample.name, sample.value) for sample in family.samples] == [(f"tridelta_{name}_total", number)]


def test_each_scrape_looks_anew_and_a_lost_registry_is_a_figure() -> None:
    nimbus = FakeNimbus(cluster(flow("flights", RUNNING)))
    with serve(nimbus, 0) as server:
        assert values(scrape(server)["tridelta_txid"]) == {("flights", "flights"): 41}
        nimbus.seen = cluster(flow("flights", replace(RUNNING, txid=42)))
        assert values(scrape(server)["tridelta_txid"]) == {("flights", "flights"): 42}
        nimbus.seen = None
        found = scrape(server)
        assert {name: values(one) for name, one in found.items()} == {"tridelta_registry_up": {(): 0}}
        nimbus.seen = cluster()
        assert values(scrape(server)["tridelta_flow_version"]) == {}


def test_it_listens_on_this_host_alone_and_is_gone_when_closed() -> None:
    server = serve(FakeNimbus(cluster()), 0)
    with pytest.raises(SettingError) as refused:
        serve(FakeNimbus(cluster()), server.port)
    assert f"port {server.port} of 127.0.0.1" in str(refused.value)
    assert "TRIDELTA_NIMBUS_METRICS_PORT" in str(refused.value)
    assert server._server.server_address[0] == "127.0.0.1"
    server.close()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", server.port)) != 0


def test_whoever_says_nothing_is_closed_and_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.nimbus.telemetry.metrics._Scrapes.waiting_limit", 4)
    with serve(FakeNimbus(cluster()), 0) as server:
        silent = [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(10)]
        assert scrape(server)
        assert silent[0].recv(100) == b"", "the oldest of too many"
        for one in silent:
            one.close()
        assert scrape(server)
