"""The content of a deployed flow: from a flow of the catalog, or a YAML file, to a version's content, and back.

The content is plain data. Whoever plans reads the queries from it and loads no user code; a worker loads the flow.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines import catalog
from pipelines.catalog.flow import FlowSettings
from pipelines.errors import AssignmentError, TrideltaError
from pipelines.nimbus.errors import DeployError, NimbusError, RebalanceError, SubmitError
from pipelines.nimbus.flow_settings import SETTINGS, check_asked_columns, check_settings, check_user_workers
from pipelines.nimbus.placement.model import Component, Demand, UserWorker
from pipelines.nimbus.registry.records import Content, DeployedFlow, Version
from pipelines.places.location import put_whole
from pipelines.private import refuse_secrets

if TYPE_CHECKING:
    from pipelines.trident.topology import TridentTopology

CATALOG, YAML = "catalog", "yaml"
SHARED = "shared"
"""The application of flows that name none, have one worker, and no Spark settings of their own."""
WATCHED = "watched"
"""The application of flows of watched folders. A file has no Python, so that a new version needs no new process: in this
application a flow that changes drains by itself, and the others go on."""


@dataclass(frozen=True)
class DeployedQuery:
    """One streaming query of a deployed flow.

    Attributes:
        task: Its number, from 1.
        components: The streams that it reads and the states that it writes.
        inputs: Groups that write the channels that it reads.
        partitions: Its number of shuffle partitions where somebody has asked for one; else None.
        stateful: Whether it keeps windows.
    """

    task: int
    group: str
    components: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    partitions: int | None = None
    stateful: bool = False


def content_of(
    topology: TridentTopology,
    definition: Mapping[str, Any],
    *,
    workers: int | None = None,
    parallelism: Mapping[str, int] | None = None,
    settings: Mapping[str, Any] | None = None,
    default_parallelism: int = 1,
) -> Content:
    """Return the content of a version.

    Args:
        definition: Where it is found (`kind`, `name`, and for YAML `text` and `file`).
        workers: The most worker processes that it may have.
        parallelism: Component (stream or state) to tasks; beside the hints of the topology itself.
        settings: See `pipelines.nimbus.flow_settings`.
        default_parallelism: for components without a hint.

    Raises:
        SubmitError: A setting is unknown or of another kind; a component is unknown.
        DeployError: The flow has no stream with a source.
    """
    from pipelines.flowmix.flow import BATCH

    name, chosen = topology.name, dict(settings or {})
    _check_no_application(name)
    check_settings(name, chosen)
    check_asked_columns(topology, chosen)
    queries = _queries(topology)
    if not queries:
        raise DeployError(name, "it has no stream with a source", hint="a deployed flow needs one")
    known = _components(topology, queries)
    explicit = {**_hints(topology, known), **(parallelism or {})}
    if unknown := sorted(set(explicit) - set(known)):
        valid = ",".join(known)
        raise SubmitError(name, f"Invalid component {unknown[0]} for topology {name}, valid values are {valid}")
    check_user_workers(name, chosen, [query["group"] for query in queries])
    refuse_secrets(chosen.get("spark", {}))
    check_partitions(name, queries, explicit)
    return Content(
        definition={
            **definition,
            "queries": queries,
            "explicit": explicit,
            "asked": dict(parallelism or {}),
            "plan": plan_digest(topology),
            "windows": BATCH,
        },
        components={component: explicit.get(component, default_parallelism) for component in known},
        workers=1 if workers is None else workers,
        settings=chosen,
    )


def names_of(topology: TridentTopology) -> tuple[list[str], list[str]]:
    """Return the components and the queries that a flow has: what settings may name."""
    queries = _queries(topology)
    return _components(topology, queries), [query["group"] for query in queries]


def asked_before(content: Content, there: Collection[str]) -> dict[str, int]:
    """Return the parallelism that somebody has asked for in a version, of the components that are there.

    Another release may have written it: what is no number of tasks is left out.
    """
    asked = _of_definition(content, "asked")
    held = asked if isinstance(asked, Mapping) else {}
    return {name: number for name, number in held.items() if name in there and type(number) is int and number > 0}


def file_before(content: Content) -> Path | None:
    """Return the file that a version was made from; None: the catalog, or it does not say."""
    file = _of_definition(content, "file")
    return Path(file) if _of_definition(content, "kind") == YAML and isinstance(file, str) else None


def _of_definition(content: Content, name: str) -> Any:
    # Its type is what this release writes.
    definition: Any = content.definition
    return definition.get(name) if isinstance(definition, Mapping) else None


def check_partitions(flow: str, queries: Sequence[Mapping[str, Any]], parallelism: Mapping[str, int]) -> None:
    """Check that no partition stays empty for ever: windows lie in a fixed number of buckets.

    Args:
        queries: `definition["queries"]` of its content.
        parallelism: Component to tasks.
    """
    from pipelines.windows import BUCKETS

    for query in queries:
        for name in query["components"] if query["stateful"] else ():
            if parallelism.get(name, 1) > BUCKETS:
                problem = f"{name} has windows, which lie in {BUCKETS} buckets: ask for {BUCKETS} at most"
                raise RebalanceError(flow, problem, component=name, value=parallelism[name])


def _check_no_application(name: str) -> None:
    """Refuse the name of an application that flows share: that of the flow's own would be the same, and its Spark theirs."""
    if name in (SHARED, WATCHED):
        raise DeployError(name, "an application that flows share has that name", hint="give the flow another name")


