"""`tridelta submit`, `status`, `kill` ...: the verbs of deployed flows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli import deployed_view, rendering
from ops.cli.parts import AsJson, answer, bounded, emit, errors, json_text, verb
from pipelines import bounds
from pipelines.bounds import TASKS, OutOfBoundsError, shown
from pipelines.errors import DefinitionError

if TYPE_CHECKING:
    from pipelines.nimbus.nimbus import Nimbus
    from pipelines.nimbus.registry.lifecycle import Request
    from pipelines.nimbus.status import FlowStatus

app = typer.Typer()

PANEL = "Deployed flows"
Deployed = Annotated[str, typer.Argument(metavar="FLOW", help="A deployed flow.")]
FlowOrFile = Annotated[str, typer.Argument(metavar="FLOW|FILE.yaml", help="A flow of the catalog, or a flow as YAML.")]
Trigger = Annotated[
    float | None,
    typer.Option(parser=bounded(bounds.TRIGGER_SECONDS), help="How often a batch begins; 5 by default."),
]
Workers = Annotated[
    int | None,
    typer.Option(parser=bounded(bounds.WORKERS), help="The most worker processes that the flow may have."),
]
Parallelism = Annotated[
    list[str] | None, typer.Option(metavar="NAME=N", help="Tasks of a stream or state; give it once per name.")
]
Setting = Annotated[
    list[str] | None,
    typer.Option(metavar="K=V", help="A setting of the flow, e.g. isolated=true, spark.executor.memory=2g."),
]
Wait = Annotated[
    float | None,
    typer.Option(parser=bounded(bounds.WAIT_SECONDS), help="How long it may drain before it is forced; 30 by default."),
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Do not wait for the effect.")]
NoSupervisor = Annotated[
    bool, typer.Option("--no-supervisor", help="Do not start a supervisor on this machine if none is alive.")
]
Within = Annotated[float, typer.Option(parser=bounded(bounds.WAIT_SECONDS), help="The most seconds to wait.")]

_LONGEST, _DEEPEST = 100_000, 200
NESTED = ("spark", "rebalance", "clustering")
"""Settings that are tables themselves: `spark.executor.memory=2g` is an entry of `spark`."""

RUNS_WITHIN = 180.0
"""A Spark application starts in half a minute on a busy machine; its first query a few seconds later."""


@contextmanager
def nimbus(*, makes: bool = False) -> Iterator[Nimbus]:
    """Open Nimbus, as the environment says.

    Args:
        makes: Make a registry where there is none: for who deploys. Any other would only hide that the home is a wrong one.

    Raises:
        RegistryError: There is no registry, or it cannot be opened.
    """
    from pipelines.nimbus.errors import RegistryError
    from pipelines.nimbus.nimbus import Nimbus
    from pipelines.nimbus.settings import registry_exists, registry_url

    if not (makes or registry_exists(url := registry_url())):
        seen = (
            "supervisors have run from this home, so it was there"
            if _was_there()
            else "nothing was deployed from this home"
        )
        hint = (
            "if its file was lost, restore it first; else submit a flow, or correct TRIDELTA_HOME or TRIDELTA_REGISTRY"
        )
        raise RegistryError(url, f"is not there: {seen}", hint=hint)
    with Nimbus.from_environment(migrate=makes) as opened:
        yield opened


def _was_there() -> bool:
    """Return whether a supervisor has run from this home: a registry that is missing was lost then, or is another one."""
    from pipelines.catalog.flow import FlowSettings
    from pipelines.nimbus.settings import nimbus_home

    # No other setting is read, and a folder that nobody may read says nothing: this only words what is told of a registry.
    folder = nimbus_home(FlowSettings.from_environment()) / "supervisors"
    try:
        return any(supervisor.is_dir() for supervisor in folder.iterdir())
    except OSError:
        return False


def running() -> dict[str, dict[str, Any]]:
    """Return what is deployed, by name, for `tridelta list`; a registry that does not answer goes to standard error."""
    from pipelines.nimbus.errors import NimbusError
    from pipelines.nimbus.settings import registry_exists, registry_url

    if not (registry_exists(registry_url()) or _was_there()):
        return {}
    try:
        with nimbus() as there:
            return {flow.name: deployed_view.listed(flow) for flow in there.cluster().flows}
    except NimbusError as error:
        errors.print(str(error), style="yellow", markup=False)
        return {}


@verb(app, panel=PANEL)
def submit(
    flow: FlowOrFile,
    trigger_seconds: Trigger = None,
    workers: Workers = None,
    parallelism: Parallelism = None,
    setting: Setting = None,
    inactive: Annotated[bool, typer.Option("--inactive", help="Deploy it, but start no batch.")] = False,
    no_supervisor: NoSupervisor = False,
    no_wait: NoWait = False,
    wait_at_most: Within = RUNS_WITHIN,
    as_json: AsJson = False,
) -> None:
    """Deploy a flow: it runs around the clock, until it is killed."""
    from pipelines.nimbus.errors import AlreadyAliveError

    name, options = _asked(flow, trigger_seconds, workers, parallelism, setting)
    with nimbus(makes=True) as there:
        try:
            seen = there.submit(name, inactive=inactive, **options)
        except AlreadyAliveError as error:
            if error.status == "KILLED" and not no_supervisor:
                # It goes once a supervisor removes it.
                there.ensure_supervisor()
            raise
        started = None if no_supervisor else there.ensure_supervisor()
        if not (inactive or no_wait):
            seen = _waited(there, seen, "running", wait_at_most, as_json)
        _show(seen, "submitted", as_json, supervisor=started)


@verb(app, panel=PANEL)
def update(
    flow: FlowOrFile,
    trigger_seconds: Trigger = None,
    workers: Workers = None,
    parallelism: Parallelism = None,
    setting: Setting = None,
    no_supervisor: NoSupervisor = False,
    no_wait: NoWait = False,
    wait_at_most: Within = RUNS_WITHIN,
    as_json: AsJson = False,
) -> None:
    """Deploy a new version of a flow: the catalog's code, or the file, as it is now."""
    name, options = _asked(flow, trigger_seconds, workers, parallelism, setting)
    with nimbus() as there:
        seen = there.update(name, **options)
        started = None if no_supervisor else there.ensure_supervisor()
        if not no_wait:
            seen = _again(there, seen, wait_at_most, as_json)
        _show(seen, "updated", as_json, supervisor=started)
        _end(seen)


