"""State of windows as files that are written once and named by the records of the batches that they belong to (docs/adr/0054).

A file holds what a batch has left: the windows, whole or as the keys that have changed since files that it names, the rows that
wait for the clock, and the results. What a record does not name is of a batch that never was, and nobody reads it.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.errors import NotTextError
from pipelines.execution.checkpoint.waiting_rows import WaitingRows
from pipelines.execution.checkpoint.window_begin import LET_BEGIN, StateFiles, StateRef, WindowStateError
from pipelines.execution.protocol.failures import comes_of_rows
from pipelines.graph import events
from pipelines.windows.arrays import EMPTY, Arrays, WindowContent, from_ipc, to_ipc
from pipelines.windows.buffer import TEXT_FORM

FORMAT: Final = 1
_NAME = re.compile(r"^\.?(\d+)-")
_WINDOWS, _PENDING, _RESULTS = "windows", "pending", "results"
_LEFT: Final = "left"
# So many bytes may be read beside the whole state: below, the files of small batches would each be whole ones.
_BESIDE: Final = 4_000_000
_MOST_FILES: Final = 32


class WindowFailure(Exception):  # noqa: N818 - it carries the error
    """The failure of a window, or of an aggregator of a user's in it, or of what makes its rows of the window before.

    Attributes:
        number: that of the window in its query.
        is_between: whether what stands between it and the one before has failed, by the results of that one.
    """

    def __init__(self, error: Exception, number: int, *, is_between: bool = False) -> None:
        self.error, self.number, self.is_between = error, number, is_between
        super().__init__(str(error))


@dataclass(frozen=True)
class _Read:
    """A file's head and its tables."""

    head: Mapping[str, Any]
    tables: Mapping[str, pa.Table]

    @property
    def below(self) -> list[StateRef]:
        """Return the files on which it stands, the whole one first."""
        return [StateRef.of_json(ref) for ref in self.head["below"]]


States = tuple[WindowContent, ...]
"""The content of each window of a query, in the order of the query."""
Between = Callable[[int, pa.Table], pa.Table]
"""Makes the rows of the next window of the results of one, by its number."""


@dataclass(frozen=True)
class Definition:
    """The definition of a query's windows.

    Attributes:
        signature: of the operations and their keys (`pipelines.windows.signature`): windows of others are refused.
        each: the same of each window: one that stays the same keeps what it holds when others change.
        version: of the flow's definition, as its author counts; None: not known.
        outputs: the tables whose records name the states, by their path in the lake.
    """

    signature: bytes
    each: tuple[bytes, ...]
    version: str | None = None
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class KeptStates:
    """The parts of a former definition's state that windows keep.

    Attributes:
        states: of each window, in the order of the query.
        empty: the numbers of those that begin empty.
    """

    states: States
    empty: tuple[int, ...]


