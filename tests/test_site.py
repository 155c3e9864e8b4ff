"""The site of docs/ builds with every broken link as an error, and a reader's browser fetches nothing from elsewhere."""

from __future__ import annotations

import importlib.util
import os
import re
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


@pytest.mark.slow
def test_the_site_builds_and_needs_no_network(tmp_path: Path) -> None:
    mkdocs = Path(sys.executable).with_name("mkdocs")
    # A proxy that is not there: whoever wants the network, fails.
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    done = subprocess.run(
        [str(mkdocs), "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=PROJECT,
        env=os.environ | nowhere | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {path: path.read_text(encoding="utf-8") for path in (tmp_path / "site").rglob("*.html")}
    assert {"index.html", "tutorial.html", "handbook.html", "404.html"} <= {path.name for path in pages}
    fetched = {str(path.name): match[0] for path, text in pages.items() for match in _FETCHED.finditer(text)}
    assert fetched == {}
    # The theme would load its drawing program from elsewhere, for pages that ask for one.
    assert not [path.name for path, text in pages.items() if 'class="mermaid"' in text]
    assert "TridentTopology" in (tmp_path / "site" / "reference" / "trident.html").read_text(encoding="utf-8")
    assert "tridelta new" in (tmp_path / "site" / "search" / "search_index.json").read_text(encoding="utf-8")
