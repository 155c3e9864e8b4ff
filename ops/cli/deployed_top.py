"""`tridelta top`: the live table, until q or Ctrl-C."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.text import Text

from ops.cli import deployed_view, rendering
from pipelines.nimbus.errors import RegistryError

if TYPE_CHECKING:
    from pipelines.nimbus.status import ClusterStatus

_HINT = Text("q: end", style="dim")


def live(look: Callable[[], ClusterStatus], seconds: float) -> None:
    """Show what `look` returns, again and again. A registry that does not answer is shown as such, and asked again."""
    screen = rendering.console.is_terminal
    with _keys() as pressed, suppress(KeyboardInterrupt), Live(console=rendering.console, screen=screen) as shown:
        while True:
            try:
                shown.update(Group(deployed_view.top(look()), _HINT), refresh=True)
            except RegistryError as error:
                shown.update(Text(str(error), style="red"), refresh=True)
            if pressed(seconds) in ("q", "Q"):
                return


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Return a function that waits for a key at most so many seconds; "" if none came. Without a terminal it only waits."""

    def wait(seconds: float) -> str:
        time.sleep(seconds)
        return ""

    if not sys.stdin.isatty():
        yield wait
        return
    import termios
    import tty

    def key(seconds: float) -> str:
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        return sys.stdin.read(1) if ready else ""

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield key
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