class WindowFiles:
    """The states of a query's windows, batch by batch.

    Args:
        windows: one or more, each of which gets what comes of the results of the one before.
    """

    def __init__(self, files: StateFiles, windows: Sequence[Arrays], definition: Definition) -> None:
        self._files, self._windows, self._definition = files, windows, definition
        self.waiting = WaitingRows(files)
        # Who runs the flow by itself knows of no version: what it leaves is still of the last one that was deployed.
        self._version = definition.version
        self._empty: States = (EMPTY,) * len(windows)
        # What the last batch has left need not be read again. Per state: the files below it, and the bytes of all.
        self._last: tuple[StateRef, States] | None = None
        self._below: dict[StateRef, tuple[list[StateRef], int]] = {}

    def run(
        self,
        txid: int,
        attempt: int,
        before: StateRef | None,
        pieces: Iterable[tuple[pa.Table, int]],
        between: Between | None = None,
    ) -> tuple[tuple[pa.Table, ...], StateRef]:
        """Run a batch from the state behind the one before, and keep what it leaves. Nothing counts until a record names it.

        Args:
            before: what the newest record below `txid` names; None: there is none, and the windows are empty.
            pieces: rows and clocks as of `Arrays.feed`, at least one.
            between: where there are several windows.

        Returns:
            The results of each window, and what the records of the batch are to name.
        """
        results, states = self._fed(self._state_below(txid, before), pieces, between)
        below = self._stands_on(before, states)
        ref, parts = self._write(txid, attempt, states, below, results)
        size = _bytes_of_windows(parts) + (self._below[before][1] if below and before else 0)
        self._last = (ref, states)
        self._stands(ref, below, size)
        return results, ref

    def waiting_fail(self, txid: int, before: StateRef, piece: tuple[pa.Table, int], between: Between) -> bool:
        """Return whether what waits makes a batch fail by itself: without its rows it fails as well, but not without both.

        Args:
            before, between: as of `run`.
            piece: no rows, and the batch's clock.
        """
        states = self._state_below(txid, before)
        if states[0].pending is None:
            return False
        without = (replace(states[0], pending=None), *states[1:])
        return self._fails(states, piece, between) and not self._fails(without, piece, between)

    def _fails(self, states: States, piece: tuple[pa.Table, int], between: Between) -> bool:
        try:
            self._fed(states, [piece], between)
        except WindowFailure:
            return True
        return False

    def waiting_up_to(self, txid: int, before: StateRef, clock: int) -> pa.Table | None:
        """Return what waits in the state with which a batch begins, up to a clock; None: nothing."""
        pending = self._state_below(txid, before)[0].pending
        return None if pending is None else pending.filter(pc.less_equal(pending[events.CLOCK], clock))

    def begin(self, txid: int, states: States, left: pa.Table | None = None) -> StateRef:
        """Write the states that the windows begin with, whole.

        Args:
            txid: of the last batch whose rows they hold.
            left: rows that waited for the clock in the windows before and do not fit these.
        """
        ref, _ = self._write(txid, 0, states, [], [None] * len(states), left)
        return ref

    def left_out(self, ref: StateRef) -> pa.Table | None:
        """Return the rows that did not fit the windows that began with a state (`begin`)."""
        return self._read(ref).tables.get(_LEFT)

    def _write(
        self,
        txid: int,
        attempt: int,
        states: States,
        below: list[StateRef],
        results: Sequence[pa.Table | None],
        left: pa.Table | None = None,
    ) -> tuple[StateRef, Mapping[str, int]]:
        blobs: dict[str, bytes] = {} if left is None else {_LEFT: to_ipc(left, "lz4")}
        for number, (made, state) in enumerate(zip(results, states, strict=True)):
            windows = state.windows if not below else state.changed
            tables = {_WINDOWS: windows, _PENDING: state.pending, _RESULTS: made}
            blobs |= {_part(name, number): to_ipc(table, "lz4") for name, table in tables.items() if table is not None}
        head: dict[str, Any] = {
            "format": FORMAT,
            "signature": self._definition.signature.hex(),
            "each": [each.hex() for each in self._definition.each],
            "depths": [windows.depth for windows in self._windows],
            "version": self._version,
            "texts": TEXT_FORM,
            "outputs": list(self._definition.outputs),
            "txid": txid,
            "clock": states[0].clock,
            "keys": sum(state.keys for state in states),
            "below": [file.to_json() for file in below],
            "parts": {name: len(blob) for name, blob in blobs.items()},
        }
        text = json.dumps(head).encode()
        data = b"".join([len(text).to_bytes(8, "big"), text, *blobs.values()])
        ref = StateRef(f"{txid:012d}-{attempt}-{secrets.token_hex(4)}", _digest(data))
        self._files.write(ref.file, data)
        return ref, head["parts"]

    def _fed(
        self, states: States, pieces: Iterable[tuple[pa.Table, int]], between: Between | None
    ) -> tuple[tuple[pa.Table, ...], States]:
        parts, state = [], states[0]
        for rows, clock in pieces:
            results, state = self._feed(0, state, rows, clock, is_piece=True)
            parts.append(results)
        try:
            self._windows[0].check(state)
        except Exception as error:
            raise WindowFailure(error, 0) from error
        state = replace(state, unchecked=None)
        # What has changed is known of one piece: of several all may have.
        made, after = [pa.concat_tables(parts)], [state if len(parts) == 1 else replace(state, changed=None)]
        for number in range(1, len(self._windows)):
            assert between is not None
            try:
                rows = between(number - 1, made[-1])
            except Exception as error:
                # What waits may have come through the window before, and fail behind it. A disk or a module that is not there
                # says nothing of it.
                if isinstance(error, NotTextError) or comes_of_rows(error):
                    raise WindowFailure(error, number, is_between=True) from error
                raise
            results, state = self._feed(number, states[number], rows, clock)
            made.append(results)
            after.append(state)
        return tuple(made), tuple(after)

    def _feed(
        self, number: int, state: WindowContent, rows: pa.Table, clock: int, *, is_piece: bool = False
    ) -> tuple[pa.Table, WindowContent]:
        try:
            return self._windows[number].feed(state, rows, clock, is_piece=is_piece)
        except Exception as error:
            raise WindowFailure(error, number) from error

    def results(self, ref: StateRef) -> tuple[pa.Table, ...]:
        """Return what the windows have made in a batch whose record names its file."""
        tables = self._read(ref).tables
        return tuple(tables[_part(_RESULTS, number)] for number in range(len(self._windows)))

    def clear(self, ref: StateRef) -> None:
        """Remove what no batch behind one needs, once Spark has marked that batch as done.

        What later batches have written stays, whoever wrote it: a process that was taken for dead may come here late.

        Args:
            ref: named by the batch's record.
        """
        below = self._below[ref][0] if ref in self._below else self._read(ref).below
        kept, txid = {ref.file, *(file.file for file in below)}, _txid(ref.file)
        names = self._files.names()
        for name in names:
            own = _txid(name)
            if name not in kept and own is not None and txid is not None and own <= txid:
                self._files.remove(name)
        if txid is not None:
            self.waiting.clear(names, txid)

    def rows(self, ref: StateRef | None) -> int:
        """Return how many windows a state holds: of each key one, or one per span that is open. None: that is empty."""
        if ref is None:
            return 0
        if self._last is not None and self._last[0] == ref:
            return sum(state.keys for state in self._last[1])
        return int(_opened(self._files, ref)[0]["keys"])

    def check(self, ref: StateRef) -> None:
        """Read a state and all on which it stands."""
        self._loaded(ref)

    def _state(self, ref: StateRef | None) -> States:
        if ref is None:
            return self._empty
        if self._last is None or self._last[0] != ref:
            self._last = (ref, self._loaded(ref))
        return self._last[1]

    def _state_below(self, txid: int, ref: StateRef | None) -> States:
        """Return the state with which a batch begins: without what was left out of it with the batches between."""
        first, *others = self._state(ref)
        if ref is None or first.pending is None:
            return (first, *others)
        return (replace(first, pending=self.waiting.left(ref.file, first.pending, txid)), *others)

    def _loaded(self, ref: StateRef) -> States:
        last = self._read(ref)
        self._version = self._version or last.head.get("version")
        parts = [*(self._read(file) for file in last.below), last]
        # A key has one text in a file and all below it: behind one of another form the next file is whole.
        if _has_own_texts(last):
            self._stands(ref, last.below, sum(_bytes_of_windows(part.head["parts"]) for part in parts))
        return tuple(_state_in(parts, number, arrays) for number, arrays in enumerate(self._windows))

    def left_by(self, ref: StateRef) -> tuple[bool, str | None]:
        """Return whether this definition has left a state, and the version of the one that has."""
        head, _ = _opened(self._files, ref)
        return head["signature"] == self._definition.signature.hex(), head.get("version")

    def kept_of(self, ref: StateRef, below: int | None = None) -> KeptStates:
        """Return what the windows keep of a state that this definition or another has left.

        Windows of the same operation keep what they hold, the others begin empty at its clock. What waits for the clock has
        been in no window: it goes into the first.

        Args:
            below: what was left out with batches from this txid on waits, too; None: what was left out does not.
        """
        last = _read(self._files, ref)
        parts = [*(_read(self._files, file) for file in last.below), last]
        # A file of an earlier release with one window has its signature; of several it does not say them.
        before: list[str | None] = list(last.head.get("each") or [last.head["signature"]])
        states, empty, depths, lost = [], [], last.head.get("depths", []), 0
        for number, (arrays, own) in enumerate(zip(self._windows, self._definition.each, strict=True)):
            state = WindowContent()
            if own.hex() in before:
                place = before.index(own.hex())
                before[place] = None
                state = _state_in(parts, place, arrays)
                lost = max(lost, depths[place] - arrays.depth if depths else 0)
            else:
                empty.append(number)
            states.append(state)
        # With fewer windows before it a span ends a little earlier: the one behind it is still to get what ends in between.
        clock = None if last.head["clock"] is None else last.head["clock"] - lost
        states = [replace(state, pending=None, clock=clock) for state in states]
        pending = self.waiting.left(ref.file, last.tables.get(_part(_PENDING, 0)), below)
        states[0] = replace(states[0], pending=pending)
        return KeptStates(tuple(states), tuple(empty))

    def _stands(self, ref: StateRef, below: list[StateRef], size: int) -> None:
        """Keep on which files a state stands; of the last few, for a file may go two batches later."""
        self._below[ref] = (below, size)
        for old in list(self._below)[:-4]:
            del self._below[old]

    def _stands_on(self, before: StateRef | None, states: States) -> list[StateRef]:
        """Return the files on which the next one is to stand, none for a whole one: whichever is less to write, and to read."""
        known = all(state.changed is not None or state.windows is None for state in states)
        if before is None or before not in self._below or not known:
            return []
        below, size = self._below[before]
        whole = sum(state.windows.nbytes for state in states if state.windows is not None)
        changed = sum(state.changed.nbytes for state in states if state.changed is not None)
        if 2 * changed > whole or size > max(_BESIDE, 2 * whole) or len(below) + 1 >= _MOST_FILES:
            return []
        return [*below, before]

    def _read(self, ref: StateRef) -> _Read:
        read = _read(self._files, ref)
        if read.head["signature"] != self._definition.signature.hex():
            hint = f"give the stream's window its former definition back; or {LET_BEGIN}"
            raise WindowStateError(ref.file, "holds the windows of another operation, or of another key", hint=hint)
        return read


