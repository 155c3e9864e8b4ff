"""Two thousand wrong inputs: none ends with a traceback, and none is taken that fails later.

Each is drawn by its number, so that one that fails comes again. `make test` runs a few of each kind, `make test-all` all.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from string import Template

import pytest
from typer.testing import CliRunner

from ops.cli import app as command_line
from ops.cli import deployed, rendering, supervising
from ops.cli.app import app
from ops.cli.new_flow import TEMPLATES
from pipelines.errors import TrideltaError
from pipelines.flowmix import load_flow
from pipelines.flowmix.compile import as_topology
from pipelines.nimbus import deployed as contents
from pipelines.nimbus.flow_settings import SETTINGS, check_settings
from pipelines.nimbus.handover.serving import Endpoint
from pipelines.nimbus.nimbus import Nimbus
from pipelines.nimbus.periodic_rebalance import LookBook
from pipelines.nimbus.processes import supervisor
from pipelines.nimbus.processes.leader import Leader
from pipelines.nimbus.processes.life import Life
from pipelines.nimbus.registry.leases import LEASE
from pipelines.nimbus.registry.placements import Places
from pipelines.nimbus.registry.records import Content
from pipelines.nimbus.registry.registry import Registry
from pipelines.nimbus.registry.store import Store
from pipelines.nimbus.settings import NimbusSettings
from pipelines.state.kinds import LOG, TRANSACTIONAL
from pipelines.state.lake import Lake
from tests.fuzz.hostile import VALUES, WORDS, damaged_arguments, damaged_bytes, damaged_text, drawn
from tests.state.small_kinds import SmallTable

YAMLS, SETTINGS_OF_FLOWS, ARGUMENTS, ENVIRONMENTS, RECORDS, TABLES = 450, 400, 400, 400, 100, 250


def numbers(count: int, some: int = 8) -> pytest.MarkDecorator:
    """Which inputs of a kind: a few of them, or all."""
    every = [pytest.mark.slow, pytest.mark.exhaustive]
    few = range(0, count, count // some)
    return pytest.mark.parametrize(
        "inputs", [pytest.param(few, id="some"), pytest.param(range(count), id="all", marks=every)]
    )


def judged(inputs: Iterable[int], judge: Callable[[int], str | None]) -> None:
    """All inputs of a kind; the faults are told together."""
    faults = []
    for number in inputs:
        try:
            fault = judge(number)
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
        if fault:
            faults.append(f"{number}: {fault[:400]}")
    assert not faults, f"{len(faults)} inputs:\n" + "\n".join(faults[:40])


def unfit(error: TrideltaError) -> str | None:
    """Why a text is no sentence for an operator."""
    noise = next((one for one in ("Traceback", "\tat ", "JVM stacktrace") if one in str(error)), None)
    return f"says {noise}: {error}" if noise or not str(error).strip() else None


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home, a folder to stand in, and no variables of another's."""
    for name in ("TRIDELTA_REGISTRY", "TRIDELTA_FLOWS", "TRIDELTA_SPARK_MASTER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRIDELTA_HOME", str(tmp_path / "home"))
    (tmp_path / "in" / "one" / "two").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "in" / "one" / "two")
    return tmp_path


# --- YAML -----------------------------------------------------------------------------------------------------------

SEVERAL = """
flow: several
clock: event
streams:
  - name: departures
    source:
      csv_files: {path: data, schema: "origin string, carrier string, delay int, at timestamp"}
    timestamp: at
    operations:
      - select: [origin, carrier, delay]
      - filter: delay > 15 and carrier in ('AA', 'UA')
      - partition: origin
      - aggregate:
          aggregators:
            - average: {field: delay, output: avg_delay}
          trigger: {time: 60}
          evict: {time: 60}
      - persist: late
    to: alerts
  - name: alerts
    operations:
      - filter: avg_delay >= 1.5
      - persist: alerted
"""


@numbers(YAMLS)
def test_yaml(inputs: Iterable[int], there: Path) -> None:
    template = (TEMPLATES / "yaml" / "flow.yaml.tmpl").read_text(encoding="utf-8")
    bases = (Template(template).substitute(flow="mine"), SEVERAL)
    for number, base in enumerate(bases):
        (there / "base.yaml").write_text(base, encoding="utf-8")
        load_flow(there / "base.yaml") if number == 0 else None

    def judge(number: int) -> str | None:
        dice = drawn("yaml", number)
        text = damaged_text(dice, bases[number % 2])
        file = there / "mine.yaml"
        file.write_text(text, encoding="utf-8")
        try:
            flow = load_flow(file)
        except TrideltaError as error:
            return unfit(error)
        try:
            topology = as_topology(flow)
            contents.content_of(topology, {"kind": "yaml", "name": flow.name})
        except Exception as error:
            return f"is taken, and then {type(error).__name__}: {error}\n{text}"
        return None

    judged(inputs, judge)


# --- settings of flows ----------------------------------------------------------------------------------------------


