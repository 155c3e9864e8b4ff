"""`make ui`: Dagster's web interface on this machine, with the project's own home.

`python -m ops.web.ui [--port N]`; the port may also come from TRIDELTA_UI_PORT.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import sys
from pathlib import Path

from pipelines.bounds import PORT, required
from pipelines.catalog import FlowSettings
from pipelines.catalog.flow import PROJECT
from pipelines.errors import TrideltaError
from pipelines.private import private_folder
from pipelines.surroundings import refuse_unless_folder

HOST = "127.0.0.1"
DEFAULT_PORT = 3000


class PortTakenError(TrideltaError):
    """Something listens already where the UI would."""

    def __init__(self, port: int) -> None:
        self.port = port
        super().__init__(
            f"port {port} of {HOST} is taken by another program, perhaps by a UI that runs already: http://{HOST}:{port}",
            hint=f"open that address, or take another port: make ui PORT={port + 1}",
        )


def prepare_home(settings: FlowSettings) -> Path:
    """Prepare DAGSTER_HOME with the project's dagster.yaml in it; return the folder.

    One that names a storage is a cluster's (`deploy/dagster.yaml`), and stays: with ours its runs and cursors would seem lost.
    """
    home = settings.dagster
    private_folder(home)
    ours, there = PROJECT / "dagster.yaml", home / "dagster.yaml"
    if not there.exists() or not any(line.startswith(b"storage:") for line in there.read_bytes().splitlines()):
        shutil.copyfile(ours, there)
    return home


def check_port(port: int) -> None:
    """Refuse a port that is taken: Dagster would take another one, and nobody would know which."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the server does it: a port that a stopped server has just left may be used at once.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            raise PortTakenError(port) from None


def command(port: int) -> list[str]:
    """Return the command that starts the web server, the daemon and the code location."""
    dev = [sys.executable, "-P", "-m", "ops.web.services", "dev"]
    return [*dev, "-w", str(PROJECT / "workspace.yaml"), "--host", HOST, "--port", str(port)]


def environment(settings: FlowSettings) -> dict[str, str]:
    """Return the environment of the UI and of all runs that it starts."""
    return os.environ | {
        "DAGSTER_HOME": str(prepare_home(settings)),
        "TRIDELTA_HOME": str(settings.home),
        # Runs find their tools where this Python finds its own.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYTHONWARNINGS": "ignore::FutureWarning",
        # No process of Dagster's takes a module from the folder that it happens to be started in.
        "PYTHONSAFEPATH": "1",
        # Runs are handed to an application that is up: seconds in place of half a minute.
        "TRIDELTA_NIMBUS_WARM": os.environ.get("TRIDELTA_NIMBUS_WARM", "1"),
    }


def _supervise() -> None:
    """Start a supervisor for the flows deployed here, with a warm application for runs. It outlives the UI."""
    from pipelines.nimbus import Nimbus

    try:
        with Nimbus.from_environment() as nimbus:
            name = nimbus.ensure_supervisor()
    except TrideltaError as error:
        # The UI is of use without one: runs start a Spark of their own.
        print(f"No supervisor: {error}", file=sys.stderr)
    else:
        print(
            f"Supervisor: {name} (deployed flows go on when the UI stops; to end them: tridelta shutdown)", flush=True
        )


def _port(given: str | None) -> int:
    """Return the port asked for, on the command line or in the environment."""
    if given is not None:
        return int(required("--port", PORT, given))
    return int(required("TRIDELTA_UI_PORT", PORT, os.environ.get("TRIDELTA_UI_PORT") or DEFAULT_PORT))


def main(arguments: list[str] | None = None) -> None:
    """Check the port and become `dg dev`."""
    parser = argparse.ArgumentParser(prog="make ui", description=__doc__)
    parser.add_argument("--port", default=None)
    parser.add_argument(
        "--no-supervisor", action="store_true", help="start no supervisor: runs start a Spark of their own"
    )
    parsed = parser.parse_args(arguments)
    supervised = not parsed.no_supervisor
    try:
        port = _port(parsed.port)
        settings = FlowSettings.from_environment()
        refuse_unless_folder(settings.home, "the home (TRIDELTA_HOME)")
        check_port(port)
    except TrideltaError as error:
        sys.exit(str(error))
    chosen = environment(settings)
    os.environ.update(chosen)
    if supervised:
        _supervise()
    print(f"Dagster: http://{HOST}:{port}/asset-groups (stop with Ctrl-C)", flush=True)
    # A shell without job control starts background commands with SIGINT ignored; Dagster would pass that on to
    # SIGTERM, and nothing could stop it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # workspace.yaml names the code location's folder as seen from here.
    os.chdir(PROJECT)
    os.execve(command(port)[0], command(port), chosen)  # noqa: S606 (no shell is wanted)


if __name__ == "__main__":
    main()
