"""Shapes of flows and programs of operations, drawn by lot from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.histories.model import BAD, BEFORE, BEHIND, LOG, MAP, NON_TRANSACTIONAL, OPAQUE, REDUCED, ROWS, TRANSACTIONAL
from tests.histories.programs import Operation, Program

DAYS = ("d1", "d2", "d3")
# Operations with how often they are drawn: runs of Spark are dear, and without files nothing happens.
WEIGHTS = {
    "arrive": 30,
    "catch_up": 16,
    "backfill": 12,
    "compact": 6,
    "skip": 5,
    "replay": 5,
    "change": 7,
    "fresh": 3,
    "restore_checkpoint": 3,
    "restore_table": 3,
    "older_spark": 3,
    "frozen": 4,
    "stream": 3,
    "optimize": 3,
    "rewrite": 2,
    "cut_file": 0,
    "remove_file": 4,
    "cut_off": 4,
}

OF_A_STREAM = ("arrive", "rewrite", "cut_file", "remove_file", "fresh", "restore_checkpoint", "older_spark", "stream")
"""Operations that name one of two streams."""
KILLED = {"catch_up": 0.35, "backfill": 0.35, "compact": 0.35, "replay": 0.35, "rescale": 0.35, "stream": 0.25}
"""How often an operation dies at one of its moments."""

# A frozen writer would share this process' windows: one that is stopped has its own. Backfills are refused.
WINDOWED = {"backfill": 3, "cut_off": 0, "frozen": 0, "rescale": 5}

TABLES = {"optimize_source": 8, "rewrite": 0, "remove_file": 0, "restore_table": 1}
POISON_GONE = 0.3
"""How often retention takes a file of the poison batch that stops the stream."""
LEFT_OUT = 0.12
"""How often a program begins with a batch that is left out and replayed, before the checkpoint is lost."""


def draw(
    seed: int, length: int = 20, *, shape: str | None = None, favour: str | None = None, signals: bool = False
) -> Program:
    """The program of a seed.

    Args:
        shape: what it runs over (`files`, `windows`, `tables`, `chance`); None: drawn, too.
        favour: an operation that comes more often than by lot.
        signals: whether some lives end or stand still by real signals.
    """
    chance = random.Random(seed)
    drawn = chance.choices([*SHAPES], [weight for weight, _ in SHAPES.values()])[0]
    form = SHAPES[shape or drawn][1](chance)
    if "chance" in form:
        return Program(form, tuple(_of_chance(chance, form) for _ in range(max(2, length // 2))))
    weights = {**WEIGHTS, **(WINDOWED if "window" in form else TABLES if "source" in form else {})}
    if form.get("files") == "parquet":
        weights["cut_file"] = 3
    if signals:
        weights |= {"killed": 6, "stopped": 3}
    if favour is not None:
        weights[favour] = 30
    names = chance.choices([*weights], [*weights.values()], k=length)
    # A program that begins with nothing to read says little.
    names[0] = "arrive"
    drawn_by_lot = [_operation(chance, name, form) for name in names]
    opening = _left_out(chance) if "window" not in form and chance.random() < LEFT_OUT else []
    return Program(form, (*opening, *drawn_by_lot[len(opening) :]))


def _left_out(chance: random.Random) -> list[Operation]:
    """What leaves nothing but rows of a replay in the states, or nothing but those of a batch that was left out in quarantine."""
    poison: list[list[list[Any]]] = [
        [*_rows(chance), [chance.choice(DAYS), 0, BAD]] for _ in range(chance.choice((1, 1, 2)))
    ]
    found: list[Operation] = []
    for rows in poison:
        found += [("arrive", {"rows": rows}), ("catch_up", {}), ("skip", {})]
    found += [("catch_up", {})] if chance.random() < 0.7 else []
    if chance.random() < 0.7:
        found += [("change", {"fails": False, "most": 200}), ("replay", {})]
    if chance.random() < 0.5:
        found.append(("remove_file", {"file": chance.randrange(2)}))
    return [*found, ("fresh", {"then": chance.choice(("refuse", "continue", "reset"))})]


def _shape(chance: random.Random) -> dict[str, Any]:
    two = chance.random() < 0.25
    streams = {name: _states(chance, name) for name in (("left", "right") if two else ("left",))}
    return {
        "key": chance.choice(("string", "string", "decimal(30,0)", "double")),
        "sliced": chance.random() < 0.8,
        "streams": streams,
        "files": chance.choices(("json", "csv", "parquet"), (5, 2, 2))[0],
    }


def _windowed(chance: random.Random) -> dict[str, Any]:
    return {
        "key": "string",
        "sliced": chance.random() < 0.8,
        "window": chance.choice((1, 2, 3)),
        "streams": {"left": _states(chance, "left")[-1:]},
    }


def _tables(chance: random.Random) -> dict[str, Any]:
    return {"key": "string", "sliced": True, "source": "table", "streams": {"left": _states(chance, "left")}}


def _chance(chance: random.Random) -> dict[str, Any]:
    drawn = chance.choice(("topology", "topology", "flow", "flow in batch"))
    form = {"chance": drawn.split()[0], "seed": chance.randrange(1 << 20)}
    return {**form, "windows": "batch"} if drawn.endswith("batch") else form


def _of_chance(chance: random.Random, form: dict[str, Any]) -> Operation:
    moves = 1 if form["chance"] == "flow" and "windows" not in form else 0
    name = chance.choices(("catch_up", "compact", "optimize", "restore", "go_over"), (8, 2, 1, 1, moves))[0]
    given: dict[str, Any] = {}
    if name in ("catch_up", "go_over"):
        given = {"max_batches": 1} if chance.random() < 0.7 else {}
        if chance.random() < 0.6:
            # Where windows run in the batch their files have moments of their own.
            given["kill"] = chance.randrange(16 if form.get("windows") == "batch" else 8)
    elif name == "compact":
        given = {"open_generations": chance.choice((None, 0, 1))}
        if chance.random() < KILLED[name]:
            given["kill"] = chance.randrange(9)
    elif name == "restore":
        given = {"back": chance.randint(1, 3)}
    return name, given


def _states(chance: random.Random, stream: str) -> list[list[str]]:
    found = []
    for number in range(chance.choice((1, 2, 2))):
        form = chance.choices((LOG, ROWS, MAP, REDUCED), (5, 3, 1, 1))[0]
        kind = chance.choices((TRANSACTIONAL, OPAQUE, NON_TRANSACTIONAL), (6, 3, 1))[0]
        place = chance.choices((BEHIND, BEFORE), (3, 1))[0]
        found.append([f"{stream}_{number}", form, kind, place])
    # A gate that nothing stands behind is not part of the plan.
    found[-1][3] = BEHIND
    return found


def _operation(chance: random.Random, name: str, shape: dict[str, Any]) -> Operation:
    drawn: dict[str, Any] = {}
    if name in OF_A_STREAM and len(shape["streams"]) > 1:
        drawn["group"] = chance.randrange(2)
    if name in ("arrive", "rewrite", "cut_file"):
        drawn["rows"] = _rows(chance)
    if name == "arrive" and chance.random() < 0.15:
        drawn["fields"] = chance.choice(("turned", "others"))
    if name == "arrive" and chance.random() < 0.2:
        drawn["late"] = chance.randint(1, 3)
    if chance.random() < KILLED.get(name, 0):
        drawn["kill"] = chance.randrange(4 if name == "rescale" else 9)
    if name == "catch_up":
        drawn |= _catch_up(chance)
    elif name == "backfill":
        drawn["slices"] = chance.sample(DAYS, chance.choice((1, 1, 2, 3)))
    else:
        drawn |= _further(chance, name)
    if name in ("optimize", "optimize_source") and chance.random() < 0.3:
        drawn["vacuum"] = True
    if name == "rescale":
        drawn["partitions"] = chance.choice((1, 2, 3))
    if "window" in shape and name == "change":
        # Files of one batch have no order among them.
        drawn.pop("per_batch", None)
    if "window" in shape and name == "stream":
        drawn["beside"] = None
    if "window" in shape and name == "fresh":
        # What is read again would enter the windows of another query, whose checkpoint is still there.
        drawn["then"] = "refuse"
    return name, drawn


def _catch_up(chance: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if chance.random() < 0.3:
        found["max_batches"] = chance.choice((1, 2))
    if chance.random() < 0.1:
        found["partitions"] = chance.choice((1, 2, 3))
    return found


def _further(chance: random.Random, name: str) -> dict[str, Any]:
    if name == "compact":
        return {
            "hours": chance.choice((168.0, 168.0, 0.0)),
            "open_generations": chance.choice((None, None, 0, 1)),
        }
    if name == "change":
        return chance.choice(
            (
                {"most": chance.choice((5, 50, 200))},
                {"fails": chance.random() < 0.5},
                {"wide": True},
                {"further": True},
                {"per_batch": chance.choice((1, 2, 3))},
            )
        )
    if name == "remove_file":
        return {"file": chance.randrange(4), "older": chance.random() < 0.3, "poison": chance.random() < POISON_GONE}
    if name == "cut_off":
        found = {"slices": chance.sample(DAYS, chance.choice((2, 2, 3))), "at": chance.randrange(8)}
        return {**found, "by": chance.choice(("cancel", "failure")), "most": chance.choice((None, 5, 50, 200))}
    if name == "replay":
        return {"beside": True} if chance.random() < 0.2 else {}
    if name == "fresh":
        return {"then": chance.choice(("refuse", "continue", "reset"))}
    if name in ("restore_checkpoint", "older_spark"):
        return {"back": chance.randint(1, 3)}
    if name == "restore_table":
        return {"state": chance.randrange(4), "back": chance.randint(0, 3)}
    if name == "killed":
        do = chance.choice(("catch_up", "catch_up", "backfill", "compact", "replay"))
        given = {"kill": chance.randrange(9), "do": do}
        return {**given, "slices": chance.sample(DAYS, chance.choice((1, 2)))} if do == "backfill" else given
    if name in ("frozen", "stopped"):
        do = chance.choice(("catch_up", "catch_up", "backfill", "compact", "replay"))
        given = {"halt": chance.randrange(6), "arrivals": [_rows(chance) for _ in range(chance.randrange(3))], "do": do}
        return {**given, "slices": chance.sample(DAYS, chance.choice((1, 2)))} if do == "backfill" else given
    if name == "stream":
        return {
            "arrivals": [_rows(chance) for _ in range(chance.randint(1, 2))],
            "beside": chance.choice((None, "compact", "d1")),
        }
    return {"state": chance.randrange(4)} if name == "optimize" else {}


def _rows(chance: random.Random) -> list[list[Any]]:
    found: list[list[Any]] = []
    for _ in range(chance.choice((0, 1, 2, 3, 4))):
        lot = chance.random()
        if lot < 0.06:
            found.append(["torn"])
        elif lot < 0.10:
            found.append(["other"])
        else:
            day = chance.choice(DAYS) if chance.random() < 0.95 else None
            v = BAD if chance.random() < 0.04 else chance.choice((None, 1, 2, 3, 8, 9, 60))
            found.append([day, chance.randrange(3), v])
    return found


SHAPES: dict[str, tuple[int, Callable[[random.Random], dict[str, Any]]]] = {
    "files": (7, _shape),
    "windows": (2, _windowed),
    "tables": (2, _tables),
    "chance": (2, _chance),
}
"""What programs run over, and how often each is drawn."""
