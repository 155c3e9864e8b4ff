"""Small SVG pictures of events, windows and results over time: plain text, the same in every run, for light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, TOP, ROW = 760, 84, 150, 62, 26
STYLE = """
text{font:13px system-ui,-apple-system,"Segoe UI",sans-serif;fill:#24292f}
.card{fill:#ffffff;stroke:#d0d7de}.title{font:12px ui-monospace,"SFMono-Regular",Menlo,monospace}
.small{font-size:11px;fill:#57606a}.grid{stroke:#d8dee4}.axis{stroke:#57606a}
.event{fill:#0969da}.other{fill:#8250df}.out{fill:none;stroke:#cf222e;stroke-width:2}
.bar{fill:#fff1d6;stroke:#bf8700}.empty{fill:none;stroke:#bf8700;stroke-dasharray:4 3}.shut{fill:#ffebe9;stroke:#cf222e}
.result{fill:#1a7f37}.joined{stroke:#1a7f37;stroke-width:1.5}.answer{font-weight:600}
@media (prefers-color-scheme:dark){
text{fill:#e6edf3}.card{fill:#0d1117;stroke:#30363d}.small{fill:#9198a1}.grid{stroke:#262c36}.axis{stroke:#9198a1}
.event{fill:#58a6ff}.other{fill:#bc8cff}.out{stroke:#ff7b72}.bar{fill:#3b2f12;stroke:#d29922}
.empty{stroke:#d29922}.shut{fill:#4a1a1a;stroke:#ff7b72}.result{fill:#3fb950}.joined{stroke:#3fb950}}
"""


class Picture:
    """Lanes from top to bottom over one time axis.

    Args:
        title: the operation, as it is written.
        seconds: how long the axis is.
        lanes: how many rows there are.
    """

    def __init__(self, title: str, seconds: int, lanes: int) -> None:
        self._title, self._seconds = title, seconds
        self._scale = (WIDTH - LEFT - RIGHT) / (seconds * 1000)
        self._bottom = TOP + lanes * ROW
        self._parts: list[str] = []

    def x(self, at: float) -> float:
        """Where a time (ms) is."""
        return round(LEFT + at * self._scale, 1)

    def y(self, lane: int) -> int:
        """The middle of a lane, from 0."""
        return TOP + lane * ROW + ROW // 2

    def label(self, lane: int, text: str) -> None:
        """What a lane shows."""
        self._text(12, self.y(lane) + 4, text, "small")

    def note(self, lane: int, at: float, text: str) -> None:
        """Small text beside an event."""
        self._text(self.x(at) + 9, self.y(lane) + 4, text, "small")

    def event(self, lane: int, at: float, text: object, kind: str = "event") -> None:
        """A dot with its value beside it; kind "out" is a cross."""
        x, y = self.x(at), self.y(lane)
        if kind == "out":
            self._parts.append(f'<path class="out" d="M{x - 4} {y - 4}l8 8m0 -8l-8 8"/>')
        else:
            self._parts.append(f'<circle class="{kind}" cx="{x}" cy="{y}" r="4.5"/>')
        self._text(x, y - 8, str(text), "small", "middle")

    def window(self, lane: int, start: float, end: float, members: Sequence[float], kind: str = "bar") -> None:
        """A bar from `start` to `end`, with a small dot for each event in it."""
        left, right = self.x(start), self.x(end)
        width = max(round(right - left, 1), 6)
        self._parts.append(
            f'<rect class="{kind}" x="{left}" y="{self.y(lane) - 7}" width="{width}" height="14" rx="4"/>'
        )
        for at in members:
            self._parts.append(f'<circle class="event" cx="{self.x(at)}" cy="{self.y(lane)}" r="3"/>')

    def result(self, lane: int, at: float, text: str) -> None:
        """A diamond where something is emitted, and what."""
        x, y = self.x(at), self.y(lane)
        self._parts.append(f'<path class="result" d="M{x} {y - 7}l7 7l-7 7l-7 -7z"/>')
        self._text(x + 12, y + 4, text, "answer")

    def line(self, lane: int, at: float, to_lane: int, to: float) -> None:
        """From one event to another that it meets."""
        self._parts.append(
            f'<line class="joined" x1="{self.x(at)}" y1="{self.y(lane)}" x2="{self.x(to)}" y2="{self.y(to_lane)}"/>'
        )

    def _text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        self._parts.append(f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>')

    def _axis(self) -> list[str]:
        found = []
        for second in range(self._seconds + 1):
            x = self.x(second * 1000)
            found.append(f'<line class="grid" x1="{x}" y1="{TOP - 14}" x2="{x}" y2="{self._bottom}"/>')
            found.append(f'<text class="small" x="{x}" y="{self._bottom + 16}" text-anchor="middle">{second} s</text>')
        ends = f'x1="{LEFT}" y1="{self._bottom}" x2="{self.x(self._seconds * 1000)}" y2="{self._bottom}"'
        return [*found, f'<line class="axis" {ends}/>']

    def svg(self) -> str:
        """The whole picture."""
        height = self._bottom + 28
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
                f'height="{height}" role="img" aria-label="{escape(self._title, {chr(34): "&quot;"})}">',
                f"<style>{STYLE}</style>",
                f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>',
                f'<text class="title" x="12" y="24">{escape(self._title)}</text>',
                *self._axis(),
                *self._parts,
                "</svg>",
                "",
            ]
        )