@verb(app, panel=PANEL)
def rollback(
    flow: Deployed,
    to: Annotated[
        int | None,
        typer.Option(parser=bounded(bounds.VERSION), help="The version to bring back; by default the one before."),
    ] = None,
    no_wait: NoWait = False,
    wait_at_most: Within = RUNS_WITHIN,
    as_json: AsJson = False,
) -> None:
    """Bring an earlier version of a deployed flow back, as a new version."""
    with nimbus() as there:
        seen = there.roll_back(flow, to)
        if not no_wait:
            seen = _again(there, seen, wait_at_most, as_json)
        _show(seen, "rolled back", as_json)
        _end(seen)


@verb(app, panel=PANEL)
def activate(
    flow: Deployed, no_wait: NoWait = False, wait_at_most: Within = RUNS_WITHIN, as_json: AsJson = False
) -> None:
    """Resume a deactivated flow."""
    with nimbus() as there:
        seen = there.activate(flow)
        if not no_wait and _somebody(there):
            seen = _waited(there, seen, "running", wait_at_most, as_json)
        _show(seen, "active", as_json)


@verb(app, panel=PANEL)
def deactivate(flow: Deployed, no_wait: NoWait = False, wait_at_most: Within = 60.0, as_json: AsJson = False) -> None:
    """Drain a flow: running batches end, no further one begins. It stays deployed."""
    with nimbus() as there:
        seen = there.deactivate(flow)
        if not no_wait and _somebody(there):
            seen = _waited(there, seen, "stopped", wait_at_most, as_json)
        _show(seen, "inactive", as_json)