def _read(files: StateFiles, ref: StateRef) -> _Read:
    head, data = _opened(files, ref)
    return _Read(head, dict(_tables(data, head["parts"])))


def _state_in(parts: Sequence[_Read], number: int, arrays: Arrays) -> WindowContent:
    """Return the state of a window of some files, the whole one first; `number` is that which it has there."""
    last, name = parts[-1], _part(_WINDOWS, number)
    clock = last.head["clock"]
    windows = [part.tables[name] for part in parts if name in part.tables]
    # When a window ends may depend on how many were before it: who left it knew. Files of an earlier release do not say it.
    depths: list[int] = last.head.get("depths", [])
    depth = depths[number] if depths else None
    laid = arrays.laid_over(windows, clock, depth)
    if laid is not None and not _has_own_texts(last):
        laid = arrays.with_own_texts(laid)
    return WindowContent(laid, last.tables.get(_part(_PENDING, number)), clock)


def _has_own_texts(last: _Read) -> bool:
    """Return whether a file's keys have the texts that they have here; files of an earlier release do not say their form."""
    return last.head.get("texts") == TEXT_FORM


def _part(name: str, number: int) -> str:
    """Return the name of a window's part of a file; that of the first is as of files with one window."""
    return f"{name}{number or ''}"


def _bytes_of_windows(parts: Mapping[str, int]) -> int:
    return sum(size for name, size in parts.items() if name.startswith(_WINDOWS))


