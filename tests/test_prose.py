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
"""No docstring begins with these."""
VERBS = frozenset(
    re.findall(
        r"\w+",
        """
    accept ack activate add aggregate allow answer append apply ask average beat become begin bind bound bring build call cast
    change check clean clear close collect combine commit compact compare compile compute connect continue convert copy count
    create cut deal decide decode delete deploy describe do drain draw drop emit empty end escape evaluate expand feed fill
    find finish fit fold follow forbid forget fork format free give go group hand have hold identify import insert interrupt
    iterate
    join judge keep kill launch lay leave let list listen load log look make map mark mask match measure mend merge move name
    note number open pair parse pass pick place plan plot prepare print prolong prove put query raise rank read recognise
    recompute record reduce refuse release remove render renew replace replay report resolve resume return rewrite round run
    save say scale see send serve set show silence skip slice sort split spread start stop store submit supervise sync take
    tell try turn update wait watch wrap write yield
        """,
    )
)
"""A docstring of a function or method begins with one of these; a property may be named by a noun. Add a verb that is missing."""
DESCRIPTIONS = "_flows.py"
"""Here a function builds a flow, and its docstring is the flow's description in Dagster."""
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
    """List `file:line: name: word` of each docstring of a function that begins with no verb, of others with a question."""
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return [f"{path.relative_to(ROOT)}:{line}" for path in files for line in _faulty(path)]


def _faulty(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            word = re.match(r"\w*", text or "")
            if text and word and _is_faulty(word[0].lower(), node, path):
                yield f"{getattr(node, 'lineno', 1)}: {getattr(node, 'name', path.stem)}: {word[0]}"


def _is_faulty(word: str, node: ast.AST, path: Path) -> bool:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return word in QUESTIONS
    names = {part for one in node.decorator_list for part in re.findall(r"\w+", ast.unparse(one))}
    return word in QUESTIONS if names & _PROPERTIES or path.name.endswith(DESCRIPTIONS) else word not in VERBS


def test_docstrings_begin_as_they_should() -> None:
    assert faulty_docstrings() == [], "a function begins with a verb in the imperative (VERBS), a class says what it is"


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
