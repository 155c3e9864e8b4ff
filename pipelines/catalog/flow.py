"""An entry of the catalog: everything that a deployment needs beside the topology itself. Plain data."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from keyword import kwlist
from pathlib import Path
from typing import Any

from pipelines.catalog.own_code import own_code
from pipelines.errors import DefinitionError, FieldError
from pipelines.flowmix import Flow
from pipelines.flowmix.compile import as_topology
from pipelines.graph.fields import checked_name
from pipelines.graph.nodes import ChannelNode
from pipelines.places.location import Place
from pipelines.quality import Check
from pipelines.quality.gate import is_within
from pipelines.surroundings import PROJECT as PROJECT
from pipelines.surroundings import any_folder, expanded, home_folder
from pipelines.trident import TridentTopology

FUNCTIONS = ()


LAKE = "TRIDELTA_LAKE"
"""The setting that names a lake outside the home."""

_UNOFFERED = "mro"
"""What no Python enum has as a member: Dagster's forms offer flows, states and gates as members of one."""
_RESERVED = frozenset(
    "arg_dict bool conf config context dict float input input_arg_dict int meta output output_arg_dict str type".split()  # noqa: SIM905
) | {*kwlist, _UNOFFERED}
"""What Dagster takes for the name of no asset (its DISALLOWED_NAMES)."""
_TAG = re.compile(r"([A-Za-z0-9_.-]{1,63}/|dagster/kind/)?[A-Za-z0-9_.-]{1,63}")
_TAG_VALUE = re.compile(r"[A-Za-z0-9_.-]{0,63}")
_OWNER = re.compile(r"team:.+|[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}")
"""What Dagster takes for a tag, and for an owner."""


@dataclass(frozen=True)
class FlowSettings:
    """The folders of a deployment: `lake/`, `data/` and `dagster/` under one home.

    Args:
        home: The folder of this host.
        lake_root: The lake, where it is not `lake/` under the home: a folder, or one of S3 (`s3://bucket/lake`).
    """

    home: Path
    lake_root: str = ""

    @classmethod
    def from_environment(cls) -> FlowSettings:
        """Return the home that TRIDELTA_HOME names, else `.tridelta` in the project; the lake that TRIDELTA_LAKE names.

        Raises:
            RemoteLocationError, LocationError: One of them is where it cannot be.
            FileAccessError: `~name` of nobody.
        """
        lake = os.environ.get(LAKE, "")
        if lake:
            place = any_folder(lake, f"the lake ({LAKE})")
            lake = str(expanded(place, LAKE) if isinstance(place, Path) else place)
        return cls(home_folder(), lake)

    @property
    def lake(self) -> Place:
        """Root of the lake."""
        return any_folder(self.lake_root, f"the lake ({LAKE})") if self.lake_root else self.home / "lake"

    @property
    def data(self) -> Path:
        """Return the folder in which files arrive."""
        return self.home / "data"

    @property
    def dagster(self) -> Path:
        """DAGSTER_HOME."""
        return self.home / "dagster"


@dataclass(frozen=True)
class DailySlices:
    """The days that a flow's states are sliced by: from `start` up to and with `end`; None means that days keep coming.

    Args:
        start: the first day.
        end: the last one.
        days_a_run: how many days a run of a backfill makes; 1: each has a run of its own. None: all in one, which
            starts Spark once and reads the source once.
    """

    start: date
    end: date | None = None
    days_a_run: int | None = None

    def __post_init__(self) -> None:
        if self.days_a_run is not None and self.days_a_run < 1:
            raise DefinitionError(f"days_a_run is {self.days_a_run}: a run of a backfill makes a day or more")

    def check(self, flow: str) -> None:
        """See that the days are days, from the first to the last. Raises DefinitionError."""
        for what, day in (("start", self.start), ("end", self.end)):
            # A datetime is a date to Python, and no day; years of fewer digits are written otherwise from host to host.
            if (day is not None or what == "start") and (type(day) is not date or day.year < 1000):
                raise DefinitionError(
                    f'flow "{flow}": the {what} of its slices is a date from the year 1000 on, not {day!r}'
                )
        if self.end is not None and self.end < self.start:
            raise DefinitionError(
                f'flow "{flow}": its slices go from {self.start} to {self.end}: the first is after the last'
            )

    def between(self, first: str, last: str) -> list[str]:
        """Return the days from `first` up to and with `last`.

        Raises:
            DefinitionError: if one is not a day of the flow, or they are in the wrong order.
        """
        begin, stop = self._day(first), self._day(last)
        if begin > stop:
            raise DefinitionError(f"no days between {first} and {last}: the first is after the last")
        return [(begin + timedelta(days=n)).isoformat() for n in range((stop - begin).days + 1)]

    def _day(self, text: str) -> date:
        try:
            day = date.fromisoformat(text)
        except ValueError:
            raise DefinitionError(f"not a day: {text!r}; write it as {self.start.isoformat()}") from None
        # Today where it is earliest: days are those of the data, whose zone is not known.
        latest = self.end or (datetime.now(UTC) + timedelta(hours=14)).date()
        if not self.start <= day <= latest:
            until = self.end.isoformat() if self.end else "today"
            raise DefinitionError(f"{text} is not a slice of this flow; they go from {self.start} to {until}")
        return day


@dataclass(frozen=True)
class Ranking:
    """The order and the number of rows in which a table of results is shown."""

    by: str
    rows: int = 20
    ascending: bool = False


