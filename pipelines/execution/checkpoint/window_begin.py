"""The place of the files of a checkpoint's windows, and those of them that say where the windows began and were ended.

Windows that ran here and have not ended run in the batch; what their batches leave is in `window_files`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pipelines.errors import DefinitionError, TrideltaError
from pipelines.execution.checkpoint.durable import sync
from pipelines.places.location import Location, Place, put_whole

if TYPE_CHECKING:
    from pipelines.execution.checkpoint.engine_files import Checkpoint

FOLDER: Final = "windows"
"""Beside Spark's checkpoint: the files of the windows that run in the batch."""
_BEGUN: Final = "begun-"
"""Begins the name of the file that says with which txid the windows began (`Begun`)."""
_ENDED: Final = "ended"
"""The file that says that a changed definition has no windows here any more: what records name is no longer needed."""

LET_BEGIN: Final = (
    'let the changed windows begin empty (changed_windows="begin", `tridelta run FLOW --changed-windows begin`)'
)
"""What an operator can do where a definition was changed on purpose."""


class WindowStateError(TrideltaError):
    """The state that a batch has to begin with cannot be had; nothing was run."""

    def __init__(self, name: str, problem: str, *, hint: str | None = None) -> None:
        self.name, self.problem = name, problem
        otherwise = (
            "bring the file back from a backup of the checkpoint; or begin with empty windows: move the flow's checkpoint away "
            'and run it with on_fresh_checkpoint="reset" (empties its states and starts over) or "continue"'
        )
        super().__init__(f"the state of the windows, {name}, {problem}", hint=hint or otherwise)

    @classmethod
    def of_lost(cls, flow: str, query: str) -> WindowStateError:
        """Return the error of a folder that is lost, or of the file in it that says where the windows began."""
        hint = (
            "bring the folder back from a backup of the checkpoint; or move the checkpoint away and begin with "
            'on_fresh_checkpoint="reset"'
        )
        what = f"of the stream {query} in flow {flow}"
        return cls(what, "is not there, and the checkpoint has run batches", hint=hint)


class WindowPlaceError(DefinitionError):
    """Windows of a stream would go over to its batch, or from there to a channel, and begin empty; nothing was run.

    Args:
        in_batch: whether they are to run in the batch now.
        reason: why what they hold on a channel cannot be taken over.
        hint: what to do about it.
    """

    def __init__(
        self, flow: str, query: str, *, in_batch: bool, reason: str | None = None, hint: str | None = None
    ) -> None:
        self.flow, self.query, self.in_batch, self.reason = flow, query, in_batch, reason
        if in_batch:
            problem = "are to run in its batch, where they would begin empty: " + (
                reason or "its checkpoint has run without them"
            )
            begin = (
                f'{LET_BEGIN}; define the flow with windows="channels", or give it another name; if the folder "windows" of '
                "the checkpoint is lost, bring it back from a backup"
            )
            # To begin empty does not help what would go over: it is refused as it is now.
            stay = (
                'define the flow with windows="channels" (windows that were changed, too: change them there first, or once they '
                "have gone over), or give it another name"
            )
            hint = hint or (stay if reason else begin)
        else:
            problem = "ran in its batch, and the flow has none there now: on a channel they would begin empty"
            hint = 'define the flow with windows="batch" and its former window again, or give it another name'
        super().__init__(
            f'flow "{flow}": the windows of its query "{query}" {problem}',
            hint=f'{hint}; or start over: remove its checkpoints and run it with on_fresh_checkpoint="reset"',
        )


class StateFiles(ABC):
    """The place of the files: a folder, or what an object store has under a prefix. A file never changes."""

    def __init__(self, folder: Place) -> None:
        self._folder = folder

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Write a new file. When this returns the file is whole and outlives the machine; else there is none of the name."""

    def read(self, name: str) -> bytes:
        """Return a file's bytes; FileNotFoundError if there is none."""
        return (self._folder / name).read_bytes()

    def names(self) -> list[str]:
        """Return the names of all files, and of what writers have left that did not come to an end."""
        return sorted(file.name for file in self._folder.iterdir())

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        (self._folder / name).unlink(missing_ok=True)

    @abstractmethod
    def settle(self) -> None:
        """Wait until what was removed outlives the machine as removed."""


class StateFolder(StateFiles):
    """Files of state in a folder of this host."""

    _folder: Path

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._known: set[Path] = set()

    def write(self, name: str, data: bytes) -> None:
        file = self._folder / name
        put_whole(file, data)
        sync([file], self._folder.parent, self._known)

    def settle(self) -> None:
        sync([self._folder], self._folder.parent, self._known)

    def names(self) -> list[str]:
        return super().names() if self._folder.is_dir() else []