def queries_of(flow: DeployedFlow | Version) -> list[DeployedQuery]:
    """Return the queries of a deployed flow's current version, with the parallelism that holds now."""
    version = flow.version if isinstance(flow, DeployedFlow) else flow
    explicit = dict(version.content.definition.get("explicit", {}))
    if isinstance(flow, DeployedFlow):
        explicit |= flow.scale.parallelism
    return [
        DeployedQuery(
            task,
            query["group"],
            tuple(query["components"]),
            tuple(query["inputs"]),
            max((explicit[name] for name in query["components"] if name in explicit), default=None),
            query["stateful"],
        )
        for task, query in enumerate(version.content.definition.get("queries", ()), start=1)
    ]


def application_of(flow: DeployedFlow) -> str:
    """Return the Spark application in which a flow runs: its own, or one that it shares."""
    settings = flow.settings
    named = settings.get("application")
    own = settings.get("isolated") or flow.workers > 1
    own = own or any(settings.get(key) for key in ("master", "spark", "hosts", "user_workers"))
    return str(named) if named else flow.name if own else SHARED


def applications_of(flows: Iterable[DeployedFlow]) -> set[str]:
    """Return the applications of some flows."""
    return {application_of(flow) for flow in flows}


def changes_in_place(flow: DeployedFlow) -> bool:
    """Return whether the process that runs a flow may run the next version of it too."""
    return flow.version.content.definition.get("kind") == YAML and application_of(flow) == WATCHED


def demand_of(application: str, flows: list[DeployedFlow]) -> Demand:
    """Return what an application asks the planner for: one component per query, with one task each.

    Args:
        flows: Those that agree (`agreeing`).
    """
    components = [
        Component(
            component_id(flow.name, query.group), 1, inputs=[component_id(flow.name, group) for group in query.inputs]
        )
        for flow in flows
        for query in queries_of(flow)
    ]
    users = [
        UserWorker(
            {component_id(flow.name, group): number for group, number in worker["components"].items()},
            host=worker.get("host", ""),
            port=worker.get("port"),
        )
        for flow in flows
        for worker in flow.settings.get("user_workers", ())
    ]
    return Demand(
        application,
        components,
        workers=max(flow.workers for flow in flows),
        user_workers=users,
        hosts=_common_hosts(flows),
        use_old_assignment=any(flow.settings.get("use_old_assignment") for flow in flows),
        single_master=False,
    )