@verb(app, panel=PANEL)
def kill(
    flow: Deployed,
    wait_seconds: Wait = None,
    no_wait: NoWait = False,
    wait_at_most: Within = 120.0,
    as_json: AsJson = False,
) -> None:
    """Drain a flow and remove it. Its states and checkpoints stay: submitted again, it goes on where it stopped."""
    with nimbus() as there:
        seen = there.kill(flow, wait_seconds=wait_seconds)
        gone = not no_wait and _somebody(there)
        if gone:
            _waited(there, seen, "gone", wait_at_most + (wait_seconds or 0), as_json)
        sentence = f"{flow} is removed." if gone else f"{flow}: {deployed_view.sentence(seen)}"
        answer(as_json, seen.to_json() | {"gone": gone}, lambda: rendering.say(sentence))


@verb(app, panel=PANEL)
def rebalance(
    flow: Deployed,
    workers: Workers = None,
    parallelism: Parallelism = None,
    setting: Setting = None,
    wait_seconds: Wait = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, without changing it.")] = False,
    no_wait: NoWait = False,
    wait_at_most: Within = RUNS_WITHIN,
    as_json: AsJson = False,
) -> None:
    """Change a flow's workers or parallelism; without options, decide by its load."""
    given = {"workers": workers, "parallelism": counts(parallelism), "settings": settings_of(setting)}
    asked: dict[str, Any] = {name: value for name, value in given.items() if value}
    more: dict[str, Any] = {}
    with nimbus() as there:
        if not asked:
            from pipelines.nimbus.periodic_rebalance import judge

            decided = judge(there, [flow])[0]
            asked = dict(decided.request)
            if not as_json:
                rendering.say(decided.sentence)
            clustered = {} if dry_run else _clustered(there, decided.clustering, as_json)
            if dry_run or not asked:
                if as_json:
                    emit(decided.to_json() | clustered)
                return
            more = {"decided": decided.to_json() | clustered}
        elif dry_run:
            _show_changes(there.flow(flow), there.check_rebalance(flow, **asked), as_json)
            return
        seen = there.rebalance(flow, wait_seconds=wait_seconds, **asked)
        if not no_wait:
            within = wait_at_most + (30.0 if wait_seconds is None else wait_seconds)
            seen = _again(there, seen, within, as_json)
        _show(seen, "rebalanced", as_json, **more)
        _end(seen)


def _clustered(there: Nimbus, tables: Mapping[str, Sequence[str]], as_json: bool) -> dict[str, Any]:
    """Lay the files of tables by other columns. Return what was done as plain data; people see it at once."""
    from pipelines.nimbus.periodic_rebalance import clustering_line, recluster_all

    if not tables:
        return {}
    done = recluster_all(there.lake, tables)
    if not as_json:
        rendering.rows("Clustered again", [clustering_line(report) for report in done])
    return {"clustered": [report.to_json() for report in done]}


def _show_changes(seen: FlowStatus, asked: Request, as_json: bool) -> None:
    from pipelines.nimbus.registry.records import merged

    before = {"workers": seen.workers, **seen.parallelism, **seen.settings}
    settings = merged(seen.settings, asked.settings)
    after = {"workers": asked.workers or seen.workers, **asked.parallelism}
    after |= {name: settings[name] for name in asked.settings}
    changes = [
        {"what": name, "now": str(before.get(name, "")), "then": str(value)}
        for name, value in after.items()
        if before.get(name) != value
    ]
    title = f"{seen.name}: what a rebalance would change"
    answer(as_json, {"flow": seen.name, "changes": changes}, lambda: rendering.rows(title, changes))


