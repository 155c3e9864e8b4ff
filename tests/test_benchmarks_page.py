"""The page of benchmarks: its numbers are those that are kept, with what one needs to judge them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.measure import Ratio
from benchmarks.page import (
    BENCHMARKS,
    PAGE,
    RESULTS,
    Result,
    Surroundings,
    as_page,
    described,
    keep,
    read,
    surroundings,
)

AROUND = Surroundings("2026-01-02 03:04", "abc1234", "a processor, 2 cores, 24 GiB", {"python": "3.11"}, 0.3, 4.0)
FASTER = Ratio("get of 10 keys", "Spark", 12.0, 240.0, "ms", 15, "higher")
SLOWER = Ratio("a batch", "by hand", 1.3, 1.0, "s", 1.05)
DEARER = Ratio("a batch with a gate", "no gate", 1.2, 1.0, "s", 1.3)


def result(name: str, *ratios: Ratio, around: Surroundings = AROUND) -> Result:
    return Result(name, "What it measures.", "Spark, with its defaults.", 61.4, around, ratios)


def test_a_section_has_what_one_needs_to_judge_its_numbers() -> None:
    page = as_page([result("point_reads", FASTER)])
    assert "## Point reads" in page
    assert "| get of 10 keys | Spark | 12 ms | 240 ms | 20.00 x (bar: at least 15 x) |" in page
    for part in (
        "The peer: Spark, with its defaults.",
        "2026-01-02 03:04 UTC",
        "commit abc1234",
        "61 s",
        "2 cores, 24 GiB",
    ):
        assert part in page
    assert "load 0.3, others used 4 % of the processors" in page
    assert ".venv/bin/python -m benchmarks point_reads" in page
    assert "not quiet" not in page
    assert "Where we lose" not in page


def test_a_machine_that_others_use_is_named() -> None:
    assert "**The machine was not quiet.**" in as_page([result("x", around=replace(AROUND, busy_percent=40.0))])


def test_what_is_lost_comes_first() -> None:
    page = as_page([result("x", FASTER, SLOWER, DEARER)])
    lost = page[page.index("## Where we lose") : page.index("## Not measured")]
    assert "- a batch: **1.30 x (bar: at most 1.05 x), missed**, against by hand" in lost
    assert "10 keys" not in lost
    assert "gate" not in lost, "what a gate costs is no loss within its bar"


def test_what_has_no_result_is_named() -> None:
    page = as_page([result(name, FASTER) for name in BENCHMARKS if name != "crowd"])
    assert page.count("\n- `") == 1
    assert "- `crowd`: A crowd: many small flows" in page
    assert "Not measured" not in as_page([result(name, FASTER) for name in BENCHMARKS])


def test_a_run_replaces_its_own_results_alone(tmp_path: Path) -> None:
    file, page = tmp_path / "results.json", tmp_path / "page.md"
    keep([result("a", SLOWER), result("b", FASTER)], file, page)
    keep([result("a", FASTER)], file, page)
    assert read(file) == [result("a", FASTER), result("b", FASTER)]
    assert page.read_text("utf-8") == as_page(read(file))


def test_the_page_is_of_the_results_that_are_kept() -> None:
    if not RESULTS.exists():
        pytest.skip("nothing was measured yet")
    assert PAGE.read_text("utf-8") == as_page(read())


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_says_what_it_is_and_what_it_is_beside(name: str) -> None:
    about, peer = described(name)
    assert about
    assert peer.endswith(".")


def test_the_machine_is_looked_at() -> None:
    found = surroundings()
    assert "cores" in found.machine
    assert {"python", "pyspark", "deltalake"} <= found.versions.keys()
    assert found.busy_percent >= 0
