"""The changes that a deployment of a flow as it is defined now would make, to states too. No Spark here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pipelines.graph import nodes
from pipelines.graph.bolts import SpoutGroup
from pipelines.graph.types import known_types, same_type
from pipelines.places.location import Place
from pipelines.planner.plan import StoredPlan, TopologyPlan, deployed_plan, load_plan, save_plan

if TYPE_CHECKING:
    from pipelines.graph.lineage import HasGraph
    from pipelines.state.lake import Lake
    from pipelines.state.schema import StateSchema
    from pipelines.state.table import StateTable

FITS, EVOLVES, REFUSED = "fits", "evolves", "refused"

_UNKNOWN = "of a type that Spark finds"


@dataclass(frozen=True)
class StateChange:
    """A state beside its table.

    `change` is new, removed, changed or same; `verdict` what the engine would say at the flow's start: fits, evolves
    (columns are added) or refused; `details` why.
    """

    name: str
    change: str
    verdict: str
    details: tuple[str, ...] = ()


def state_changes(
    topology: HasGraph, groups: tuple[SpoutGroup, ...], lake: Lake, refusals: Mapping[str, str]
) -> tuple[StateChange, ...]:
    """Return each state that the flow writes, in order, then those of the lake that it does not write any more.

    Names, keys, aggregators, kind and layout are compared; types where the definition says them, which is where they do
    not come out of a function over columns or a built-in aggregator: those Spark alone knows.
    """
    persists = [node for node in topology.graph if isinstance(node, nodes.PersistNode)]
    group_of = {node: group for group in groups for node in group.nodes}
    changes: list[StateChange] = []
    for node in persists:
        table = lake.written_by(node)
        group = _Group(topology, group_of[node.id], lake)
        there = _of_table(node, table, group) if table.exists() else None
        change = there or StateChange(table.name, "new", FITS, ("its table is made",))
        if change.verdict != REFUSED and table.name in refusals:
            kind = "changed" if there else "new"
            change = replace(change, change=kind, verdict=REFUSED, details=(refusals[table.name],))
        changes.append(change)
    written = {node.state.name for node in persists}
    others = [StateChange(name, "changed", REFUSED, (why,)) for name, why in refusals.items() if name not in written]
    return (*changes, *others, *_removed(topology.name, written, lake))


class _Group:
    """A batch group with its checkpoint, as far as the engine's start looks at it."""

    def __init__(self, topology: HasGraph, group: SpoutGroup, lake: Lake) -> None:
        self.topology, self.group = topology, group
        self._folder = lake.checkpoint_path(topology.name, group.folder)

    @property
    def sliced(self) -> bool:
        return any(getattr(self.topology.graph[node], "slice_by", None) is not None for node in self.group.nodes)

    @property
    def slice_by(self) -> tuple[tuple[str, str], ...]:
        """By stream the expression that cuts its slices."""
        nodes_ = [self.topology.graph[node] for node in self.group.nodes]
        return tuple(
            (spout.stream, spout.slice_by) for spout in nodes_ if isinstance(spout, nodes.SpoutNode) and spout.slice_by
        )

    @property
    def has_run(self) -> bool:
        """Check whether its checkpoint is there, so that it goes on where it was."""
        return (self._folder / "epoch.json").exists() and (self._folder / "spark" / "metadata").exists()


def _of_table(node: nodes.PersistNode, table: StateTable, group: _Group) -> StateChange:
    name = node.state.name
    if not table.is_state():
        return StateChange(name, "changed", REFUSED, (f"{table.path} is a table that the engine did not make",))
    added = table.declared.evolution(_declared(node, table.declared, group))
    if isinstance(added, str):
        return StateChange(name, "changed", REFUSED, (added,))
    if not group.has_run and table.commits.of_source():
        last = table.last_txid()
        held = "rows of a replay of quarantine" if last is None else f"batches up to txid {last}"
        fresh = f"the checkpoint is fresh, and the table holds {held}"
        return StateChange(name, "changed", REFUSED, (f"{fresh}: see --on-fresh-checkpoint",))
    if added:
        return StateChange(
            name, "changed", EVOLVES, tuple(f"gets the column {column} ({kind})" for column, kind in added)
        )
    return StateChange(name, "same", FITS)


