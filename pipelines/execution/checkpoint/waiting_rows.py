"""Rows that wait for the watermark and make a batch fail: whoever skips that batch leaves them out of the windows, too.

They are in the state with which the batch begins, which a skip leaves as it is: each later batch would fail by them. Two files
beside the states tell of them. `waiting-TXID` says that an attempt failed by them, also without the batch's own rows.
`released-TXID` says that the batch was left out and that quarantine has them: the state counts as one without them from then on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from pipelines.errors import TrideltaError
from pipelines.graph import events

if TYPE_CHECKING:
    import pyarrow as pa

    from pipelines.execution.checkpoint.engine_files import Checkpoint
    from pipelines.execution.checkpoint.window_begin import StateFiles

_BLAMED: Final = "waiting-"
_RELEASED: Final = "released-"
_NAME = re.compile(rf"^(?:{_BLAMED}|{_RELEASED})(\d+)$")


@dataclass(frozen=True)
class Waiting:
    """Rows that wait in a state.

    Attributes:
        state: its file.
        clock: up to which they are meant, in ms.
        attempt: the one that failed by them.
        plan: the digest of its plan; None: not known.
        former: the file of the state of the definition before, where `state` is the one that a changed definition began with: it
            may come back, and has the same rows; None: there is none.
    """

    state: str
    clock: int
    attempt: int
    plan: str | None
    former: str | None = None


class WaitingRows:
    """The rows that wait in the states of a query's windows and make batches fail, as far as files tell of them."""

    def __init__(self, files: StateFiles) -> None:
        self._files = files
        # Asked for by each batch, and written by this process alone while it holds the checkpoint.
        self._released: dict[int, Waiting] | None = None
        self.still_held: Callable[[], None] | None = None
        """Raises where this process holds the checkpoint no longer: whoever does may have read the files, and goes by them."""

    def blame(self, txid: int, waiting: Waiting | None) -> None:
        """Note by which rows that wait an attempt at a batch has failed; None: by none."""
        self._put(f"{_BLAMED}{txid}", waiting)

    def failed(self, txid: int, attempt: int) -> None:
        """Note that an attempt at a batch has failed: unless it was blamed itself, no earlier one counts any more."""
        waiting = self._of(f"{_BLAMED}{txid}")
        if waiting is not None and waiting.attempt != attempt:
            self.blame(txid, None)

    def blamed(self, txid: int, attempts: range, plan: str | None) -> Waiting | None:
        """Return by which rows that wait the last attempt has failed that came to an end; None: by none, as far as it is known.

        Args:
            attempts: in which a process may have died since.
        """
        waiting = self._of(f"{_BLAMED}{txid}")
        return waiting if waiting is not None and waiting.attempt in attempts and waiting.plan == plan else None

    def release(self, txid: int, waiting: Waiting | None) -> None:
        """Note which rows were left out with a batch; None: none were, whatever was noted of an earlier plan of it."""
        released = self._all_released()
        if released.get(txid) == waiting:
            return
        self._put(f"{_RELEASED}{txid}", waiting)
        if waiting is None:
            # The next batch may begin with the same state: a note that came back would take rows from it that nothing else has.
            self._files.settle()
        released.pop(txid, None)
        if waiting is not None:
            released[txid] = waiting

    def take_back(self, since: int, checkpoint: Checkpoint) -> None:
        """Let what was left out with batches from a txid on count as the windows' again: Spark has not marked them as done.

        Args:
            checkpoint: this process holds it.
        """
        for txid in self.released_since(since):
            checkpoint.still_held()
            self.release(txid, None)

    def released_since(self, txid: int) -> list[int]:
        """Return the txids from one on with which rows were left out."""
        return sorted(of for of in self._all_released() if of >= txid)

    def left(self, state: str, pending: pa.Table | None, below: int | None = None) -> pa.Table | None:
        """Return what waits in a state without what was left out of it.

        Args:
            below: by batches before this txid; None: by any.
        """
        own = [
            one.clock
            for txid, one in self._all_released().items()
            if state in (one.state, one.former) and (below is None or txid < below)
        ]
        if pending is None or not own:
            return pending
        kept = pending.filter(pc.greater(pending[events.CLOCK], max(own)))
        return kept if kept.num_rows else None

    def clear(self, names: list[str], txid: int) -> None:
        """Remove what is known of batches up to one whose state is there: no batch begins with one below it any more."""
        for name in names:
            found = _NAME.match(name)
            if found and int(found[1]) <= txid:
                self._files.remove(name)
                self._all_released().pop(int(found[1]), None)

    def _all_released(self) -> dict[int, Waiting]:
        if self._released is None:
            named = [name for name in self._files.names() if name.startswith(_RELEASED) and _NAME.match(name)]
            read = {int(name.removeprefix(_RELEASED)): self._of(name) for name in named}
            # A note that is gone may be gone in memory alone: who took it back may have died before it could ask for that.
            self._files.settle()
            self._released = {txid: waiting for txid, waiting in read.items() if waiting is not None}
        return self._released

    def _put(self, name: str, waiting: Waiting | None) -> None:
        # Of a file that never changes there is none for a moment: the batch is still to be tried, or left out, by then.
        if self.still_held is not None:
            self.still_held()
        self._files.remove(name)
        if waiting is not None:
            self._files.write(name, json.dumps(asdict(waiting)).encode())

    def _of(self, name: str) -> Waiting | None:
        try:
            values: Mapping[str, Any] = json.loads(self._files.read(name))
            state, former = str(values["state"]), values.get("former")
            return Waiting(state, int(values["clock"]), int(values["attempt"]), values["plan"], former)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise TrideltaError(
                f"the file {name} of the windows is damaged: it does not name events that waited for the watermark",
                hint="bring it back from a backup of the checkpoint",
            ) from None
