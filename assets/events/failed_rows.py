"""Rejected rows as a check's page shows them: ten of them with the reasons, and the way to the others."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from assets.view import FlowView, GateCheck
from pipelines.graph.dialects import DATAFUSION
from pipelines.quality import Check, CheckResult

if TYPE_CHECKING:
    from pipelines import Lake

SHOWN = 10
"""Rows that a check shows."""
MOST_CHARACTERS = 2000
"""Of each text among them, as of the rows that a result brings along (`pipelines.quality.samples`)."""
_KEPT = ("reason", "row", "file", "_slice", "_txid")
_TEXTS = ("reason", "row", "file")
"""Of any length: a row may be a line of gigabytes, and what a check shows is kept with each of its events."""


def quarantine_key(flow: str) -> dg.AssetKey:
    """Return the asset of a flow's rejected rows."""
    return dg.AssetKey(["quarantine", flow])


def quarantine_spec(view: FlowView) -> dg.AssetSpec:
    """Return the spec of that asset: runs and deployed flows fill it beside their states."""
    path = view.settings.lake / "quarantine" / view.name
    return dg.AssetSpec(
        quarantine_key(view.name),
        deps=list(dict.fromkeys(map(view.key_of, view.spouts))),
        description=f"Rows that the flow {view.name} rejected, each with stage, rule and reason. No row is lost: "
        f"`tridelta replay-quarantine {view.name}` sends them through the flow again.",
        metadata={"path": dg.MetadataValue.path(str(path)), "replay": f"tridelta replay-quarantine {view.name}"},
        **view.labels,
        kinds={"delta"},
    )


def table(rows: Sequence[Mapping[str, Any]]) -> dg.TableMetadataValue:
    """Return rows as Dagster's table, `reason` first."""
    names = list(dict.fromkeys(["reason", *(name for row in rows for name in row)]))
    return dg.MetadataValue.table(
        [dg.TableRecord({name: _plain(row.get(name)) for name in names}) for row in rows],
        schema=dg.TableSchema([dg.TableColumn(name) for name in names]),
    )


def _plain(value: Any) -> str | int | float | bool | None:
    if isinstance(value, int) and abs(value) > 1 << 53:
        return str(value)  # The page reads numbers as doubles.
    if value is None or isinstance(value, int | float | bool):
        return value
    return _cut(value if isinstance(value, str) else json.dumps(value, default=str))


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}..."


# --- that a result brings along ---------------------------------------------------------------------------------------


def reason(check: Check, row: Mapping[str, Any]) -> str:
    """Say what a row is, and what the check asked of it."""
    seen = " and ".join(f"{name} is {json.dumps(row[name], default=str)}" for name in check.fields if name in row)
    words = check.expectation.removeprefix("expect_").removeprefix("column_").replace("_", " ")
    asked = check.given("column", "column_A", "column_B", "column_list", "mostly")
    return (f"{seen}; " if seen else "") + f"expected {words}" + (f" ({asked})" if asked else "")


def of_result(check: Check, result: CheckResult) -> list[dict[str, Any]]:
    """Return the rejected rows of a check's result, with reasons; some expectations report values alone."""
    return of_detail(check, result.to_json()["detail"])


def of_detail(check: Check, detail: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the same from a result's `detail`, as JSON."""
    rows = detail.get("sample")
    if not rows:
        names = check.fields[:1] or ("value",)
        rows = [
            value if isinstance(value, dict) else {names[0]: value}
            for value in detail.get("partial_unexpected_list", ())
        ]
    said = (
        {"reason": reason(check, row)} | {f"row's {name}" if name == "reason" else name: row[name] for name in row}
        for row in rows[:SHOWN]
    )
    return [{name: _cut(value) if isinstance(value, str) else value for name, value in row.items()} for row in said]


# --- of a gate ------------------------------------------------------------------------------------------------------


def of_gate(
    view: FlowView, lake: Lake, gate_check: GateCheck, txids: Iterable[int] = (), slices: Iterable[str] = ()
) -> list[dict[str, Any]]:
    """Read the rows that a gate's check has sent to quarantine, the last first.

    Args:
        view: The flow.
        lake: Where its quarantine is.
        txids: The batches that are meant.
        slices: The slices that are meant; with neither, none.
    """
    batches = ", ".join(str(int(value)) for value in sorted(set(txids))[-1000:])
    days = DATAFUSION.texts(sorted(set(slices))[-1000:])
    terms = [f"_txid IN ({batches})"] * bool(batches) + [f"_slice IN ({days})"] * bool(days)
    quarantine = lake.table(lake.quarantine_path(view.name), f"quarantine of {view.name}")
    if not terms or gate_check.check.action == "warn" or not quarantine.exists():
        return []
    if gate_check.check.action == "drop":
        rule = f"strpos(concat(', ', rule, ', '), {DATAFUSION.text(f', {gate_check.check.name}, ')}) > 0"
        where = f"stage = {DATAFUSION.text(gate_check.gate)} AND {rule}"
    else:
        # A batch that is refused as a whole: all of its rows are there, with what the gate said of it.
        by = [DATAFUSION.text(said) for said in (f'gate "{gate_check.gate}" refused', f" {gate_check.check.name}: ")]
        where = f"stage = 'batch' AND strpos(reason, {by[0]}) > 0 AND strpos(reason, {by[1]}) > 0"
    columns = (f"substr({name}, 1, {MOST_CHARACTERS + 1}) AS {name}" if name in _TEXTS else name for name in _KEPT)
    picked = f"{where} AND ({' OR '.join(terms)}) ORDER BY _txid DESC LIMIT {SHOWN}"
    rows = quarantine.stored(picked, columns=", ".join(columns)).to_pylist()
    return [{name.removeprefix("_"): row[name] for name in _KEPT if row[name] is not None} for row in rows]


def quarantine_links(view: FlowView, gate_check: GateCheck) -> dict[str, Any]:
    """Return the way to all rows that a gate's check has rejected, and back."""
    stages = (
        f"--gate {shlex.quote(gate_check.gate)} --reason {shlex.quote(gate_check.check.name)}"
        if gate_check.check.action == "drop"
        else "--reason poison"
    )
    path = view.settings.lake / "quarantine" / view.name
    return {
        "quarantine": dg.MetadataValue.asset(quarantine_key(view.name)),
        "quarantine_path": dg.MetadataValue.path(str(path)),
        "replay": f"tridelta replay-quarantine {view.name} {stages}",
    }


def failed_metadata(view: FlowView, gate_check: GateCheck, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what a gate's check that does not hold shows; on a warning all rows stayed in the flow."""
    shown: dict[str, Any] = {"failed_rows": table(rows)} if rows else {}
    return shown if gate_check.check.action == "warn" else {**shown, **quarantine_links(view, gate_check)}