def _declared(node: nodes.PersistNode, there: StateSchema, group: _Group) -> StateSchema:
    """Return what the flow declares; a type that it leaves open is that of the table."""
    from pipelines.state.schema import StateSchema

    types, stored = known_types(group.topology.graph, node.id), dict(there.columns)
    named = ((name, _type(types.get(name), stored.get(name))) for name in node.fields)
    return StateSchema.of_node(node, group.topology.name, named, sliced=group.sliced, slice_by=group.slice_by)


def _type(known: str | None, stored: str | None) -> str:
    if stored is not None and same_type(known, stored):
        return stored
    return known or _UNKNOWN


def _removed(flow: str, written: set[str], lake: Lake) -> Iterator[StateChange]:
    for table in lake.tables_of(flow):
        if table.name not in written:
            yield StateChange(table.name, "removed", FITS, ("its table stays as it is",))


NEW, REMOVED, CHANGED, SAME = "new", "removed", "changed", "same"

__all__ = ["Change", "PlanChanges", "StateChange", "StoredPlan", "load_plan", "plan_changes", "save_plan"]


@dataclass(frozen=True)
class Change:
    """A bolt, a spout or a batch group beside what is deployed.

    `change` is new, removed, changed or same; `before` its name there, `details` say what differs.
    """

    name: str
    change: str
    before: str | None = None
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlanChanges:
    """The changes that a deployment would make.

    Attributes:
        deployed_at: when a run stored the plan that this one is compared with (ISO, UTC); None: no run ever did.
        bolts: told apart by what they do: a bolt that only got another number is `changed`, with its old name.
        spouts: sources and queries, by their stream's name.
        batch_groups: by their streams. A new one starts with a fresh checkpoint.
        parallelism: tasks before and now of each bolt or spout that is still there, where they differ.
        states: what becomes of each state: it fits, it evolves (gets columns), or the flow is refused at its start.
        plan: the plan as it is now, `TopologyPlan.to_json()`.
    """

    flow: str
    deployed_at: str | None
    bolts: tuple[Change, ...]
    spouts: tuple[Change, ...]
    batch_groups: tuple[Change, ...]
    parallelism: Mapping[str, tuple[int, int]]
    states: tuple[StateChange, ...]
    plan: Mapping[str, Any]
    mermaid: str

    @property
    def refused(self) -> tuple[StateChange, ...]:
        """The states for which the flow would be refused at its start."""
        return tuple(state for state in self.states if state.verdict == REFUSED)

    @property
    def nothing(self) -> bool:
        """Check whether what is deployed is what is defined."""
        parts = [entry.change for entry in (*self.bolts, *self.spouts, *self.batch_groups)]
        parts += [state.change for state in self.states]
        return self.deployed_at is not None and not self.parallelism and all(change == SAME for change in parts)

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        return {
            "flow": self.flow,
            "deployed_at": self.deployed_at,
            "refused": [state.name for state in self.refused],
            "evolves": [state.name for state in self.states if state.verdict == EVOLVES],
            "nothing": self.nothing,
            "bolts": [asdict(bolt) for bolt in self.bolts],
            "spouts": [asdict(spout) for spout in self.spouts],
            "batch_groups": [asdict(group) for group in self.batch_groups],
            "parallelism": {name: {"before": old, "now": two} for name, (old, two) in self.parallelism.items()},
            "states": [asdict(state) for state in self.states],
            "plan": dict(self.plan),
            "mermaid": self.mermaid,
        }


def plan_changes(topology: HasGraph, lake: Lake, refusals: Mapping[str, str] = MappingProxyType({})) -> PlanChanges:
    """Compare a topology with what is deployed: the states of the lake, and the plan that a run stored at its start.

    Args:
        refusals: by state why a run would refuse it, as the checkpoints say (`Changeover.refusals`).
    """
    plan = TopologyPlan.of(topology)
    now = plan.to_json()
    folder = lake.root / "checkpoints" / topology.name
    stored = deployed_plan(folder)
    before: dict[str, Any] = stored.plan if stored else {}
    pairs = list(_paired_bolts(before.get("bolts", []), now["bolts"]))
    spouts = list(_paired(before.get("spouts", []), now["spouts"], "stream"))
    return PlanChanges(
        flow=plan.name,
        deployed_at=stored.saved_at.isoformat(timespec="seconds") if stored else None,
        bolts=tuple(_bolt(old, two) for old, two in pairs),
        spouts=tuple(_spout(old, two) for old, two in spouts),
        batch_groups=tuple(_batch_groups(before, plan.batch_groups, folder)),
        parallelism={
            two["name"]: (old["tasks"], two["tasks"])
            for old, two in (*pairs, *spouts)
            if old and two and old["tasks"] != two["tasks"]
        },
        states=state_changes(topology, plan.batch_groups, lake, refusals),
        plan=now,
        mermaid=plan.to_mermaid(),
    )


