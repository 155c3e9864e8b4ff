"""A page of the results of checks: one HTML file that needs no network and runs no script.

great-expectations' Data Docs load styles, fonts and scripts from elsewhere; this says the same with what is in the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from pipelines.printable import plain

KEPT = 30
"""Pages of one table or flow that stay."""

_STYLE = """
:root{color-scheme:light dark}
body{font:14px system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}
table{border-collapse:collapse;width:100%;margin:.5rem 0 1rem}
th,td{border:1px solid #8884;padding:.3rem .6rem;text-align:left;vertical-align:top;overflow-wrap:anywhere}
th{background:#8882}td.n{text-align:right;font-variant-numeric:tabular-nums}
.ok{color:#1a7f37}.bad{color:#cf222e}.warn{color:#9a6700}code{font:13px ui-monospace,monospace}
@media (prefers-color-scheme:dark){.ok{color:#3fb950}.bad{color:#ff7b72}.warn{color:#d29922}}
"""


@dataclass(frozen=True)
class Checked:
    """A check on the page.

    Attributes:
        name, expectation, action: What was asked, and what happens if it does not hold.
        rows, unexpected: Rows looked at, and those of them that violate it; None where that means nothing.
        said: What was observed, or why it could not be checked.
        failed_rows: Some that violate it; `reason` says why.
    """

    name: str
    expectation: str
    action: str
    success: bool
    rows: int | None = None
    unexpected: int | None = None
    said: str = ""
    failed_rows: Sequence[Mapping[str, Any]] = field(default=())


def html(title: str, facts: Mapping[str, Any], checks: Sequence[Checked]) -> str:
    """Return the page.

    Args:
        facts: What stands below it, by name.
    """
    failed = [check for check in checks if not check.success]
    verdict = f"{len(checks) - len(failed)} of {len(checks)} checks hold"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        # Should a value ever get past the escaping: nothing is loaded and nothing runs.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        '<meta name="viewport" content="width=device-width">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
        f'<h1>{escape(title)}</h1><p class="{"bad" if failed else "ok"}">{verdict}</p>',
        _table(["", ""], [{"": f"{name}", " ": value} for name, value in facts.items()], head=False),
        "<h2>Checks</h2>",
        _checks(checks),
    ]
    for check in failed:
        if check.failed_rows:
            names = list(dict.fromkeys(["reason", *(name for row in check.failed_rows for name in row)]))
            parts += [f"<h2>{escape(check.name)}: some of the rows</h2>", _table(names, check.failed_rows)]
    return "\n".join([*parts, "</body></html>", ""])


def page_facts(flow: str, run: str) -> dict[str, Any]:
    """Return the facts that every page shows below its heading."""
    return {"flow": flow, "run": run, "at": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"}


def write(folder: Path, run: str, title: str, facts: Mapping[str, Any], checks: Sequence[Checked]) -> Path:
    """Write a page and remove the oldest beyond `KEPT`.

    Args:
        folder: where the pages of one table or flow are.
        run: The run that checked; one page a run.

    Returns:
        The file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{run[:8]}.html"
    file.write_text(html(title, facts, checks), encoding="utf-8")
    for old in sorted(folder.glob("*.html"))[:-KEPT]:
        old.unlink(missing_ok=True)
    return file


def _checks(checks: Iterable[Checked]) -> str:
    lines = [
        "<table><tr><th>check</th><th>expectation</th><th>if not</th><th>rows</th><th>violate it</th><th></th></tr>"
    ]
    for check in checks:
        kind = "ok" if check.success else "bad" if check.action == "fail" else "warn"
        result = "holds" if check.success else "does not hold"
        said = f"<br>{escape(check.said)}" if check.said else ""
        lines.append(
            f"<tr><td>{escape(check.name)}</td><td><code>{escape(check.expectation)}</code></td><td>{escape(check.action)}</td>"
            f'<td class="n">{plain(check.rows)}</td><td class="n">{plain(check.unexpected)}</td>'
            f'<td><span class="{kind}">{result}</span>{said}</td></tr>'
        )
    return "\n".join([*lines, "</table>"])


def _table(names: Sequence[str], rows: Sequence[Mapping[str, Any]], *, head: bool = True) -> str:
    lines = ["<table>"]
    if head:
        lines.append("<tr>" + "".join(f"<th>{escape(name)}</th>" for name in names) + "</tr>")
    for row in rows:
        values = [row.get(name) for name in names] if head else list(row.values())
        lines.append("<tr>" + "".join(f"<td>{escape(_text(value))}</td>" for value in values) + "</tr>")
    return "\n".join([*lines, "</table>"])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else plain(value)
