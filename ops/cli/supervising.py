"""`tridelta supervisor`, `shutdown` and `watch`: the processes that keep flows of this host running."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ops.cli import rendering
from ops.cli.deployed import PANEL, nimbus
from ops.cli.parts import AsJson, OnFresh, bounded, emit, engine, ports_of, verb
from pipelines import bounds
from pipelines.errors import MissingPathError

app = typer.Typer()


@verb(app, panel=PANEL)
def supervisor(
    ports: Annotated[str | None, typer.Option(metavar="N,N", help="Its slots; 6900,6901,6902,6903 by default.")] = None,
    name: Annotated[str | None, typer.Option("--id", help="Its id; by default the host's name.")] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(parser=bounded(bounds.PORT_OR_NONE), help="Where it answers Prometheus, on 127.0.0.1."),
    ] = None,
    stop_workers: Annotated[bool, typer.Option("--stop-workers", help="Drain its workers when it ends.")] = False,
) -> None:
    """Run this host's supervisor. Ctrl-C or SIGTERM ends it; its workers go on, and the next one finds them."""
    from pipelines.nimbus.processes import supervisor as process

    chosen = ports_of(ports)
    with logged(process.chosen_name(name)):
        process.run(ports=chosen, name=name, metrics_port=metrics_port, stop_workers=stop_workers)


@verb(app, panel=PANEL)
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


@verb(app)
def watch(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder with a flow's YAML in each file.")],
    trigger_seconds: Annotated[
        float,
        typer.Option(
            parser=bounded(bounds.TRIGGER_SECONDS), help="How often a stream checks for new events, in seconds."
        ),
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Run what the sources hold now, then stop.")] = False,
    on_fresh_checkpoint: OnFresh = "refuse",
) -> None:
    """Run the flows of a folder, and follow its files: added, changed, removed. Ctrl-C or SIGTERM drains all flows."""
    from pipelines.nimbus import flow_folder
    from pipelines.nimbus.processes.supervisor import default_name

    if not folder.is_dir():
        raise MissingPathError("flows", str(folder))
    with logged(default_name()):
        if not once:
            run_folder(folder, trigger_seconds=trigger_seconds, on_fresh_checkpoint=on_fresh_checkpoint)
            return
        # Before Spark: a session reads S3 where a place there was named before it started.
        flow_folder.FlowFiles(folder, settle_seconds=0.0).read()
        with engine(quiet=False) as runtime:
            happened = flow_folder.run_once(runtime, folder, on_fresh_checkpoint=on_fresh_checkpoint)
    if any(event.what in (flow_folder.DIED, flow_folder.REFUSED) for event in happened):
        raise typer.Exit(1)


def run_folder(folder: Path, *, trigger_seconds: float, on_fresh_checkpoint: str) -> None:
    """Keep the flows of a folder deployed until SIGINT or SIGTERM, then drain them."""
    from pipelines.nimbus.flow_folder import FlowFolder, watch
    from pipelines.nimbus.processes.supervisor import SupervisorProcess, open_registry

    with nimbus(makes=True) as there, closing(open_registry(there.settings)) as store:
        flows = FlowFolder(there, folder, trigger_seconds=trigger_seconds, on_fresh_checkpoint=on_fresh_checkpoint)
        keeper = SupervisorProcess(store, there.settings)
        with _ending(keeper.ending):
            watch(flows, keeper)


@contextmanager
def logged(name: str) -> Iterator[None]:
    """Log while the block runs: lines for people on standard error, JSON lines in the supervisor's file."""
    from pipelines.nimbus.settings import NimbusSettings
    from pipelines.nimbus.telemetry.log_files import configure

    settings = NimbusSettings.from_environment()
    file = settings.supervisor_folder(name) / "supervisor.jsonl"
    take_back = configure(file, settings.log_megabytes, settings.log_files)
    shown = logging.StreamHandler(sys.stderr)
    shown.setFormatter(rendering.PlainLines("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger().addHandler(shown)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(shown)
        take_back()


@contextmanager
def _ending(ended: threading.Event) -> Iterator[None]:
    """Set `ended` on the first signal; a second one does what it did before."""
    before: dict[int, Any] = {}

    def end(number: int, frame: object) -> None:
        ended.set()
        for known, handler in before.items():
            signal.signal(known, handler)

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
