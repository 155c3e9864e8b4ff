"""The outermost handler of the command line: an unforeseen error is a sentence, a file with the report, exit code 70."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typer.core import TyperGroup

from ops.cli.parts import errors, tell_plainly
from pipelines.private import masked
from pipelines.surroundings import refused

EXIT_CODE = 70
"""EX_SOFTWARE of sysexits.h."""
_MOST_TEXT = 100_000
"""Characters of an error that are looked at: it may quote a whole record."""


class PlainGroup(TyperGroup):
    """The commands of `tridelta`. No command ends with a traceback."""

    def main(self, args: Sequence[str] | None = None, *more: Any, **options: Any) -> Any:
        """Run a command, and report an error that the command does not report itself."""
        given = list(sys.argv[1:] if args is None else args)
        fault = _fault(given)
        if fault:
            errors.print(f"Error: {fault}", markup=False, soft_wrap=True)
            sys.exit(2)
        try:
            return super().main(given, *more, **options)
        except Exception as error:
            foreseen = refused(error)
            if foreseen is not None:
                tell_plainly(foreseen)
                sys.exit(1)
            sys.exit(tell(error, given))


def _fault(given: Sequence[str]) -> str | None:
    """Say why no command can take an argument: it is not UTF-8, or holds a zero byte."""
    for number, argument in enumerate(given, start=1):
        try:
            argument.encode("utf-8")
        except UnicodeEncodeError:
            return f"argument {number} is not UTF-8: {os.fsencode(argument)!r}"[:300]
        if "\0" in argument:
            return f"argument {number} holds a zero byte: {argument!r}"[:300]
    return None


def tell(error: BaseException, given: Sequence[str]) -> int:
    """Say what has happened and where the full report is; the exit code."""
    kind, text = type(error).__name__, masked(" ".join(str(error)[:_MOST_TEXT].split()))[:500]
    errors.print(
        f"Tridelta did not foresee this: {kind}{f': {text}' if text else ''}".encode(
            "utf-8", "backslashreplace"
        ).decode(),
        markup=False,
        soft_wrap=True,
    )
    try:
        path = _write(error, given)
    except OSError as refused:
        errors.print(f"  The full report could not be written: {refused}", markup=False, soft_wrap=True)
    else:
        errors.print(
            f"  Next: what is committed stays; run the command again, and if it comes again report it with {path}",
            markup=False,
            soft_wrap=True,
        )
    return EXIT_CODE


def _write(error: BaseException, given: Sequence[str]) -> Path:
    """Write the report, readable by its user alone: beneath the home if there is one, else among temporary files."""
    lines = [
        f"tridelta {' '.join(_without_value(argument) for argument in given)}",
        f"at {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}, Python {platform.python_version()}, {platform.platform()}",
        "",
        *traceback.format_exception(error),
    ]
    text = "\n".join(masked(line[:_MOST_TEXT]) for line in lines)
    file, name = tempfile.mkstemp(prefix=f"tridelta-{time.strftime('%Y%m%d-%H%M%S')}-", suffix=".txt", dir=_folder())
    with os.fdopen(file, "w", encoding="utf-8", errors="backslashreplace") as opened:
        opened.write(text)
    return Path(name)


def _folder() -> str | None:
    """Return `reports` in the home; None means the folder of temporary files."""
    from pipelines.catalog.flow import FlowSettings

    try:
        home = FlowSettings.from_environment().home
        if not home.is_dir():
            return None
        folder = home / "reports"
        folder.mkdir(mode=0o700, exist_ok=True)
        return str(folder) if os.access(folder, os.W_OK) else None
    except Exception:
        # The fault may be in the home itself.
        return None


def _without_value(argument: str) -> str:
    """Return `K=V` without V, which may be a secret."""
    name, equals, _ = argument.partition("=")
    return f"{name}=..." if equals else argument
