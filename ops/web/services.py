"""`dg dev` with the guarded web server: `python -P -m ops.web.services dev -w workspace.yaml`, with the options of `dg`."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

from resources.dagster_internals import dev_command

UNGUARDED, GUARDED = "dagster_webserver", "ops.web.guarded_webserver"


def guarded(parts: Sequence[str]) -> list[str]:
    """Return the command of a process of `dg dev`, with the guarded web server in place of Dagster's.

    Args:
        parts: `[python, "-m", module, ...]`.

    Raises:
        ValueError: It is of another form, so that nobody knows what would be started.
    """
    python, flag, module, *rest = parts
    if flag != "-m" or module not in (UNGUARDED, "dagster._daemon"):
        raise ValueError(f"this Dagster starts its processes in another way than the guard knows: {parts[:3]}")
    return [python, "-P", "-m", GUARDED if module == UNGUARDED else module, *rest]


def main() -> None:
    """Become `dg`."""
    from dagster_dg_cli.cli import main as dg

    dev = dev_command()
    start = dev.open_ipc_subprocess

    def started(parts: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        return start(guarded(parts), **options)

    dev.open_ipc_subprocess = started
    dg()


if __name__ == "__main__":
    main()