@verb(app, panel=PANEL)
def status(
    flow: Annotated[str | None, typer.Argument(metavar="[FLOW]", help="A deployed flow; all by default.")] = None,
    lines: Annotated[int, typer.Option("-n", parser=bounded(bounds.LINES), help="How many lines of its history.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Show what runs: batch, lag, rows per second, attempts, gates, the last error, what happened."""
    with nimbus() as there:
        if flow is None:
            seen = there.cluster()
            answer(as_json, seen.to_json(), lambda: deployed_view.cluster(seen))
            return
        flow_status, history = there.flow(flow), there.history(flow)
        history = history[len(history) - min(lines, len(history)) :]
        plain = flow_status.to_json() | {"history": [asdict(each) for each in history]}
        answer(as_json, plain, lambda: deployed_view.flow(flow_status, history))


@verb(app, panel=PANEL)
def versions(flow: Deployed, as_json: AsJson = False) -> None:
    """List the versions of a deployed flow."""
    with nimbus() as there:
        current, all_versions = there.flow(flow).version, there.versions(flow)
    plain = [deployed_view.version_json(version, current) for version in all_versions]
    listed = [deployed_view.version_line(version, current) for version in all_versions]
    answer(as_json, plain, lambda: rendering.rows(f"{flow}: versions (times in UTC)", listed))


@verb(app, panel=PANEL)
def logs(
    flow: Annotated[str, typer.Argument(metavar="FLOW", help="A flow that is deployed, or was.")],
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Follow what is written from now on.")] = False,
    lines: Annotated[
        int, typer.Option("-n", parser=bounded(bounds.LINES), help="How many of the lines that are there already.")
    ] = 50,
    level: Annotated[
        str | None, typer.Option(help="This level and worse: debug, info, warning, error, critical.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Each line as JSON.")] = False,
) -> None:
    """Show what workers and supervisors of this machine have written about a flow."""
    from ops.cli.deployed_logs import FlowLogs, text
    from pipelines.nimbus.errors import RegistryError
    from pipelines.nimbus.settings import NimbusSettings
    from pipelines.nimbus.telemetry.log_files import LEVELS

    if level is not None and level.lower() not in LEVELS:
        raise DefinitionError(f"no such level: {level}", hint=f"there are: {', '.join(LEVELS)}")
    with ExitStack() as stack:
        settings = NimbusSettings.from_environment()
        try:
            flow_logs = FlowLogs(stack.enter_context(nimbus()), settings, flow)
            flow_logs.tell_what_is_elsewhere()
        except RegistryError as error:
            # Its logs say why, perhaps, and they are files.
            errors.print(f"{error}\n  So all logs of this machine are read.", style="yellow", markup=False)
            flow_logs = FlowLogs(None, settings, flow)
        printed = False
        try:
            for line in flow_logs.lines(level=level, follow=follow, last=lines):
                printed = True
                print(json_text(line) if as_json else text(line), flush=follow)
        except KeyboardInterrupt:
            if not follow:
                raise
        if not printed and not follow:
            errors.print(
                f"Nothing is logged about {flow}" + (f" of level {level} or worse." if level else "."), style="dim"
            )


@verb(app, panel=PANEL)
def top(
    once: Annotated[bool, typer.Option("--once", help="Show it once.")] = False,
    seconds: Annotated[float, typer.Option(parser=bounded(bounds.POLL_SECONDS), help="How often to look.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Watch all deployed flows in a live table; q or Ctrl-C ends it. Into a file or a pipe it is shown once."""
    with nimbus() as there:
        if as_json:
            emit(there.cluster().to_json())
        elif once or not rendering.console.is_terminal:
            rendering.console.print(deployed_view.top(there.cluster()))
        else:
            deployed_view.live(there.cluster, seconds)


# --- options: `NAME=N`, `K=V`, a flow or a file ----------------------------------------------------------------------


def flow_and_file(text: str) -> tuple[str, Path | None]:
    """Return a flow's name, and the YAML file that it comes from if one was named."""
    if not text.endswith((".yaml", ".yml")):
        return text, None
    from pipelines.flowmix import load_flow

    file = Path(text)
    return load_flow(file).name, file


def counts(pairs: Sequence[str] | None) -> dict[str, int]:
    """Read `NAME=N` pairs."""
    parallelism: dict[str, int] = {}
    for pair in pairs or ():
        name, _, number = pair.partition("=")
        try:
            if not name:
                raise OutOfBoundsError("lacks its name")
            parallelism[name] = TASKS.taken(number.strip())
        except OutOfBoundsError as error:
            raise DefinitionError(
                f"not a parallelism: {shown(pair)} {error}", hint="write it as NAME=N, e.g. --parallelism delays=4"
            ) from None
    return parallelism


def settings_of(pairs: Sequence[str] | None) -> dict[str, Any]:
    """Read `K=V` pairs; a value is YAML: numbers, true, false, lists in brackets. Settings that are texts, and Spark's own,
    stay as they are written.
    """
    from pipelines.nimbus.flow_settings import TEXTS

    settings: dict[str, Any] = {}
    for pair in pairs or ():
        name, equals, text = pair.partition("=")
        if not name or not equals:
            raise DefinitionError(f"not a setting: {shown(pair)}", hint="write it as K=V, e.g. --setting isolated=true")
        table, dot, key = name.partition(".")
        if table == "spark" and dot:
            settings.setdefault("spark", {})[name] = text
            continue
        value = text if name in TEXTS else _read(pair, text)
        if table in NESTED and dot:
            settings.setdefault(table, {})[key] = value
        else:
            settings[name] = value
    return settings


def _read(pair: str, text: str) -> Any:
    """Return the value of a setting.

    Raises:
        DefinitionError: It is no YAML, or longer than any setting is.
    """
    import yaml

    if len(text) > _LONGEST or text.count("[") + text.count("{") > _DEEPEST:
        raise DefinitionError(f"not a setting: {shown(pair)} is longer or deeper than any is")
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise DefinitionError(
            f"not a setting: {shown(pair)}: {problem}", hint='put a text in quotes: K="..."'
        ) from None


# --- what they share ------------------------------------------------------------------------------------------------


def _asked(
    flow: str,
    trigger_seconds: float | None,
    workers: int | None,
    parallelism: list[str] | None,
    setting: list[str] | None,
) -> tuple[str, dict[str, Any]]:
    """Return the flow's name and the options that were given.

    Raises:
        SubmitError: A setting is unknown.
    """
    from pipelines.nimbus.flow_settings import check_names

    name, file = flow_and_file(flow)
    given = {
        "trigger_seconds": trigger_seconds,
        "workers": workers,
        "parallelism": counts(parallelism),
        "file": file,
    }
    settings = settings_of(setting)
    # They become arguments of the call beside these: `file=X` is none.
    check_names(name, settings)
    return name, {option: value for option, value in given.items() if value not in (None, {})} | settings


def _somebody(there: Nimbus) -> bool:
    """Return whether waiting is useful: without a supervisor nothing happens."""
    if any(supervisor.alive for supervisor in there.cluster().supervisors):
        return True
    errors.print("No supervisor is alive: nothing happens until one is started (tridelta supervisor).", style="yellow")
    return False


def _waited(there: Nimbus, seen: FlowStatus, until: str, seconds: float, quiet: bool, title: str = "") -> FlowStatus:
    title = title or {"running": "starts", "stopped": "drains", "gone": "drains and is removed"}[until]
    with rendering.waiting(f"{seen.name} {title} (Ctrl-C: it goes on without you)", quiet):
        return there.wait(seen.name, until=until, seconds=seconds) or seen


def _again(there: Nimbus, seen: FlowStatus, seconds: float, quiet: bool) -> FlowStatus:
    """Wait until a changed flow runs again, if it is one that runs."""
    if not _somebody(there) or not seen.active:
        return there.flow(seen.name)
    return _waited(there, seen, "running", seconds, quiet, "drains and starts again")


def _show(seen: FlowStatus, done: str, as_json: bool, **more: Any) -> None:
    if as_json:
        emit(seen.to_json() | more)
        return
    rendering.say(f"{seen.name} is {done}: {deployed_view.sentence(seen)}")
    if seen.problem:
        rendering.say(f"Problem: {seen.problem}")
    rendering.say(f"See: tridelta status {seen.name}, tridelta logs {seen.name} -f")


def _end(changed: FlowStatus) -> None:
    """End with exit code 1 if a flow's change is not carried out. The wish of one beside it may be its problem, too."""
    from pipelines.nimbus.status import STAYS

    problem = changed.problem or ""
    if problem and changed.status != "REBALANCING" and (changed.waits or not problem.startswith(STAYS)):
        raise typer.Exit(1)
