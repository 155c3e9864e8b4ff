"""The order of flows: Dagster makes all tables of a flow in one step, so no two flows may be made of each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import dagster as dg

from assets.view import FlowView, reaches, table_key
from pipelines.errors import DefinitionError


def refuse_circle(view: FlowView, before: Sequence[FlowView]) -> None:
    """See that a flow reads no table of one that reads its own, be it through others.

    Raises:
        DefinitionError: It does: Dagster could order neither, and would load no flow at all.
    """
    views = [*before, view]
    above = _read_by(views)
    for key in view.upstream:
        writer = _writers(views).get(key)
        if writer not in (None, view.name) and reaches(above, writer, view.name):
            raise DefinitionError(
                f'flow "{view.name}" reads the table "{key.path[-1]}" of the flow "{writer}", which is itself made of '
                f'tables of "{view.name}"',
                hint="all tables of a flow are made in one step: write those that the other one reads in a flow of their own",
            )


def put_in_order(views: Sequence[FlowView]) -> list[FlowView]:
    """Return the flows, each without the queries by which two of them would be made of each other.

    A query reads what a state holds at the moment, so it can do without an order; a flow that reads a table cannot
    (`refuse_circle`). Of two flows that query each other the first one in the catalog comes behind.
    """
    writers, above = _writers(views), _read_by(views)
    ordered = []
    for view in views:
        unordered: set[dg.AssetKey] = set()
        for key in sorted(view.queried):
            writer = writers.get(key)
            if writer in (None, view.name):
                continue
            if reaches(above, writer, view.name):
                unordered.add(key)
            else:
                above[view.name].add(writer)
        ordered.append(replace(view, unordered=frozenset(unordered)) if unordered else view)
    return ordered


def _writers(views: Sequence[FlowView]) -> dict[dg.AssetKey, str]:
    return {table_key(node): view.name for view in views for node in view.writers.values()}


def _read_by(views: Sequence[FlowView]) -> dict[str, set[str]]:
    """Return the flows whose tables each one reads, itself left out."""
    writers = _writers(views)
    return {view.name: {writers[key] for key in view.upstream if key in writers} - {view.name} for view in views}
