"""What a reader finds in the lake, against what the model says."""

from __future__ import annotations

import json
from collections import Counter
from itertools import groupby
from typing import Any

from pipelines.errors import ReadPointError, UnknownStateError
from tests.histories.model import CHANNEL, LOG, MAP, OPAQUE, ROWS, SUMS, Model, Refused, Sink, contents, shown
from tests.histories.world import FLOW, KEYS, World


class Difference(AssertionError):  # noqa: N818 - a finding
    """The tables hold something else than the model says."""

    def __init__(self, what: str, found: Any, wanted: Any) -> None:
        self.what, self.found, self.wanted = what, found, wanted
        super().__init__(f"{what}: found {found}, wanted {wanted}")


def compare(world: World, model: Model) -> None:
    """All states, their past and quarantine.

    Raises:
        Difference
    """
    for group in model.groups:
        for sink in group.sinks:
            if sink.form == CHANNEL:
                continue
            if sink.name in world.lake.states():
                _state(world, model, sink)
            elif sink.entries or sink.txids:
                raise Difference(f"state {sink.name}", "no table", contents(sink, sink.entries))
    _quarantine(world, model)


def _state(world: World, model: Model, sink: Sink) -> None:
    table = world.lake.state(sink.name)
    wanted = contents(sink, sink.entries)
    _equal(f"state {sink.name}", found_rows(sink, table.scan().to_pylist()), wanted)
    txids, kept = [commit.txid for commit in table.commits.batches()], [txid for _, txid in sink.txids]
    if sink.kind == OPAQUE:
        # A compaction beside may cost an attempt by a state behind it: an opaque state then takes the batch once more.
        txids, kept = ([txid for txid, _ in groupby(each)] for each in (txids, kept))
    # A compaction that keeps no past cleans the log.
    _equal(f"history of {sink.name}", txids, kept[-len(txids) :] if model.cleaned and txids else kept)
    if sink.form not in (ROWS, SUMS):
        _points(world, sink, wanted)
    for txid in [*sink.as_of][-3:]:
        past = contents(sink, sink.as_of[txid])
        try:
            found = found_rows(sink, table.scan(txid=txid).to_pylist())
        except ReadPointError:
            if txid not in sink.gone:
                raise
            continue
        _equal(f"state {sink.name} as of txid {txid}", found, past)


def _points(world: World, sink: Sink, wanted: Counter[tuple[Any, ...]]) -> None:
    table = world.lake.state(sink.name)
    keys = KEYS[world.key] if sink.by == "key" else ("d1", "d2", "d3")
    found = found_rows(sink, table.get([{sink.by: key} for key in keys]))
    of_keys = Counter(row for row in wanted.elements() if any(row[0] == shown(key) for key in keys))
    _equal(f"get of {sink.name}", found, of_keys)


def found_rows(sink: Sink, rows: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """Rows as a reader gets them, in the model's form."""
    if sink.form == SUMS:
        return Counter((row["v"],) for row in rows)
    if sink.form == ROWS:
        return Counter((row["i"], row["day"], shown(row["key"]), row["v"], row.get("w")) for row in rows)
    if sink.form == LOG:
        return Counter(
            (shown(row[sink.by]), row["n"], row["s"] or 0, row.get("m")) for row in rows if row["n"] or row["s"]
        )
    if sink.form == MAP:
        return Counter((shown(row[sink.by]), row["s"] or 0, row.get("m")) for row in rows)
    return Counter((shown(row[sink.by]), row["s"] or 0) for row in rows)


def refused_rows(world: World) -> Counter[tuple[str, str, str, int | str]]:
    """Quarantine: slice, stage, rule, and the row's number or its text."""
    try:
        found = world.lake.quarantine(FLOW).stored().to_pylist()
    except UnknownStateError:
        return Counter()
    return Counter((row["_slice"], row["stage"], row["rule"], _named(row["row"])) for row in found)


def expected_refused(refused: list[Refused]) -> Counter[tuple[str, str, str, int | str]]:
    """The same of the model."""
    return Counter(key_of(one) for one in refused)


def key_of(one: Refused) -> tuple[str, str, str, int | str]:
    """A refused row as `refused_rows` names it."""
    named = one.row.number if one.row.number > 0 else f"sum {one.row.v}"
    return one.slice, one.stage, one.rule, named if one.row.text is None else one.row.text


def _named(text: str) -> int | str:
    try:
        row = json.loads(text)
    except ValueError:
        return text
    return int(row["i"]) if "i" in row else f"sum {row['v']}" if "v" in row else text


def _quarantine(world: World, model: Model) -> None:
    _equal("quarantine", refused_rows(world), expected_refused(model.refused))


def _equal(what: str, found: Any, wanted: Any) -> None:
    if found == wanted:
        return
    if isinstance(found, Counter) and isinstance(wanted, Counter):
        raise Difference(what, f"too many {dict(found - wanted)}", f"lacking {dict(wanted - found)}")
    raise Difference(what, found, wanted)