@numbers(SETTINGS_OF_FLOWS)
def test_settings_of_flows(inputs: Iterable[int], there: Path) -> None:
    """What is taken is placed; what is not, and is in the registry all the same, is the problem of its flow alone."""
    clock = [1_000_000.0]
    store = Store.migrated(f"sqlite:///{there}/registry.db")
    registry, places = (made(store, clock=lambda: clock[0]) for made in (Registry, Places))
    leader = Leader(store, NimbusSettings(there, monitor_seconds=1.0), "supervisor:one", clock=lambda: clock[0])

    def judge(number: int) -> str | None:
        dice = drawn("settings", number)
        names = dice.sample(SETTINGS, dice.randint(1, 3))
        settings = {name: dice.choice(VALUES) for name in names}
        try:
            check_settings("odd", settings)
            taken = True
        except TrideltaError as error:
            taken = False
            if fault := unfit(error):
                return fault
        groups = [{"group": "q0", "components": ["q0"], "inputs": [], "stateful": False}]
        definition = {"kind": "catalog", "name": "odd", "queries": groups, "explicit": {}}
        try:
            flow = registry.submit("odd", Content(definition, {"q0": 1}, 1, json.loads(json.dumps(settings))))
        except TrideltaError as error:
            return f"is taken, and then {error}" if taken else unfit(error)
        try:
            clock[0] += 5
            places.beat_supervisor("s1", "s1", [1, 2, 3], started_at=1.0)
            leader.tick()
            clock[0] += 5
            problem = registry.flow("odd").problem
            if taken and problem and ("cannot be" in problem or "user" in problem):
                return f"{settings} is taken, and then: {problem}"
            if registry.leases.holder(LEASE) is None:
                return "the leader no longer leads"
            return None if taken or problem else f"{settings} is refused, and placed all the same"
        finally:
            registry.kill("odd", wait_seconds=0)
            leader.tick()
            assert flow.serial
            if registry.flows():
                leader.tick()

    try:
        judged(inputs, judge)
    finally:
        store.close()


# --- arguments ------------------------------------------------------------------------------------------------------

COMMANDS = (
    ("list", "--json"),
    ("plan", "flights", "--mermaid"),
    ("run", "flights", "--max-batches", "2", "--on-fresh-checkpoint", "refuse"),
    ("backfill", "flights", "--from", "2013-01-01", "--to", "2013-01-02"),
    ("query", "flights", "delays_of", "AA", "--txid", "3"),
    ("state", "counts", "--key", "word=a", "--txid", "1", "--limit", "5"),
    ("state", "counts", "--limit", "5", "--json"),
    ("history", "counts", "--limit", "3"),
    ("verify", "flights"),
    ("skip", "flights", "3"),
    ("adopt", "flights"),
    ("compact", "flights", "--retention-hours", "5", "--channel-retention-hours", "5"),
    ("validate", "mine.yaml"),
    ("watch", ".", "--trigger-seconds", "1", "--once", "--on-fresh-checkpoint", "reset"),
    ("supervisor", "--ports", "6900,6901", "--id", "x", "--metrics-port", "0"),
    ("submit", "flights", "--trigger-seconds", "5", "--workers", "2", "--setting", "hosts=[a]", "--inactive", "--no-wait"),
    ("submit", "flights", "--parallelism", "flights=2", "--setting", "owner=me", "--setting", "rebalance.busy=0.9"),
    ("update", "flights", "--workers", "2", "--setting", "max_attempts=4", "--setting", "spark.executor.memory=1g"),
    ("rollback", "flights", "--to", "1"),
    ("activate", "flights"),
    ("deactivate", "flights"),
    ("kill", "flights", "--wait-seconds", "1", "--wait-at-most", "2"),
    ("rebalance", "flights", "--parallelism", "flights=2", "--dry-run"),
    ("rebalance", "flights", "--workers", "2", "--wait-seconds", "3"),
    ("status", "flights", "-n", "3"),
    ("versions", "flights"),
    ("logs", "flights", "-n", "3", "--level", "info"),
    ("top", "--once", "--seconds", "1"),
    ("housekeeping", "--dry-run"),
    ("new", "mine", "--yaml", "--into", "place"),
    ("replay-quarantine", "flights", "--txids", "1-4", "--reason", "x", "--dry-run"),
)  # fmt: skip


