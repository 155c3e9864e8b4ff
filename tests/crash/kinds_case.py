"""Two streams that meet, and states of every kind and layout behind them: what the kill tests of states run over."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from pipelines import Lake, Runtime, spark_session
from pipelines.sources import FixedBatches
from pipelines.trident import (
    OPAQUE,
    CombinerAggregator,
    Count,
    DeltaState,
    MapGet,
    ReducerAggregator,
    StateUpdater,
    Sum,
    TridentTopology,
)

BATCHES = 10
LEFT = [[(f"k{n % 4}", n * 10 + i) for i in range(5)] for n in range(BATCHES)]
RIGHT = [[(f"k{i}", n) for i in range(3)] for n in range(BATCHES)]


class LastSeen(StateUpdater):
    """Keeps the largest value of each key, and emits a row where it has grown."""

    keys = "k string"
    values = "largest bigint"
    returns = ("string", "bigint")

    def update_state(self, state: Any, tuples: list[tuple[Any, ...]]) -> Iterator[tuple[str, int]]:
        for key, value in tuples:
            (before,) = state.multi_get([(key,)])
            if before is None or value > before:
                state.multi_put([(key,)], [value])
                yield key, value


def added(total: int, value: int) -> int:
    return total + value


def topology() -> TridentTopology:
    found = TridentTopology("all_kinds")
    left = found.new_stream("left", FixedBatches("k string, v bigint", LEFT))
    right = found.new_stream("right", FixedBatches("k string, w bigint", RIGHT))
    pairs = found.join(left, "k", right, "k", ["k", "v", "w"])
    by_key = pairs.group_by("k")
    counts = by_key.persistent_aggregate(DeltaState("counts"), Count(), "n")
    by_key.persistent_aggregate(DeltaState("sums", OPAQUE), "v", Sum(), "s")
    by_key.persistent_aggregate(DeltaState("reduced"), "v", ReducerAggregator(int, added), "s")
    by_key.persistent_aggregate(DeltaState("reduced_opaque", OPAQUE), "v", ReducerAggregator(int, added), "s")
    combined = CombinerAggregator(lambda w: w, lambda a, b: a + b, int)
    by_key.persistent_aggregate(DeltaState("combined", OPAQUE), "w", combined, "s")
    pairs.partition_persist(DeltaState("rows_opaque", OPAQUE))
    grown = left.partition_persist(DeltaState("largest"), ["k", "v"], LastSeen(), ["k", "largest"])
    grown.new_values_stream().partition_persist(DeltaState("grown"))
    left.state_query(counts, "k", MapGet(), "n").partition_persist(DeltaState("seen"))
    return found


def contents(lake: Lake) -> dict[str, list[tuple[Any, ...]]]:
    """Every state's rows, in one order."""
    names = [node.state.name for node in topology().persists]
    return {
        name: sorted((tuple(row.values()) for row in lake.state(name).scan().to_pylist()), key=repr) for name in names
    }


def expected() -> dict[str, list[tuple[Any, ...]]]:
    """The same worked out by hand."""
    found: dict[str, list[tuple[Any, ...]]] = {"rows_opaque": [], "grown": [], "seen": []}
    sums: dict[str, dict[str, int]] = {name: {} for name in ("counts", "sums", "combined", "largest")}
    for left, right in zip(LEFT, RIGHT, strict=True):
        joined = [(k, v, w) for k, v in left for other, w in right if k == other]
        found["rows_opaque"] += joined
        for k, v, w in joined:
            for name, more in (("counts", 1), ("sums", v), ("combined", w)):
                sums[name][k] = sums[name].get(k, 0) + more
        for k, v in left:
            if v > sums["largest"].get(k, -1):
                sums["largest"][k] = v
                found["grown"].append((k, v))
            found["seen"].append((k, v, sums["counts"].get(k)))
    found |= {name: list(of.items()) for name, of in sums.items()}
    found["reduced"] = found["reduced_opaque"] = found["sums"]
    return {name: sorted(rows, key=repr) for name, rows in found.items()}


if __name__ == "__main__":
    import json

    from tests.crash.driver import Killer
    from tests.crash.kinds_case import topology as shipped
    from tests.lakes import lake_place

    plan = json.loads(sys.argv[1])
    session = spark_session(
        "crash", master="local[2]", conf={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    )
    Runtime(session, Lake(lake_place(plan["home"])), listeners=[Killer(plan["kill"])], max_attempts=20).catch_up(
        shipped()
    )
