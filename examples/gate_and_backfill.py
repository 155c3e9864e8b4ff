"""A gate, its quarantine, and a day that is backfilled after the data was mended.

Run it: `.venv/bin/python examples/gate_and_backfill.py`
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from pipelines import Lake, Runtime, spark_session
from pipelines.quality import drop
from pipelines.sources import JsonFiles
from pipelines.trident import Count, DeltaState, Sum, TridentTopology


def main(root: str) -> list[dict[str, Any]]:
    """Sales of two days, one row of them wrong at first; returns the state after the mended day was backfilled."""
    folder = Path(root) / "sales"
    folder.mkdir()
    _write(folder / "1.json", [{"day": "2026-01-01", "shop": "a", "n": 3}, {"day": "2026-01-02", "shop": "a", "n": -5}])

    topology = TridentTopology("sales")
    sales = topology.new_stream("sales", JsonFiles(folder, "day string, shop string, n bigint"), slice_by="day")
    sane = sales.gate(drop("expect_column_values_to_be_between", column="n", min_value=0), name="sane")
    sane.group_by("shop").persistent_aggregate(DeltaState("shop_sales"), [Count("sales"), Sum("n", "sum_n")])

    lake = Lake(Path(root) / "lake")
    runtime = Runtime(spark_session(), lake)
    runtime.catch_up(topology)
    print("counted:", lake.state("shop_sales").scan().to_pylist())
    for row in lake.quarantine("sales").scan().to_pylist():
        print("rejected:", row["row"], "because", row["reason"])

    _write(folder / "1.json", [{"day": "2026-01-01", "shop": "a", "n": 3}, {"day": "2026-01-02", "shop": "a", "n": 5}])
    runtime.backfill(topology, ["2026-01-02"])
    result = lake.state("shop_sales").scan().to_pylist()
    print("after the backfill of 2026-01-02:", result, "rejected:", lake.quarantine("sales").scan().num_rows)
    return result


def _write(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