def outputs_in(files: StateFiles) -> tuple[str, ...]:
    """Return the tables whose records name the states, as the newest file says it; none where an earlier release wrote it."""
    names = [(txid, name) for name in files.names() if (txid := _txid(name)) is not None and not name.startswith(".")]
    if not names:
        return ()
    data = files.read(max(names)[1])
    return tuple(json.loads(data[8 : 8 + int.from_bytes(data[:8], "big")]).get("outputs", ()))


def waiting_in(files: StateFiles, ref: StateRef) -> int:
    """Return how many events of a state wait for the clock."""
    pending = WaitingRows(files).left(ref.file, _read(files, ref).tables.get(_part(_PENDING, 0)))
    return 0 if pending is None else pending.num_rows


def check_files(files: StateFiles, ref: StateRef) -> None:
    """Read a state's file and all on which it stands, whatever the operation is."""
    head, _ = _opened(files, ref)
    for below in head["below"]:
        _opened(files, StateRef.of_json(below))


def _opened(files: StateFiles, ref: StateRef) -> tuple[Mapping[str, Any], memoryview]:
    """Return a file's head, and what follows it."""
    try:
        data = files.read(ref.file)
    except FileNotFoundError:
        raise WindowStateError(ref.file, "is gone, and the record of its batch names it") from None
    if _digest(data) != ref.hash:
        raise WindowStateError(ref.file, "is damaged: its bytes are others than the record of its batch says")
    size = int.from_bytes(data[:8], "big")
    head = json.loads(data[8 : 8 + size])
    if head["format"] != FORMAT:
        hint = "run the flow with the release that wrote it"
        raise WindowStateError(ref.file, f"is of format {head['format']}, and this release reads {FORMAT}", hint=hint)
    return head, memoryview(data)[8 + size :]


def _tables(data: memoryview, parts: Mapping[str, int]) -> Iterator[tuple[str, pa.Table]]:
    at = 0
    for name, size in parts.items():
        yield name, from_ipc([bytes(data[at : at + size])])
        at += size


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _txid(name: str) -> int | None:
    """Return the txid in a file's name; None: it is no file of ours."""
    match = _NAME.match(name)
    return int(match[1]) if match else None
