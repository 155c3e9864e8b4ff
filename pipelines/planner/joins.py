"""Joins of one batch: the tuples of several streams with equal keys (Trident rules 8)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from pipelines.graph import nodes
from pipelines.planner.step import ORDER, Step, column
from pipelines.state.schema import SLICE_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def joined(step: Step) -> DataFrame:
    """Return the join of all parents, null equal to null; nothing crosses batches.

    Where a side is INNER its keys decide, so those are joined first and the others are looked up; only if all sides may
    be absent it takes full outer joins.
    """
    node = step.node
    sides = [_renamed(step, number) for number in range(len(node.sides))]
    inner = [number for number, side in enumerate(node.sides) if not side.outer]
    outer = [number for number, side in enumerate(node.sides) if side.outer]
    first, *others = inner or outer
    frame = _keyed(sides[first], first, _keys(step, first), rename=True)
    for number in others:
        frame = _with(frame, sides[number], number, _keys(step, number), "inner" if inner else "full_outer")
    for number in outer if inner else []:
        frame = _with(frame, sides[number], number, _keys(step, number), "left")
    # The order of arrival ends at a join: who asks for one behind it takes the order of the joined rows.
    hidden = [*step.batch(), *sorted(step.needed - {ORDER})]
    return step.with_task(_shaped(step, frame), [f"_key{at}" for at in range(len(node.sides[0].keys))]).select(
        *(column(name) for name in node.fields), *map(F.col, hidden)
    )


def same(pairs: Sequence[tuple[str, str]]) -> Column:
    """Check whether columns are pairwise equal, null equal to null."""
    equal = [column(name).eqNullSafe(column(other)) for name, other in pairs]
    return reduce(lambda condition, other: condition & other, equal)


def _renamed(step: Step, number: int) -> DataFrame:
    """Return a parent's frame with names that no other side has: `_<side>_<field number>`, the slice `_<side>_slice`."""
    frame, fields = step.frames[number], step.parent(number).fields
    picked = [column(name).alias(f"_{number}_{at}") for at, name in enumerate(fields)]
    if SLICE_COLUMN in step.frame.columns:
        picked.append(F.col(SLICE_COLUMN).alias(f"_{number}{SLICE_COLUMN}"))
    return frame.select(*picked)


def _keys(step: Step, number: int) -> list[str]:
    """Return the renamed columns that a side is joined on: its key fields, then the slice."""
    fields = step.parent(number).fields
    slices = [f"_{number}{SLICE_COLUMN}"] if SLICE_COLUMN in step.frame.columns else []
    return [f"_{number}_{fields.index(key)}" for key in step.node.sides[number].keys] + slices


def _keyed(frame: DataFrame, number: int, keys: list[str], *, rename: bool) -> DataFrame:
    """Return the frame with its keys once more, as `_key0`, `_key1` ... if the join goes on with them."""
    name = "_key" if rename else f"_{number}_key"
    return frame.select("*", *(F.col(key).alias(f"{name}{at}") for at, key in enumerate(keys)))


def _with(frame: DataFrame, side: DataFrame, number: int, keys: list[str], how: str) -> DataFrame:
    """Join one side more. In a full outer join the keys are whichever side has them."""
    side = _keyed(side, number, keys, rename=False)
    pairs = [(f"_key{at}", f"_{number}_key{at}") for at in range(len(keys))]
    both = frame.join(side, on=same(pairs), how=how)
    own = [name for name in frame.columns if not name.startswith("_key")]
    others = [name for name in side.columns if not name.startswith(f"_{number}_key")]
    joint = [
        (F.coalesce(F.col(key), F.col(other)) if how == "full_outer" else F.col(key)).alias(key) for key, other in pairs
    ]
    return both.select(*(F.col(name) for name in (*own, *others)), *joint)


def _shaped(step: Step, frame: DataFrame) -> DataFrame:
    """Return the fields as the join names them; `_key...` columns stay beside them for the task."""
    node = step.node
    count = len(node.sides[0].keys)
    joint = [F.col(f"_key{at}") for at in range(count)]
    made: list[Column] = list(joint) if node.mode == nodes.COMPACT else []
    for number, side in enumerate(node.sides):
        fields = step.parent(number).fields
        shown = fields if node.mode == nodes.PRESERVE else side.values
        made += [F.col(f"_{number}_{fields.index(name)}") for name in shown]
    slices = [F.col(f"_key{count}").alias(SLICE_COLUMN)] if SLICE_COLUMN in step.frame.columns else []
    named = [output.alias(name) for output, name in zip(made, node.fields, strict=True)]
    return frame.select(*named, *joint, *slices)
