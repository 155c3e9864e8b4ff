"""The lake: the root under which all tables, checkpoints and quarantines live."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.bounds import OutOfBoundsError, switch
from pipelines.errors import DefinitionError, UnknownStateError
from pipelines.graph import nodes
from pipelines.graph.fields import checked_name, is_name
from pipelines.places.location import Location, LocationError, Place, on_disk
from pipelines.places.store import keep
from pipelines.state.delta_log import has_log
from pipelines.surroundings import any_folder, refuse_unless_folder

if TYPE_CHECKING:
    from pipelines.state.table import StateTable


DURABLE = "TRIDELTA_DURABLE"
"""The setting by which a lake is durable: `1`, `true`, `yes` or `on`."""
_ENCODED = re.compile("%[0-9A-Fa-f]{2}")
_UNWRITTEN = re.compile(r"[\^|\[\]\\\x00-\x1f\x7f]")
"""At the first four delta-rs panics when it writes; the others are of no name that it knows."""


def _is_on(text: str) -> bool:
    try:
        return switch(text)
    except OutOfBoundsError as error:
        raise DefinitionError(f"{DURABLE} {error}") from None


class Lake:
    """The folder of all that a deployment keeps.

    ```
    <root>/states/<state>            Delta tables of states
    <root>/channels/<channel>        Delta tables that lead from one query of a flow to another
    <root>/quarantine/<flow>         Delta table of the rows that a flow rejected
    <root>/quarantine/<flow>.replays  what of it was replayed, and when
    <root>/checkpoints/<flow>/<group>  Spark's checkpoint, the epoch, stored attempts, locks
    <root>/replaced/<flow>             Spark's checkpoints that others have taken the place of
    <root>/copies/<flow>/<group>       copies of Spark's checkpoints, made before their state was repartitioned
    ```

    Args:
        root: a local folder, as a path or a `file:` URL, created on first use; or a folder of S3 or HDFS
            (`s3://bucket/lake`, `hdfs://namenode:8020/lake`; docs/object-stores.md).
        channels: the folder of the channels; None: `channels` in the root. A bounded run has its own.
        durable: whether a finished batch is on the disk, so that it outlives a loss of power; None: as TRIDELTA_DURABLE says,
            else not. docs/faults.md tells what holds without it, and what it costs.
    """

    def __init__(self, root: str | Place, *, channels: str | Place | None = None, durable: bool | None = None) -> None:
        self.root = _absolute(any_folder(root, "the lake"))
        refuse_unless_folder(self.root, "the lake")
        if isinstance(self.root, Location):
            keep(self.root.bucket, self.root.key)
        self.durable = _is_on(os.environ.get(DURABLE, "")) if durable is None else durable
        self._channels = _absolute(any_folder(channels, "channels")) if channels else self.root / "channels"
        self._tables: dict[Place, StateTable] = {}

    @property
    def folder(self) -> Path:
        """Return the root of a lake on this host.

        Raises:
            RemoteLakeError: it is on a store, and what asks does not work there.
        """
        return on_disk(self.root)

    def states(self) -> list[str]:
        """List the states that the lake holds."""
        return tables_in(self.root / "states")

    def state(self, name: str) -> StateTable:
        """Return the state of this name.

        Raises:
            UnknownStateError: if the lake does not hold it.
        """
        return self._existing(self.table(self.state_path(name), name), self.states)

    def channels(self) -> list[str]:
        """List the channels that the lake holds."""
        return tables_in(self._channels)

    def channel(self, name: str) -> StateTable:
        """Return the channel of this name.

        Raises:
            UnknownStateError: if the lake does not hold it.
        """
        return self._existing(self.table(self.channel_path(name), name), self.channels)

    def tables_of(self, flow: str) -> Iterator[StateTable]:
        """Yield the states and channels that a flow has written. Whose a damaged one is, is unknown."""
        return (table for table in self.tables() if table.flow == flow)

    def tables(self) -> Iterator[StateTable]:
        """Yield the states and channels, damaged ones and those that were only half made, too."""
        yield from (self.table(self.state_path(name), name) for name in self.states())
        yield from (self.table(self.channel_path(name), name) for name in self.channels())

    def written_by(self, node: nodes.PersistNode) -> StateTable:
        """Return the table that a node of a topology commits into, a state or a channel, whether it exists or not."""
        return self.table(self.path_written_by(node), node.state.name)

    def path_written_by(self, node: nodes.PersistNode) -> Place:
        """Return the folder of the table that a node of a topology commits into."""
        name = node.state.name
        return self.channel_path(name) if isinstance(node, nodes.ChannelNode) else self.state_path(name)

    def quarantine(self, flow: str) -> StateTable:
        """Return the rows that a flow rejected: stage, rule, reason, row (JSON text), file, stream, batch_group.

        Raises:
            UnknownStateError: if the flow has none.
        """
        return self._existing(self.table(self.quarantine_path(flow), f"quarantine of {flow}"), list)

    def _existing(self, table: StateTable, known: Callable[[], list[str]]) -> StateTable:
        if not table.exists():
            raise UnknownStateError(table.name, known(), str(self.root))
        return table

    def table(self, path: Place, name: str) -> StateTable:
        """Return the handle of a table, kept, whether it exists or not."""
        if path not in self._tables:
            # Late: who only asks where a table lies does not wait for pyarrow.
            from pipelines.state.table import StateTable

            refuse_unless_folder(path, f'the table of "{name}"')
            self._tables[path] = StateTable(name, path)
        return self._tables[path]

    def state_path(self, name: str) -> Place:
        return self.root / "states" / checked_name("state", name)

    def channel_path(self, name: str) -> Place:
        return self._channels / checked_name("channel", name)

    def with_channels(self, folder: Place) -> Lake:
        """Return the same lake with its channels elsewhere."""
        return Lake(self.root, channels=folder, durable=self.durable)

    def quarantine_path(self, flow: str) -> Place:
        return self.root / "quarantine" / checked_name("flow", flow)

    def checkpoint_path(self, flow: str, group: str) -> Place:
        return self.root / "checkpoints" / checked_name("flow", flow) / checked_name("batch group", group)

    def __repr__(self) -> str:
        return f"Lake({str(self.root)!r})"


def _absolute(place: Place) -> Place:
    """Return a place that does not depend on the working directory.

    Raises:
        LocationError: delta-rs would write the first commit there, and read it elsewhere.
    """
    if isinstance(place, Location):
        return place
    with suppress(ValueError):  # A zero byte.
        folder = os.path.realpath(place)
        if encoded := _ENCODED.search(folder):
            problem = f"delta-rs reads {encoded[0]} as another character"
            raise LocationError(folder, problem, hint="name a folder without it")
    return place.absolute()


def refuse_unwritten(place: Place) -> None:
    """Refuse to write where delta-rs can make no commit. It may read there: a lake that was moved is read on.

    Raises:
        LocationError
    """
    path = str(place) if isinstance(place, Location) else os.path.realpath(place)
    if odd := _UNWRITTEN.search(path):
        problem = f"delta-rs writes no table in a folder with {odd[0]!r} in its path; nothing was written"
        raise LocationError(path, problem, hint="name a folder without it")


def tables_in(folder: Place, what: str = "the lake's tables") -> list[str]:
    """Return the names of the engine's tables in a folder of a lake."""
    refuse_unless_folder(folder, what)
    if not folder.is_dir():
        return []
    # What somebody else has put there under a name that no table of the engine's has is not the engine's.
    return sorted(path.name for path in folder.iterdir() if is_name(path.name) and has_log(path))