class StateObjects(StateFiles):
    """Files of state on an object store, which keeps what it has taken."""

    _folder: Location

    def write(self, name: str, data: bytes) -> None:
        file = self._folder / name
        # A file never changes: one that stood still must not put its own in the place of what a record names by now.
        if file.store.put_if_absent(file.key, data) is None and file.read_bytes() != data:
            raise FileExistsError(str(file))

    def settle(self) -> None:
        pass


def state_files(checkpoint: Place) -> StateFiles:
    """Return the files of a checkpoint's windows."""
    folder = checkpoint / FOLDER
    return StateObjects(folder) if isinstance(folder, Location) else StateFolder(folder)


@dataclass(frozen=True)
class StateRef:
    """A reference of a batch's record to the state behind it: the file, and the hash of its bytes (hex)."""

    file: str
    hash: str

    def to_json(self) -> dict[str, str]:
        return asdict(self)

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> StateRef:
        return cls(str(value["file"]), str(value["hash"]))


@dataclass(frozen=True)
class Begun:
    """The beginning of the windows of a checkpoint.

    Attributes:
        txid: of the first batch; batches below it are of an earlier checkpoint.
        state: the state that they took over from a channel; None: they began empty.
        clocks: with it the watermark of each origin, in ms.
        former: the state of the definition before, while no batch has come behind this one: it may come back.
    """

    txid: int
    state: StateRef | None = None
    clocks: Mapping[str, int] = field(default_factory=dict)
    former: StateRef | None = None

    @property
    def first(self) -> int:
        """Return the txid of the first batch behind which they hold anything: what they took over is of the batch before."""
        return self.txid if self.state is None else self.txid - 1

    def to_bytes(self) -> bytes:
        """Return the bytes of its file; none where nothing was held."""
        if self.state is None:
            return b""
        taken = {"txid": self.txid, "state": self.state.to_json(), "clocks": dict(self.clocks)}
        if self.former is not None:
            taken["former"] = self.former.to_json()
        return json.dumps(taken).encode()

    def write(self, files: StateFiles) -> None:
        """Write it down: from then on the windows run in the batch."""
        own = f"{_BEGUN}{self.txid}"
        files.write(own, self.to_bytes())
        for name in files.names():
            if name == _ENDED or (name.startswith(_BEGUN) and name != own):
                files.remove(name)

    @classmethod
    def of(cls, files: StateFiles) -> Begun | None:
        """Return what was written; None: the windows of this checkpoint never ran in its batch."""
        # Two of them: whoever wrote the later one was cut off before it could remove the other.
        names = [name for name in files.names() if name.startswith(_BEGUN)]
        return cls.read(files, max(names, key=_begun_txid)) if names else None

    @classmethod
    def read(cls, files: StateFiles, name: str) -> Begun:
        """Read one of its files."""
        data, txid = files.read(name), _begun_txid(name)
        if not data:
            return cls(txid)
        try:
            taken = json.loads(data)
            if taken.keys() == {"txid"}:
                return cls(int(taken["txid"]))
            clocks = {str(origin): int(clock) for origin, clock in taken["clocks"].items()}
            former = StateRef.of_json(taken["former"]) if "former" in taken else None
            return cls(int(taken.get("txid", txid)), StateRef.of_json(taken["state"]), clocks, former)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise WindowStateError(name, "is damaged: it does not name the state that the windows began with") from None


def _begun_txid(name: str) -> int:
    return int(name.removeprefix(_BEGUN)) if name.startswith(_BEGUN) else 0


def is_elsewhere(checkpoint: Checkpoint, in_batch: bool) -> bool:
    """Check whether a checkpoint was run with windows in another place than now, in the batch or not."""
    begun = any(name.startswith(_BEGUN) for name in state_files(checkpoint.folder).names())
    return not begun and checkpoint.epoch is not None if in_batch else begun


def end_all(files: StateFiles, last: Begun) -> None:
    """Say that a changed definition has no windows in the batch any more; what they held stays, for they may come back.

    Args:
        last: names the state behind their last batch; without a state where they began, and held nothing.
    """
    # One is there where an earlier end was cut off before its last step, and the windows ran on.
    files.remove(_ENDED)
    # The name does not say the txid: without it the records of an earlier checkpoint would count.
    files.write(_ENDED, last.to_bytes() or json.dumps({"txid": last.txid}).encode())
    for name in files.names():
        if name.startswith(_BEGUN):
            files.remove(name)


def ended_in(files: StateFiles) -> Begun | None:
    """Return with what the windows that ran here were ended by a changed definition; None: they were not."""
    return Begun.read(files, _ENDED) if _ENDED in files.names() else None
