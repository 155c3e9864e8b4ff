"""A data engineer's day in the real UI, with a real browser: backfill three days, look at them, deploy, break a gate.

Needs Debian's Chromium and Playwright's Python package (`dev`); says so and is left out where there is none. The pictures are in
`out/screenshots`.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipelines import Lake
from pipelines.catalog.flights_data import lay_out
from tests.browser.dagster_ui import PROJECT, DagsterUi, dagster_ui

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
SHOTS = PROJECT / "out" / "screenshots"
DAYS = ["2013-01-01", "2013-01-02", "2013-01-03"]

pytestmark = [
    pytest.mark.slow,
    # It takes minutes, so its process begins with it.
    pytest.mark.timeout(900),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium (Debian: apt-get install chromium)"),
    # Playwright's connection is closed by its own thread, after the test.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagsterUi]:
    home = tmp_path_factory.mktemp("ui")
    lay_out(home / "data", days=4)
    with dagster_ui(home, TRIDELTA_NIMBUS_WORKER_MEMORY_MB="1024") as started:
        # Every ten minutes it runs what has arrived: the fourth day too, in the midst of a backfill of three.
        started.stop_schedule("catch_up_schedule")
        yield started


@pytest.fixture
def page() -> Iterator[Page]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        made = browser.new_page(viewport={"width": 1500, "height": 950})
        made.set_default_timeout(60_000)
        yield made
        browser.close()


def shot(page: Page, name: str) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=str(SHOTS / f"{name}.png"))


def until(reached: Callable[[], bool], seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.5)


def see(page: Page, url: str, *texts: str) -> None:
    """Open a page and wait until each text is on it."""
    page.goto(url)
    for text in texts:
        page.get_by_text(text).first.wait_for()


def test_a_day_in_the_ui(ui: DagsterUi, page: Page) -> None:
    _three_days(ui, page)
    _what_they_say(ui, page)
    _deployed(ui, page)
    _a_gate_breaks(ui, page)


def _three_days(ui: DagsterUi, page: Page) -> None:
    """A backfill of three days, from the asset's own button; three green partitions."""
    page.goto(f"{ui.url}/assets/departures")
    page.get_by_role("button", name="Materialize").first.click()
    page.get_by_role("button", name="Confirm").click()
    days = page.get_by_placeholder("ex: 2013-01-01").last
    days.fill(f"[{DAYS[0]}...{DAYS[-1]}]")
    days.press("Enter")
    shot(page, "backfill")
    page.get_by_role("button", name="Launch backfill").click()
    until(lambda: set(ui.materialized(["departures"])) >= set(DAYS))
    # The daemon writes the run's events one after the other: only its end says that all are there.
    until(lambda: all(run["status"] == "SUCCESS" for run in ui.runs()))
    assert sorted(ui.materialized(["carrier_delay"]), key=str) == DAYS
    assert len(ui.runs()) == 1
    see(page, f"{ui.url}/assets/departures?view=partitions", "Materialized (3)", "Failed (0)")
    shot(page, "partitions")


def _what_they_say(ui: DagsterUi, page: Page) -> None:
    """The asset's page, its checks, its lineage, where its columns come from."""
    see(page, f"{ui.url}/assets/carrier_delay", "comes from", "flights.dep_delay", "Freshness policy")
    shot(page, "asset")
    see(page, f"{ui.url}/assets/departures?view=checks", "accepted__date_is_a_day", "Succeeded")
    shot(page, "checks")
    see(page, f"{ui.url}/assets/carrier_delay?view=lineage", "carrier_ranking", "Asset checks")
    shot(page, "lineage")


def _deployed(ui: DagsterUi, page: Page) -> None:
    """The flow is deployed by a click, and tells what it does without anybody asking."""
    page.goto(f"{ui.url}/assets/deployments/flights")
    page.get_by_role("button", name="Materialize").first.click()
    until(lambda: bool(ui.materialized(["deployments", "flights"])))
    # The day that no backfill has made comes by the stream; the sensor tells so.
    until(lambda: "2013-01-04" in ui.materialized(["departures"]))
    see(page, f"{ui.url}/assets/deployments/flights?view=checks", "alive", "Succeeded")
    shot(page, "alive")
    see(page, f"{ui.url}/assets/deployments/flights?view=events", "rows_per_second")
    shot(page, "beats")


def _a_gate_breaks(ui: DagsterUi, page: Page) -> None:
    """A file with a date that is none: the flow stops in front of it, and two checks are red."""
    committed = Lake(ui.home / "lake").state("departures").count("true")
    bad = {"date": "January 5th", "carrier": "UA", "flight": 1, "origin": "EWR", "dest": "IAH", "distance": 1400}
    _arrives(ui.home / "data" / "flights" / "2013-01-05.json", json.dumps(bad) + "\n")

    def failed(asset: list[str], check: str) -> bool:
        query = """query($k: AssetKeyInput!, $c: String!) {assetCheckExecutions(assetKey: $k, checkName: $c, limit: 1)
            {evaluation {success}}}"""
        found = ui.ask(query, k={"path": asset}, c=check)["assetCheckExecutions"]
        return bool(found) and found[0]["evaluation"] is not None and not found[0]["evaluation"]["success"]

    until(lambda: failed(["deployments", "flights"], "alive"))
    until(lambda: failed(["departures"], "accepted__date_is_a_day"))
    see(page, f"{ui.url}/assets/departures?view=checks&checkDetail=accepted__date_is_a_day", "Failed")
    shot(page, "red_check")
    assert Lake(ui.home / "lake").state("departures").count("true") == committed


def _arrives(file: Path, text: str) -> None:
    draft = file.with_name(f".{file.name}")
    draft.write_text(text, "utf-8")
    draft.rename(file)
