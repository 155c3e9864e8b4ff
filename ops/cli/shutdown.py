"""`tridelta shutdown`: the end of what runs on this host, in order."""

from __future__ import annotations

from dataclasses import asdict

import typer

from ops.cli import rendering
from ops.cli.parts import AsJson, emit, plainly

app = typer.Typer()


@app.command(rich_help_panel="Deployed flows")
@plainly
def shutdown(as_json: AsJson = False) -> None:
    """End this host's supervisor, and drain its workers. Flows stay deployed: `tridelta supervisor` runs them again."""
    from pipelines.nimbus.processes.life import shut_down
    from pipelines.nimbus.settings import NimbusSettings

    with rendering.waiting("draining", as_json):
        ended = shut_down(NimbusSettings.from_environment())
    if as_json:
        emit(asdict(ended))
        return
    if not (ended.supervisors or ended.workers or ended.killed):
        rendering.say("Nothing runs here.")
    for what, names in (("Ended", ended.supervisors), ("Drained", ended.workers), ("Killed", ended.killed)):
        if names:
            rendering.say(f"{what}: {', '.join(names)}")