@dataclass(frozen=True)
class QueryAsset:
    """A question to the states of a flow whose answer is kept as an asset.

    Either `query` names a query stream of the topology, asked with each of `args`; or `state` names a state, read whole.

    Args:
        name: the asset's name, `[a-z][a-z0-9_]*`.
        description: what it answers, one sentence.
        reads: the states that it reads.
        query: a query stream, or None.
        args: argument tuples for the query stream.
        ranking: how the answer is ordered and cut.
    """

    name: str
    description: str
    reads: tuple[str, ...]
    query: str | None = None
    args: tuple[tuple[Any, ...], ...] = ()
    ranking: Ranking | None = None

    def __post_init__(self) -> None:
        checked_name("query asset", self.name)
        if self.query is None and len(self.reads) != 1:
            raise DefinitionError(
                f'query asset "{self.name}" reads {list(self.reads)}: without a query it reads one state'
            )


@dataclass(frozen=True)
class FlowSpec:
    """A flow of the catalog.

    Args:
        name: the flow's name, which is its topology's too.
        description: what it does, for the people who find it in the UI.
        build: makes the topology, or an event flow. Called when definitions load: it starts nothing and reads nothing.
        slices: the days of its states, or None for a flow that is not sliced.
        queries: answers that are kept as assets.
        suites: checks on whole tables, by state.
        owners: e-mail addresses or `team:name`.
        tags: labels for the UI.
    """

    name: str
    description: str
    build: Callable[[FlowSettings], TridentTopology | Flow]
    slices: DailySlices | None = None
    queries: tuple[QueryAsset, ...] = ()
    suites: Mapping[str, tuple[Check, ...]] = field(default_factory=dict)
    owners: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checked_name("flow", self.name)

    def topology(self, settings: FlowSettings | None = None) -> TridentTopology:
        """Return the flow's topology, with the settings of the environment unless others are given.

        Raises:
            DefinitionError: if the topology does not fit what the catalog says of it.
            FlowCodeError: if the function that builds it fails.
        """
        chosen = settings or FlowSettings.from_environment()
        with own_code(f'flow "{self.name}": its build function'):
            built = self.build(chosen)
        if built is None:
            raise DefinitionError(
                f'flow "{self.name}": its build function returns nothing; return the topology or the flow'
            )
        made = as_topology(built)
        states = {node.state.name: node.fields for node in made.persists if not isinstance(node, ChannelNode)}
        if made.name != self.name:
            raise DefinitionError(f'flow "{self.name}" builds a topology named "{made.name}"; give both one name')
        self._check_names(states)
        asked = [(f'query asset "{question.name}"', name) for question in self.queries for name in question.reads]
        asked += [("the suite", name) for name in self.suites]
        for what, state in asked:
            if state not in states:
                raise DefinitionError(
                    f'flow "{self.name}": {what} is about state "{state}"; the topology has: {", ".join(sorted(states))}'
                )
        self._check_columns(states)
        return made

    def check_for_dagster(self, names: Iterable[tuple[str, str]]) -> None:
        """See that Dagster takes the flow's names, owners, tags and days: what is deployed runs on without.

        Args:
            names: what the flow has of states, query assets and gates: the kind, and the name.

        Raises:
            DefinitionError: it does not.
        """
        if self.name == _UNOFFERED or (self.slices is not None and self.name == "relaunch"):
            raise DefinitionError(f'flow "{self.name}": Dagster or the project has something of this name')
        for what, name in names:
            if name == _UNOFFERED or (what != "gate" and name in _RESERVED):
                raise DefinitionError(
                    f'flow "{self.name}": Dagster has something named "{name}"; give the {what} another name'
                )
        for owner in self.owners:
            if not _OWNER.fullmatch(owner):
                raise DefinitionError(
                    f'flow "{self.name}": the owner {owner!r} is neither an e-mail address nor team:NAME'
                )
        for key, value in self.tags.items():
            if not _TAG.fullmatch(key) or not _TAG_VALUE.fullmatch(value):
                raise DefinitionError(
                    f'flow "{self.name}": the tag {key!r}: {value!r} is not one of Dagster',
                    hint="letters, digits, _ . and -, up to 63 of them; the key may have a prefix as team/",
                )
        if self.slices is not None:
            self.slices.check(self.name)

    def _check_names(self, states: Mapping[str, object]) -> None:
        """See that each answer has a name of its own: it is an asset beside those of the states."""
        names = [question.name for question in self.queries]
        for name in names:
            for fault, said in (
                (name in states, "has the name of a state"),
                (names.count(name) > 1, "is there twice"),
            ):
                if fault:
                    raise DefinitionError(f'flow "{self.name}": the query asset "{name}" {said}')

    def _check_columns(self, states: Mapping[str, Sequence[str]]) -> None:
        """See that suites and rankings name columns that their states have: else it shows after the first commit."""
        missing = [
            (f'the suite of "{state}": {check.name}', column, states[state])
            for state, checks in self.suites.items()
            for check in checks
            for column in check.fields
            if not is_within(column, states[state])
        ]
        missing += [
            (f'the ranking of "{question.name}": by', question.ranking.by, states[question.reads[0]])
            for question in self.queries
            if question.ranking is not None and question.query is None
            if question.ranking.by not in states[question.reads[0]]
        ]
        for what, column, columns in missing:
            raise FieldError(what, column, columns, where="the state has")
