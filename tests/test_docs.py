"""The Python examples in the pages that a user reads run as written, and their results are those that the page states.

A page's blocks share one namespace and run in order. A block behind `<!-- needs: spark -->` gets the tests' session; the
others must not depend on it, so that they also run without a JVM. `python no-run` marks a block that is only to be read.
"""

from __future__ import annotations

import ast
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(
    r"^(?P<indent> *)```python(?P<info>[^\n]*)\n(?P<code>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
_NEEDS_SPARK = "<!-- needs: spark -->"
_WRITTEN_BY_READERS = {"pipelines/catalog/orders.py"}
_UNREAD = 4
"""So many blocks may be marked `no-run`, over all pages: an example that does not run is soon wrong."""


@dataclass(frozen=True)
class Block:
    """One example: `line` is that of its first line of code, from 1."""

    page: Path
    line: int
    code: str
    info: str
    needs_spark: bool

    def run(self, namespace: dict[str, Any]) -> None:
        """Execute it.

        Raises:
            AssertionError: with the page, the line and the block, if it fails.
        """
        # Tracebacks and the source lines in them are the page's own.
        tree = ast.increment_lineno(ast.parse(self.code, str(self.page)), self.line - 1)
        try:
            exec(compile(tree, str(self.page), "exec"), namespace)
        except Exception as error:
            raise AssertionError(
                f"{self._place(error)}: {self._reason(error, tree, namespace)}\n\n{self.code}"
            ) from error

    def _line_of(self, error: BaseException) -> int:
        lines, at = [], error.__traceback__
        while at is not None:
            lines += [at.tb_lineno] if at.tb_frame.f_code.co_filename == str(self.page) else []
            at = at.tb_next
        return lines[0] if lines else self.line

    def _place(self, error: BaseException) -> str:
        return f"{self.page.relative_to(ROOT)}:{self._line_of(error)}"

    def _reason(self, error: BaseException, tree: ast.Module, namespace: dict[str, Any]) -> str:
        """The error; of an `assert a == b` also what `a` was."""
        line = self._line_of(error)
        failed = next((one for one in tree.body if one.lineno <= line <= (one.end_lineno or line)), None)
        if (
            isinstance(error, AssertionError)
            and isinstance(failed, ast.Assert)
            and isinstance(failed.test, ast.Compare)
        ):
            left = compile(ast.Expression(failed.test.left), str(self.page), "eval")
            return f"{ast.unparse(failed.test)}, but it is {eval(left, namespace)!r}"
        return f"{type(error).__name__}: {error}"


def blocks(page: Path) -> list[Block]:
    """The Python blocks of a page, in order."""
    text, found = page.read_text(encoding="utf-8"), []
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("code")) + 1
        before = text[: match.start()].rstrip()
        found.append(
            Block(page, line, textwrap.dedent(match["code"]), match["info"].strip(), before.endswith(_NEEDS_SPARK))
        )
    return found


def run_page(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, **given: Any) -> None:
    """Run the blocks of a page in a folder of their own; with a session all of them, else those that need none."""
    monkeypatch.chdir(folder)
    # A module's name that cannot be imported: what a block defines travels to Spark's workers by value.
    namespace: dict[str, Any] = {"__name__": f"page_{page.stem}", **given}
    for block in blocks(page):
        if block.info != "no-run" and ("spark" in given or not block.needs_spark):
            block.run(namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_that_need_no_spark(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(page, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(one.needs_spark for one in blocks(page))], ids=lambda page: page.name
)
def test_examples_that_need_spark(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: Any) -> None:
    run_page(page, tmp_path, monkeypatch, spark=spark)


def test_examples_are_marked_as_the_runner_knows() -> None:
    infos = [one.info for page in PAGES for one in blocks(page)]
    assert set(infos) <= {"", "no-run"}
    assert infos.count("no-run") <= _UNREAD


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(file), f"{page.name}: {target}; there are: {sorted(anchors(file))}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    """A module that moves is renamed in the pages, too."""
    text = page.read_text(encoding="utf-8")
    named = (
        set(re.findall(r"`((?:pipelines|assets|ops|resources|tests|docs)/[\w./-]*\w)(?:::\w+)?`", text))
        - _WRITTEN_BY_READERS
    )
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_a_failing_example_says_page_line_and_block(tmp_path: Path) -> None:
    page = ROOT / "README.md"
    block = Block(page, 40, "value = 2\nassert value == 3\n", "", False)
    with pytest.raises(AssertionError) as refused:
        block.run({})
    assert "README.md:41: value == 3, but it is 2" in str(refused.value)
    assert "value = 2" in str(refused.value)
