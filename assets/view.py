"""A flow as Dagster sees it: which asset stands for which stream and state, and which check belongs where."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar
from zlib import crc32

import dagster as dg

from assets.events import table_metadata
from pipelines.catalog import FlowSettings, FlowSpec
from pipelines.errors import DefinitionError
from pipelines.graph import nodes
from pipelines.planner import TopologyPlan
from pipelines.quality import Check, Gate
from pipelines.sources.base import place_of, stored_path
from pipelines.trident import TridentTopology

if TYPE_CHECKING:
    from pipelines.state.lake import Lake
    from pipelines.state.table import StateTable


def identifier(text: str, among: Iterable[str]) -> str:
    """Turn a text into a name that Dagster takes: ASCII's letters, digits and underscores.

    Args:
        among: The names of all checks of its gate or suite: two that would become one name get their checksums.
    """
    name = _worded(text)
    if name.isascii() and (name == text or all(_worded(other) != name for other in among if other != text)):
        return name
    return f"{_worded(text, re.ASCII)}_{crc32(text.encode()):08x}".strip("_")


def _worded(text: str, flags: int = 0) -> str:
    return re.sub(r"\W+", "_", text, flags=flags).strip("_")


Made = TypeVar("Made", bound=Hashable)


def reaches(above: Mapping[Made, Collection[Made]], one: Made, other: Made) -> bool:
    """Check whether `other` is `one`, or among all that `one` is made of."""
    seen: set[Made] = set()
    left = [one]
    while left:
        if (at := left.pop()) == other:
            return True
        if at not in seen:
            seen.add(at)
            left += above.get(at, ())
    return False


def verdict(check: dg.AssetCheckKey, passed: bool, action: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a result of a check, or of an evaluation."""
    return {
        "asset_key": check.asset_key,
        "check_name": check.name,
        "passed": passed,
        # An error for a check that fails a batch at a gate, a warning for any other.
        "severity": dg.AssetCheckSeverity.ERROR if action == "fail" else dg.AssetCheckSeverity.WARN,
        "metadata": metadata,
    }


@dataclass(frozen=True)
class GateCheck:
    """A check of a gate, the asset behind the gate that shows it, and the names of all checks of the gate."""

    gate: str
    check: Check
    asset: dg.AssetKey
    names: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its name in Dagster."""
        return f"{self.gate}__{identifier(self.check.name, self.names)}"

    @property
    def key(self) -> dg.AssetCheckKey:
        return dg.AssetCheckKey(self.asset, self.name)

    def judged(self, passed: bool, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return a verdict on it (`verdict`)."""
        return verdict(self.key, passed, self.check.action, metadata)


def state_key(state: str) -> dg.AssetKey:
    """Return the asset key of a state."""
    return dg.AssetKey([state])


def channel_key(channel: str) -> dg.AssetKey:
    """Return the asset key of a channel, which leads from one query of a flow to another."""
    return dg.AssetKey(["channels", channel])


def table_key(node: nodes.PersistNode) -> dg.AssetKey:
    """Return the asset key of the table that a node commits into."""
    return channel_key(node.state.name) if isinstance(node, nodes.ChannelNode) else state_key(node.state.name)


def source_key(stream: str) -> dg.AssetKey:
    """Return the asset key of what arrives for a stream."""
    return dg.AssetKey(["sources", stream])


