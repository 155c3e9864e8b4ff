"""The generator of Nexmark's events: deterministic, and distributed as published."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from examples.nexmark.generator import CHANNELS_BY_NAME, EPOCH, FIRST_ID, Auctions, random_cuts

EVENTS = 20_000


@pytest.fixture(scope="module")
def events() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Auctions(seed=7).lines(EVENTS)]


def of_kind(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event[name] for event in events if name in event]


def test_one_person_three_auctions_and_46_bids_in_fifty(events: list[dict[str, Any]]) -> None:
    for start in range(0, EVENTS, EPOCH):
        assert [event["event_type"] for event in events[start : start + EPOCH]] == [0] + 3 * [1] + 46 * [2]


def test_ids_are_counted(events: list[dict[str, Any]]) -> None:
    for name in ("person", "auction"):
        ids = [event["id"] for event in of_kind(events, name)]
        assert ids == list(range(FIRST_ID, FIRST_ID + len(ids)))


def test_time_is_the_number_over_the_rate(events: list[dict[str, Any]]) -> None:
    times = [next(iter(event[name] for name in event if name != "event_type"))["dateTime"] for event in events]
    assert times[0] == "2026-01-01T00:00:00.000Z"
    assert times[-1] == f"2026-01-01T00:00:01.{(EVENTS - 1 - 10_000) // 10}Z"
    assert times == sorted(times)
    assert all(auction["expires"] > auction["dateTime"] for auction in of_kind(events, "auction"))


def test_the_same_seed_gives_the_same_events_and_a_longer_stream_begins_with_the_shorter() -> None:
    long, short, other = (list(Auctions(seed=seed).lines(n)) for seed, n in ((7, 12_000), (7, 777), (8, 777)))
    assert long[:777] == short
    assert other != short


def share(events: list[Any]) -> float:
    return sum(map(bool, events)) / len(events)


def test_half_of_the_bids_are_for_a_hot_auction_and_three_quarters_by_a_hot_bidder(
    events: list[dict[str, Any]],
) -> None:
    bids, auctions = of_kind(events, "bid"), of_kind(events, "auction")
    assert share([bid["auction"] % 100 == 0 for bid in bids]) == pytest.approx(1 / 2, abs=0.03)
    assert share([bid["bidder"] % 100 == 1 for bid in bids]) == pytest.approx(3 / 4, abs=0.03)
    assert share([auction["seller"] % 100 == 0 for auction in auctions]) == pytest.approx(3 / 4, abs=0.05)
    assert share([bid["channel"] in CHANNELS_BY_NAME for bid in bids]) == pytest.approx(1 / 2, abs=0.03)
    assert share(["channel_id=" in bid["url"] for bid in bids if bid["channel"][:8] == "channel-"]) > 0.85


def test_prices_are_log_uniform(events: list[dict[str, Any]]) -> None:
    prices = [bid["price"] for bid in of_kind(events, "bid")]
    assert min(prices) >= 100
    assert max(prices) <= 10**8
    digits = Counter(len(str(price)) for price in prices)
    assert all(digits[n] / len(prices) == pytest.approx(1 / 6, abs=0.02) for n in range(3, 9))


def test_ids_run_ahead_of_their_auctions_and_persons(events: list[dict[str, Any]]) -> None:
    seen, early = {"person": 0, "auction": 0}, Counter[str]()
    for event in events:
        for name in seen:
            if name in event:
                seen[name] = event[name]["id"]
        if "bid" in event:
            early["bid"] += event["bid"]["auction"] > seen["auction"]
            assert event["bid"]["auction"] <= seen["auction"] + 10
        if "auction" in event:
            early["auction"] += event["auction"]["seller"] > seen["person"]
    assert early["bid"] > 100
    assert early["auction"] > 0


def test_sizes_are_about_those_published(events: list[dict[str, Any]]) -> None:
    extras = [len(bid["extra"]) for bid in of_kind(events, "bid")]
    assert sum(extras) / len(extras) == pytest.approx(68, abs=2)


def test_files_hold_the_events_in_order(tmp_path: Path) -> None:
    cuts = random_cuts(4, 600, 5)
    assert sum(cuts) == 600
    assert min(cuts) >= 1
    Auctions(seed=7).write(tmp_path, cuts)
    files = sorted(tmp_path.iterdir())
    assert [len(file.read_text().splitlines()) for file in files] == cuts
    assert "".join(file.read_text() for file in files).splitlines() == list(Auctions(seed=7).lines(600))
    assert [file.stat().st_mtime for file in files] == sorted(file.stat().st_mtime for file in files)
