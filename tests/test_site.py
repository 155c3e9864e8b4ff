"""The site of docs/ builds with every broken link as an error, and a reader's browser fetches nothing from elsewhere."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

PROJECT = Path(__file__).resolve().parent.parent
_FETCHED = re.compile(
    r"<(?:script|img|iframe|source|video|link)\b[^>]*?\b(?:src|href)=[\"']?(https?:)?//[^\s\"'>]+", re.I
)


def pages_named() -> set[str]:
    """The pages of the navigation."""

    class Loader(yaml.SafeLoader):
        """Takes the names of Python functions in mkdocs.yml for nothing."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
    nav = yaml.load((PROJECT / "mkdocs.yml").read_text(), Loader)["nav"]

    def walk(entry: object) -> set[str]:
        if isinstance(entry, str):
            return {entry}
        return set().union(*map(walk, entry.values() if isinstance(entry, dict) else entry))  # type: ignore[attr-defined]

    return walk(nav)


def test_every_page_is_in_the_navigation() -> None:
    there = {str(path.relative_to(PROJECT / "docs")) for path in (PROJECT / "docs").rglob("*.md")}
    assert pages_named() == {name for name in there if not name.startswith("adr/")}


def test_the_names_of_the_reference_are_those_that_packages_export() -> None:
    spec = importlib.util.spec_from_file_location("site_hook", PROJECT / "docs" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    assert hook.public_names("pipelines") == ["Lake", "Runtime", "spark_session"]
    made = hook.on_page_markdown("# x\n\n<!-- names: pipelines.trident -->\n")
    assert "::: pipelines.trident.TridentTopology" in made
    assert "Constants: `COMPACT`" in made


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built where there is no network."""
    folder = tmp_path_factory.mktemp("built") / "site"
    mkdocs = Path(sys.executable).with_name("mkdocs")
    # A proxy that is not there: whoever wants the network, fails.
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    done = subprocess.run(
        [str(mkdocs), "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=PROJECT,
        env=os.environ | nowhere | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_pages_fetch_nothing_from_elsewhere(site: Path) -> None:
    pages = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    assert {"index.html", "tutorial.html", "handbook.html", "404.html"} <= {path.name for path in pages}
    fetched = {str(path.name): match[0] for path, text in pages.items() for match in _FETCHED.finditer(text)}
    assert fetched == {}
    # The theme would load its drawing program from elsewhere, for pages that ask for one.
    assert not [path.name for path, text in pages.items() if 'class="mermaid"' in text]
    assert "TridentTopology" in (site / "reference" / "trident.html").read_text(encoding="utf-8")
    assert "tridelta new" in (site / "search" / "search_index.json").read_text(encoding="utf-8")


@pytest.mark.slow
# Playwright's connection is closed by its own thread, after the test.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_search_works_in_pages_opened_as_files(site: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is in the extra [browser]")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no Chromium (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page, asked = browser.new_page(), []
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / "reference" / "trident.html").as_uri())
        page.locator(".md-search__input").press_sequentially("quarantine")
        page.wait_for_function("document.querySelector('.md-search-result__meta').innerText.includes('matching')")
        found = page.inner_text(".md-search-result__list")
        browser.close()
    assert "quarantine" in found
    assert [url for url in asked if not url.startswith("file:")] == []