@dataclass(frozen=True)
class FlowView:
    """A flow of the catalog with its topology built: made once, when definitions load.

    Attributes:
        unordered: States that it queries of flows that are made behind it: no dependencies in Dagster (`put_in_order`).
    """

    spec: FlowSpec
    settings: FlowSettings
    topology: TridentTopology
    plan: TopologyPlan
    unordered: frozenset[dg.AssetKey] = frozenset()

    @classmethod
    def of(cls, spec: FlowSpec, settings: FlowSettings) -> FlowView:
        """Build the flow's topology and look at it."""
        topology = spec.topology(settings)
        view = cls(spec, settings, topology, topology.build())
        answers = (("query asset", question.name) for question in spec.queries)
        gates = (("gate", node.gate.name) for node in topology.graph if isinstance(node, nodes.GateNode))
        spec.check_for_dagster([*(("state", name) for name in view.states), *answers, *gates])
        return view

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def pool(self) -> str:
        """The pool that all runs share which hold the flow's checkpoint."""
        return f"checkpoint_{self.name}"

    @property
    def labels(self) -> dict[str, Any]:
        """The group, owners and tags of the flow's assets."""
        return {"group_name": self.name, "owners": list(self.spec.owners), "tags": dict(self.spec.tags)}

    @cached_property
    def writers(self) -> Mapping[str, nodes.PersistNode]:
        """Return the nodes that write the flow's tables, by table name: channels as well as states, in order."""
        return {node.state.name: node for node in self.topology.persists}

    @property
    def states(self) -> tuple[str, ...]:
        """The states that the flow writes, in order."""
        return tuple(name for name, node in self.writers.items() if not isinstance(node, nodes.ChannelNode))

    @property
    def spouts(self) -> tuple[nodes.SpoutNode, ...]:
        """Return the nodes at which tuples enter from outside the flow."""
        return tuple(spout for spout in self.topology.spouts if not isinstance(spout, nodes.ChannelSpoutNode))

    @cached_property
    def arriving(self) -> tuple[nodes.SpoutNode, ...]:
        """The spouts of what comes in from outside the lake: not those that read another flow's table."""
        return tuple(spout for spout in self.spouts if self.key_of(spout) == source_key(spout.stream))

    @cached_property
    def upstream(self) -> tuple[dg.AssetKey, ...]:
        """The assets of the tables of other flows that the flow has for sources."""
        read = [self.key_of(spout) for spout in self.spouts if spout not in self.arriving]
        return tuple(dict.fromkeys(read))

    @property
    def by_slices(self) -> bool:
        """Return whether the flow runs slice by slice alone, each after the same slice of another flow's table.

        A stream of such a table would miss a slice that a backfill replaces.
        """
        return self.partitions is not None and bool(self.upstream)

    def key_of(self, spout: nodes.SpoutNode) -> dg.AssetKey:
        """Return the asset key that a spout reads: a table of the lake, or what arrives for its stream."""
        table, lake = place_of(spout.source.inner.path or ""), place_of(stored_path(self.settings.lake))
        key_maker = {lake / "states": state_key, lake / "channels": channel_key}.get(table.parent)
        return key_maker(table.name) if key_maker else source_key(spout.stream)

    def upstream_table(self, lake: Lake, key: dg.AssetKey) -> StateTable:
        """Return the other flow's table behind a key of `upstream`, whether it exists or not."""
        name = key.path[-1]
        return lake.table(lake.state_path(name) if key == state_key(name) else lake.channel_path(name), name)

    @cached_property
    def keys(self) -> Mapping[str, dg.AssetKey]:
        """The assets of the flow's streams and tables, by name; a table's own where both have one name."""
        streams = {spout.stream: self.key_of(spout) for spout in self.spouts}
        return {**{name: table_key(node) for name, node in self.writers.items()}, **streams}

    def table(self, lake: Lake, name: str) -> StateTable:
        """Return a state or a channel of the flow."""
        return lake.written_by(self.writers[name])

    def sources_of(self, table: str) -> list[dg.AssetKey]:
        """List the assets that a table is made from: streams, channels, and the states that it queries.

        Not those that are made of the table itself: a query reads what is there, whoever comes first.

        Raises:
            DefinitionError: A table of the flow is read to make itself.
        """
        return list(self._sources[table_key(self.writers[table])])

    @cached_property
    def _sources(self) -> dict[dg.AssetKey, list[dg.AssetKey]]:
        sources = {table_key(node): self._read_for(node) for node in self.writers.values()}
        for key, read in sources.items():
            if any(reaches(sources, source, key) for source in read):
                raise DefinitionError(f'flow "{self.name}": its table "{key.path[-1]}" is read to make itself')
        for node in self.writers.values():
            read = sources[table_key(node)]
            for key in self._queried_for(node):
                if key not in read and key not in self.unordered and not reaches(sources, key, table_key(node)):
                    read.append(key)
        return sources

    def _read_for(self, writer: nodes.PersistNode) -> list[dg.AssetKey]:
        keys: list[dg.AssetKey] = []
        for node in self.topology.graph.ancestors(writer.id):
            if isinstance(node, nodes.ChannelSpoutNode):
                keys += map(channel_key, node.reads)
            elif isinstance(node, nodes.SpoutNode):
                keys.append(self.key_of(node))
        return list(dict.fromkeys(keys))

    def _queried_for(self, writer: nodes.PersistNode) -> list[dg.AssetKey]:
        above = self.topology.graph.ancestors(writer.id)
        return [state_key(node.state) for node in above if isinstance(node, nodes.StateQueryNode)]

    @cached_property
    def queried(self) -> frozenset[dg.AssetKey]:
        """The states that the flow's tables query, its own and others'."""
        return frozenset(key for node in self.writers.values() for key in self._queried_for(node))

    @cached_property
    def partitions(self) -> dg.DailyPartitionsDefinition | None:
        """One partition per day, or None for a flow that is not sliced."""
        slices = self.spec.slices
        if slices is None:
            return None
        # Dagster's end is the first day that is no longer a partition; behind the last day of all there is none.
        end = None if slices.end is None or slices.end == type(slices.start).max else slices.end.toordinal() + 1
        return dg.DailyPartitionsDefinition(
            start_date=slices.start.isoformat(),
            end_date=None if end is None else type(slices.start).fromordinal(end).isoformat(),
        )

    @cached_property
    def gate_checks(self) -> tuple[GateCheck, ...]:
        """The checks of all gates. A check is shown at one table: the rows behind the gate, else the first state there."""
        checks: list[GateCheck] = []
        for node in self.topology.graph:
            if not isinstance(node, nodes.GateNode):
                continue
            behind = [n for n in self.topology.graph.descendants(node.id) if isinstance(n, nodes.PersistNode)]
            # Neither late rows nor what is on its way are what somebody looks at first.
            behind.sort(
                key=lambda n: (
                    isinstance(n, nodes.LatePersistNode),
                    isinstance(n, nodes.ChannelNode),
                    bool(n.aggregations),
                )
            )
            if behind:
                gate, shown_at = node.gate, table_key(behind[0])
                names = tuple(check.name for check in gate.checks)
                checks += [GateCheck(gate.name, check, shown_at, names) for check in gate.checks]
        return tuple(checks)

    @cached_property
    def suites(self) -> Mapping[str, Gate]:
        """The suites on whole tables, by state; as gates, so that every check has a name of its own."""
        return {state: Gate("suite", checks) for state, checks in self.spec.suites.items() if checks}

    def table_metadata(self, name: str) -> dict[str, Any]:
        """Return what is known of a table before anything ran."""
        from pipelines.state.lake import Lake

        path = Lake(self.settings.lake).path_written_by(self.writers[name])
        return table_metadata.definition_metadata(name, path, self.plan.lineage[name], self.drawn_plan)

    def event_metadata(self, name: str, schema: dg.TableSchema) -> dict[str, Any]:
        """Return the metadata of each event of a table, without the plan: the table's page shows it, and events are many."""
        own = {key: value for key, value in self.table_metadata(name).items() if key != "plan"}
        lineage = table_metadata.column_lineage(self.plan.lineage[name], self.keys)
        return {"dagster/column_schema": schema, "dagster/column_lineage": lineage, **own}

    def materialization(self, name: str, slice_: str | None, metadata: Mapping[str, Any]) -> dg.AssetMaterialization:
        """Report what a commit has written: all of it, or one slice.

        Args:
            slice_: The slice; one that is no partition of the flow is named in the metadata alone.
            metadata: With `delta_version`.
        """
        known = slice_ is not None and self.partitions is not None and self.partitions.has_partition_key(slice_)
        return dg.AssetMaterialization(
            table_key(self.writers[name]),
            partition=slice_ if self.partitions is None or known else None,
            metadata=metadata if slice_ is None else {"slice": slice_, **metadata},
            tags={"dagster/data_version": f"delta-{metadata['delta_version']}"},
        )

    @cached_property
    def drawn_plan(self) -> dg.MarkdownMetadataValue:
        """The plan with its bolts as a picture. `tridelta plan FLOW --mermaid` has it as text."""
        return table_metadata.plan_metadata(self.plan.to_svg())

    @cached_property
    def description(self) -> str:
        """Describe the flow: the catalog's text, and the docstring of the function that defines it."""
        said = inspect.getdoc(self.spec.build) if inspect.isfunction(self.spec.build) else None
        return "\n\n".join(text for text in (self.spec.description, said) if text)