def agreeing(flows: Sequence[DeployedFlow]) -> tuple[list[DeployedFlow], dict[int, AssignmentError]]:
    """Return the flows that can share an application, and by serial why each of the others cannot.

    All run in the same processes: on hosts that each of them may use, with one master.

    Args:
        flows: Those of an application. One in front has its way.
    """
    agreed: list[DeployedFlow] = []
    others: dict[int, AssignmentError] = {}
    for flow in flows:
        settings = flow.settings
        hosts, master = settings.get("hosts", ()), settings.get("master")
        beside = [other for other in agreed if other.settings.get("hosts")] if hosts else []
        on = [other for other in agreed if other.settings.get("master") not in (None, master)] if master else []
        if beside and not _common_hosts([*beside, flow]):
            named = "; ".join(f"{other.name} names {', '.join(other.settings['hosts'])}" for other in beside)
            problem = f"it names the hosts {', '.join(hosts)}, and in the same application {named}"
        elif on:
            problem = f"it names the master {master}, and in the same application {on[0].name} names another"
        else:
            agreed.append(flow)
            continue
        others[flow.serial] = AssignmentError(flow.name, problem, "let them agree, or name another application")
    return agreed, others


def _common_hosts(flows: Sequence[DeployedFlow]) -> list[str]:
    """Return the hosts that all flows may use that name any; of flows that agree there is none only if nobody does."""
    named = [{*hosts} for flow in flows if (hosts := flow.settings.get("hosts"))]
    return sorted(set.intersection(*named)) if named else []


def check_deployed(flow: DeployedFlow) -> None:
    """Check that placing and running this flow can read all that they need: another release may have written it.

    Raises:
        SubmitError: A setting is none that this release can work with.
        DeployError: The record of its version is no such record.
    """
    try:
        settings = {name: value for name, value in flow.settings.items() if name in SETTINGS}
        check_settings(flow.name, settings)
        queries = queries_of(flow)
        check_user_workers(flow.name, settings, [query.group for query in queries])
        demand_of(application_of(flow), [flow])
        dict(flow.parallelism)
    except SubmitError:
        raise
    except Exception as error:
        raise unreadable(flow, error) from error


def readable(flows: Iterable[DeployedFlow]) -> list[DeployedFlow]:
    """Return the flows whose version this release can read."""
    read = []
    for flow in flows:
        with suppress(NimbusError):
            check_deployed(flow)
            read.append(flow)
    return read


def unreadable(flow: DeployedFlow, error: Exception) -> DeployError:
    """Return the error of a flow whose version in the registry is no such record.

    Args:
        error: What came of reading it.
    """
    problem = f"version {flow.version.number} in the registry cannot be read: {type(error).__name__}: {error}"
    return DeployError(flow.name, problem, hint=f"deploy it again: tridelta update {flow.name}")


def component_id(flow: str, group: str) -> str:
    """Return a query's name in an application's demand."""
    return f"{flow}/{group}"


def load(flow: DeployedFlow, folder: Path) -> TridentTopology:
    """Return the topology of a deployed flow's current version.

    Args:
        folder: Where a YAML version's text is written to, to be read from.

    Raises:
        DeployError: The code is no longer what was deployed.
    """
    from pipelines.flowmix.flow import CHANNELS, default_windows

    definition = flow.version.content.definition
    # A release before said nothing, and windows read a channel.
    with default_windows(definition.get("windows", CHANNELS)):
        topology = (
            _from_yaml(flow.name, definition, folder / f"{flow.id}-{flow.version.number}")
            if definition["kind"] == YAML
            else catalog.flow(definition["name"]).topology(FlowSettings(Path(definition["home"]), definition["lake"]))
        )
    seen = plan_digest(topology)
    if seen != definition["plan"]:
        raise DeployError(
            flow.name,
            f"version {flow.version.number} was deployed from plan {definition['plan']}; the code here gives {seen}",
            hint=f"deploy what is here (tridelta update {flow.name}), or bring the version's code back",
        )
    return topology


def from_catalog(name: str) -> tuple[TridentTopology, dict[str, Any]]:
    """Return a flow of the catalog and its definition."""
    settings = FlowSettings.from_environment()
    return catalog.flow(name).topology(settings), {"kind": CATALOG, "name": name, "home": str(settings.home)}


def from_file(path: Path) -> tuple[TridentTopology, dict[str, Any]]:
    """Return a flow written as YAML and its definition, which holds the whole text."""
    from pipelines.flowmix.compile import as_topology
    from pipelines.flowmix.yaml_form import load_flow

    topology = as_topology(load_flow(path))
    definition = {"kind": YAML, "name": topology.name, "file": str(path.absolute()), "text": path.read_text("utf-8")}
    return topology, definition