Json = dict[str, Any]
Pair = tuple[Json | None, Json | None]


def _paired(before: list[Json], now: list[Json], key: str) -> Iterator[Pair]:
    """Pair what has one value of `key`: what there is now, in order, then what was removed."""
    old = {item[key]: item for item in before}
    for entry in now:
        yield old.pop(entry[key], None), entry
    for gone in old.values():
        yield gone, None


def _paired_bolts(before: list[Json], now: list[Json]) -> Iterator[Pair]:
    """Pair bolts that do the same, then those that have most in common; the others are new or removed.

    Not by name: one operation more may give other bolts other numbers.
    """
    left, matches = list(before), dict[str, Json]()
    for alike in (_equal, _in_common):
        for bolt in now:
            best = max(left, key=lambda old: alike(old, bolt), default=None) if bolt["name"] not in matches else None
            if best is not None and alike(best, bolt):
                matches[bolt["name"]] = best
                left.remove(best)
    yield from ((matches.get(bolt["name"]), bolt) for bolt in now)
    yield from ((gone, None) for gone in left)


def _equal(bolt: Json, other: Json) -> int:
    return int(all(bolt[what] == other[what] for what in ("operations", "states")))


def _in_common(bolt: Json, other: Json) -> int:
    """Measure how much two bolts share; a state is at home in one bolt alone."""
    shared = {what: set(bolt[what]) & set(other[what]) for what in ("operations", "states")}
    return len(shared["operations"]) + 100 * len(shared["states"])


def _bolt(before: Json | None, now: Json | None) -> Change:
    if before is None or now is None:
        return _alone(before, now, "name", [*(before or now or {})["operations"]])
    details = [f"with {operation}" for operation in now["operations"] if operation not in before["operations"]]
    details += [f"without {operation}" for operation in before["operations"] if operation not in now["operations"]]
    if not details and now["operations"] != before["operations"]:
        details.append("its operations in another order")
    if [entry["by"] for entry in before["inputs"]] != [entry["by"] for entry in now["inputs"]]:
        details.append(f"takes its tuples by {_by(now)}, not by {_by(before)}")
    if before["tasks"] != now["tasks"]:
        details.append(f"{before['tasks']} -> {now['tasks']} tasks")
    renamed = before["name"] != now["name"]
    return Change(now["name"], CHANGED if details or renamed else SAME, before["name"], tuple(details))


def _by(bolt: Json) -> str:
    return ", ".join(entry["by"] for entry in bolt["inputs"]) or "nothing"


def _spout(before: Json | None, now: Json | None) -> Change:
    if before is None or now is None:
        return _alone(before, now, "stream", [])
    details = [
        f"{what.replace('_', ' ')}: {_text(before.get(what))} -> {_text(now.get(what))}"
        for what in ("fields", "source", "slice_by", "tasks", "channels", "operations")
        if before.get(what) != now.get(what)
    ]
    return Change(now["stream"], CHANGED if details else SAME, before["stream"], tuple(details))


def _text(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)


def _alone(before: Json | None, now: Json | None, key: str, details: list[str]) -> Change:
    if now is not None:
        return Change(now[key], NEW, None, tuple(details))
    assert before is not None
    return Change(before[key], REMOVED, before[key], tuple(details))


def _batch_groups(before: Json, now: tuple[SpoutGroup, ...], folder: Place) -> Iterator[Change]:
    """Compare by their streams; queries have no batches. If a flow stored no plan, the folders of its checkpoints count."""
    there = {"__".join(group["streams"]) for group in before.get("batch_groups", ()) if not group["query"]}
    if not before and folder.is_dir():
        there = {path.name for path in folder.iterdir() if (path / "epoch.json").exists()}
    groups = [group.folder for group in now if not group.query]
    for name in groups:
        if name in there:
            yield Change(name, SAME, name)
        else:
            yield Change(name, NEW, None, ("starts with a fresh checkpoint, at the beginning of its sources",))
    for name in sorted(there.difference(groups)):
        yield Change(name, REMOVED, name, ("its checkpoint stays and is not read any more",))