@pytest.fixture
def stubs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing starts Spark, another process or a wait."""

    @contextmanager
    def no_spark(quiet: bool) -> Iterator[None]:
        raise TrideltaError("no Spark starts in this test")
        yield

    monkeypatch.setattr(command_line, "engine", no_spark)
    monkeypatch.setattr(supervising, "engine", no_spark)
    monkeypatch.setattr(supervising, "logged", lambda name: nullcontext())
    monkeypatch.setattr(supervising, "run_folder", lambda folder, **_: rendering.say(str(folder)))
    monkeypatch.setattr(supervisor, "run", lambda **_: None)
    monkeypatch.setattr(Nimbus, "ensure_supervisor", lambda self: "one")
    monkeypatch.setattr(Nimbus, "wait", lambda self, flow, until, seconds: self.flow(flow))
    monkeypatch.setattr(deployed, "_again", lambda there, seen, *_, **__: there.flow(seen.name))


def told(arguments: list[str]) -> str | None:
    """Why a command has not ended as it should."""
    done = CliRunner().invoke(app, arguments)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return f"{arguments}: {type(done.exception).__name__}: {done.exception}"
    if done.exit_code not in (0, 1, 2) or "Traceback" in done.output:
        return f"{arguments}: {done.exit_code}, {done.output}"
    return None if done.exit_code == 0 or done.output.strip() else f"{arguments}: says nothing"


@pytest.mark.usefixtures("stubs")
@numbers(ARGUMENTS)
def test_arguments(inputs: Iterable[int], there: Path) -> None:
    state = SmallTable(there / "home" / "lake", LOG, TRANSACTIONAL)
    state.commit(0, ("a", 1), ("b", 2))
    Path("mine.yaml").write_text(SEVERAL)
    judged(inputs, lambda number: told(damaged_arguments(drawn("arguments", number), COMMANDS[number % len(COMMANDS)])))


# --- environments ---------------------------------------------------------------------------------------------------

VARIABLES = (
    *(f"TRIDELTA_NIMBUS_{name.upper()}" for name in NimbusSettings.__dataclass_fields__),
    *(
        f"TRIDELTA_KEEP_{name}"
        for name in ("STATE_HOURS", "QUARANTINE_DAYS", "FLOW_EVENTS", "LOG_MEGABYTES", "RUN_DAYS")
    ),
    *(
        f"TRIDELTA_{name}"
        for name in ("HOME", "REGISTRY", "FLOWS", "DURABLE", "SPARK_MASTER", "HOST", "GONE_HOSTS", "CACHE")
    ),
    *("HOME", "COLUMNS", "TZ", "LANG"),
)


@pytest.mark.usefixtures("stubs")
@numbers(ENVIRONMENTS)
def test_environments(inputs: Iterable[int], there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [one for one in WORDS if one and "\0" not in one]

    def judge(number: int) -> str | None:
        dice = drawn("environments", number)
        chosen = {name: dice.choice(words) for name in dice.sample(VARIABLES, dice.randint(1, 2))}
        with monkeypatch.context() as patched:
            for name, value in chosen.items():
                patched.setenv(name, value)
            fault = told(dice.choice((["status"], ["housekeeping", "--dry-run"], ["state", "counts"], ["supervisor"])))
        return f"{chosen}: {fault}" if fault else None

    judged(inputs, judge)


# --- records of Nimbus' own -----------------------------------------------------------------------------------------


@numbers(RECORDS)
def test_records(inputs: Iterable[int], there: Path) -> None:
    """Files of other processes: what is none counts as none."""
    settings = NimbusSettings(there)
    written = {"life": "a", "port": 4000, "key": "ab", "waits": True, "pid": 5, "created": 1.0, "boot": "b", "ticks": 1}
    text = json.dumps(written, indent=1)
    odd = [
        "1e999",
        "[" * 100_000,
        '"a"',
        "[1]",
        text.replace("5,", "1e999,"),
        text.replace('"ticks": 1', '"ticks": 1e999'),
    ]

    def judge(number: int) -> str | None:
        dice = drawn("records", number)
        data = damaged_text(dice, text).encode() if number % 2 else damaged_bytes(dice, text.encode())
        data = odd[number // 10].encode() if number % 10 == 0 and number // 10 < len(odd) else data
        for file in (there / "supervisors" / "s" / "1.json", there / "one.endpoint.json", there / "looks.json"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        endpoint, life = Endpoint.read(there / "one.endpoint.json"), Life(settings, "s", 1).read()
        LookBook(there / "looks.json").add((), 1.0)
        if endpoint is not None and not (0 < endpoint.port < 65536 and endpoint.alive in (True, False)):
            return f"taken for an endpoint: {data!r}"
        if life is not None and not (0 < life.pid < 2**31 and (life.process() is None or life.pid == 5)):
            return f"taken for a process' record: {data!r}"
        return None

    judged(inputs, judge)


# --- damaged tables -------------------------------------------------------------------------------------------------


@numbers(TABLES)
def test_damaged_tables(inputs: Iterable[int], there: Path) -> None:
    """A table that is damaged is read as it was, or is told; never read with other rows."""
    whole = SmallTable(there / "whole", LOG, TRANSACTIONAL)
    for txid in range(4):
        whole.commit(txid, ("a", 1), (f"w{txid}", txid))
    right = whole.held()
    files = sorted(one.relative_to(there / "whole") for one in (there / "whole" / "states").rglob("*") if one.is_file())

    def judge(number: int) -> str | None:
        dice = drawn("tables", number)
        root = there / "damaged"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(there / "whole", root)
        file = root / dice.choice(files)
        if dice.random() < 0.15:
            file.unlink()
            file.mkdir()
        else:
            file.write_bytes(damaged_bytes(dice, file.read_bytes()))
        try:
            rows = Lake(root).state("counts").scan().to_pylist()
        except TrideltaError as error:
            return unfit(error)
        found = sorted(tuple(row.values()) for row in rows)
        return None if found == sorted(right) else f"{file.relative_to(root)}: other rows: {found}"

    judged(inputs, judge)
