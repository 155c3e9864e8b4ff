"""Dagster's web server behind `ops.web.guard`.

`python -P -m ops.web.guarded_webserver`, with the options of `dagster-webserver`.
"""

from __future__ import annotations

from typing import Any

from dagster_webserver import cli

from ops.web.guard import WebGuard, hosts


def guard() -> None:
    """Put the guard around what the command line of `dagster-webserver` is about to serve.

    Raises:
        AttributeError: This Dagster makes its application in another way; then nothing is served.
    """
    made = cli.create_app_from_workspace_process_context  # type: ignore[attr-defined]

    def guarded(*args: Any, **options: Any) -> Any:
        return WebGuard(made(*args, **options), hosts())

    cli.create_app_from_workspace_process_context = guarded  # type: ignore[attr-defined]


def main() -> None:
    """Serve."""
    guard()
    cli.main()


if __name__ == "__main__":
    main()
