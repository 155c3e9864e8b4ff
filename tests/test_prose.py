"""Docstrings and pages follow the parts of the writing rules that a machine can see (CONTRIBUTING.md, "Words")."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("pipelines", "assets", "ops", "resources")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]

QUESTIONS = {"what", "where", "whether", "who", "whose", "which", "how", "when", "why"}
"""No docstring of a function, method or property begins with these."""
NO_VERBS = {"the", "a", "an", "this", "these", "those", "that", "so", "all", "each"}
"""Nor a docstring of a function or method; a property may be named by a noun."""
_ENDS_IN_S = re.compile(r"(?:ss|us|is)$")
_PROPERTIES = {"property", "cached_property", "computed_field"}

WORDS = re.compile(
    r"\banew\b|\btold\b|\bif not said\b|\bwhatever\b|\bthereof\b|\bas it stands\b|\bof one's own\b|\bin its own words\b",
    re.IGNORECASE,
)
"""Words that neither pages nor messages use."""
PER = re.compile(
    r"\b(?:field|file|row|byte|record|commit|batch|event)(?:e?s)? an? (?:batch|key|second|slice|row)\b", re.IGNORECASE
)
"""Nor this, for "per"."""
IDIOMS = ("told apart",)
"""What is meant otherwise."""


def faulty_docstrings() -> list[str]:
    """List `Class.function: word` of each public function whose docstring begins with no verb in the imperative."""
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return sorted(line for path in files for line in _faulty(ast.parse(path.read_text(encoding="utf-8")).body, ""))


def _faulty(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from _faulty(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            word = re.match(r"\w*", ast.get_docstring(node) or "")
            if word and _is_no_imperative(word[0].lower(), node):
                yield f"{prefix}{node.name}: {word[0]}"


def _is_no_imperative(word: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    names = {part for one in node.decorator_list for part in re.findall(r"\w+", ast.unparse(one))}
    if names & _PROPERTIES:
        return word in QUESTIONS
    return word in QUESTIONS | NO_VERBS or (word.endswith("s") and not _ENDS_IN_S.search(word))


def test_docstrings_begin_with_a_verb() -> None:
    assert faulty_docstrings() == [], 'begin with a verb in the imperative ("Return", "Check"), not with these words'


def faulty_texts() -> list[str]:
    """List `file:line: words` of the texts in code, docstrings aside, that use banned words: messages, names of columns, help."""
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    faulty = []
    for path in files:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in alone:
                continue
            text = re.sub("|".join(map(re.escape, IDIOMS)), "", node.value)
            words = [match[0] for rule in (WORDS, PER) for match in rule.finditer(text)]
            faulty += [f"{path.relative_to(ROOT)}:{node.lineno}: {word}" for word in words]
    return faulty


def test_messages_use_plain_words() -> None:
    assert faulty_texts() == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_use_plain_words(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    # Keep the lines: an output, a name and a quoted message are not the page's own words.
    for quoted in (r"^ *```.*?^ *```$", r"`[^`\n]*`", r'"[^"\n]*"'):
        text = re.sub(quoted, lambda match: "\n" * match[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    words = [
        f"{page.name}:{at}: {word}" for at, line in enumerate(text.splitlines(), 1) for word in WORDS.findall(line)
    ]
    assert words == []