def plan_digest(topology: TridentTopology) -> str:
    """Return twelve digits for all that a plan says of a topology."""
    from pipelines.planner.plan import TopologyPlan

    return TopologyPlan.of(topology).digest()


def code_digest(definition: Mapping[str, Any]) -> str:
    """Return twelve digits for a flow's code: functions are not part of its plan."""
    if definition["kind"] == YAML:
        return hashlib.sha256(definition["text"].encode()).hexdigest()[:12]
    return source_digest(definition["name"])


def source_digest(name: str, *, loaded: bool = False) -> str:
    """Return twelve digits for the file in which a flow of the catalog is written.

    Args:
        loaded: take the file as it was when this process first asked, which is as good as when it was imported; else as it is.
    """
    file = _source_of(catalog.flow(name).build)
    if file is None:
        return ""
    digest = hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12]
    return _SOURCES.setdefault(name, digest) if loaded else digest


_SOURCES: dict[str, str] = {}


def _source_of(build: Any) -> str | None:
    """Return the file that a callable is written in; None if it is in none."""
    while isinstance(build, functools.partial):
        build = build.func
    try:
        return inspect.getsourcefile(inspect.unwrap(build) if inspect.isroutine(build) else type(build))
    except TypeError:  # built in
        return None


def _from_yaml(name: str, definition: Mapping[str, Any], folder: Path) -> TridentTopology:
    from pipelines.flowmix.compile import as_topology
    from pipelines.flowmix.yaml_form import load_flow

    there = Path(definition["file"])
    if _text_of(there) == definition["text"]:
        return as_topology(load_flow(there))
    # The file has changed since: the version's own text counts, read as if it stood where the file stood.
    kept = folder / there.name
    try:
        # Two workers may do so at once.
        put_whole(kept, definition["text"].encode())
        return as_topology(load_flow(kept, beside=there.parent))
    except TrideltaError:
        raise
    except OSError as error:
        raise DeployError(name, f"its YAML cannot be read: {error}") from error


def _text_of(file: Path) -> str | None:
    """Return what a file holds; None if it cannot be read, or is no text."""
    try:
        return file.read_text("utf-8")
    except (OSError, ValueError):
        return None


def _queries(topology: TridentTopology) -> list[dict[str, Any]]:
    from pipelines.execution.protocol.groups import group_name, spout_groups
    from pipelines.graph import nodes

    written: dict[str, str] = {}
    queries: list[dict[str, Any]] = []
    # By the order of definition, in which tasks have had their numbers in every release.
    for spouts in sorted(spout_groups(topology), key=lambda group: group[0].id):
        group = group_name(spouts)
        reach = {node.id for spout in spouts for node in topology.graph.descendants(spout.id)}
        sinks = [node for node in topology.persists if node.id in reach]
        written |= {node.state.name: group for node in sinks if isinstance(node, nodes.ChannelNode)}
        states = [node.state.name for node in sinks if not isinstance(node, nodes.ChannelNode)]
        channels = [spout for spout in spouts if isinstance(spout, nodes.ChannelSpoutNode)]
        queries.append(
            {
                "group": group,
                "components": list(dict.fromkeys([*(spout.stream for spout in spouts), *states])),
                "reads": [name for spout in channels for name in spout.reads],
                "stateful": any(isinstance(step, nodes.WindowNode) for spout in channels for step in spout.steps),
            }
        )
    for query in queries:
        query["inputs"] = sorted({written[name] for name in query.pop("reads") if name in written})
    return queries


def _components(topology: TridentTopology, queries: list[dict[str, Any]]) -> list[str]:
    """Return streams and states, those of query streams too: a rebalance may name any of them."""
    return list(dict.fromkeys([*(name for query in queries for name in query["components"]), *topology.queries]))


def _hints(topology: TridentTopology, known: list[str]) -> dict[str, int]:
    """Return the topology's own parallelism of streams that ask for more than one task."""
    from pipelines.planner.plan import TopologyPlan

    tasks = TopologyPlan.of(topology).parallelism
    return {name: tasks[f"spout-{name}"] for name in known if tasks.get(f"spout-{name}", 1) > 1}
