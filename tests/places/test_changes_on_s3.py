"""A changed definition and housekeeping in a bucket, where nothing is renamed. No Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest

from assets.sources import arrived
from pipelines import Lake
from pipelines.execution.checkpoint.engine_files import CONTINUE
from pipelines.maintenance import Retention, run_housekeeping
from pipelines.maintenance.old_files import StoreFolders, remove_old_objects
from pipelines.places.bucket import BucketStore
from pipelines.places.location import Location
from tests.execution.test_changeover import deployed, two_windows

DAY = 86_400.0


def files(folder: Location) -> dict[str, bytes]:
    """What a folder holds, by path."""
    return {file.key.removeprefix(folder.key): file.read_bytes() for file in folder.rglob("*")}


@pytest.mark.exhaustive
def test_a_query_begins_again_wherever_it_was_cut_off(place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = False
    for allowed in range(20):
        lake = Lake(place / f"lake-{allowed}")
        folder = deployed(lake, version=1)
        assert isinstance(folder, Location)
        before = files(folder / "spark")
        with monkeypatch.context() as cut_off:
            asked = [0]

            def counted(work: Any, asked: list[int] = asked, allowed: int = allowed) -> Any:
                def call(*args: Any) -> Any:
                    asked[0] += 1
                    if asked[0] > allowed:
                        raise KeyboardInterrupt
                    return work(*args)

                return call

            cut_off.setattr(BucketStore, "copy", counted(BucketStore.copy))
            cut_off.setattr(BucketStore, "delete", counted(BucketStore.delete))
            try:
                assert two_windows(lake).make() == (CONTINUE, ["s__1"])
                ended = True
            except KeyboardInterrupt:
                pass
        # The next start goes on from there: the query is begun again, once, and nothing of Spark's is in its way.
        assert two_windows(lake).make()[0] == CONTINUE
        said = json.loads((folder / "start.json").read_text())
        assert said == {"channels": {"f__s__s": 0}, "clock": 0, "behind": 1}
        assert files(folder / "spark") == {}
        kept = [files(aside) for aside in (place / f"lake-{allowed}" / "replaced" / "f").iterdir()]
        assert before in kept
        assert two_windows(lake).make() == (CONTINUE, [])
        if ended:
            return
    raise AssertionError("it is never through")


def test_old_folders_go_with_their_age(place: Location) -> None:
    root = place / "lake" / "replaced"
    for name in ("sales.0.replaced", "sales.1.replaced"):
        for file in ("metadata", "offsets/0"):
            (root / "shop" / name / file).write_bytes(b"1234567890")
    now, replaced = root.store.clock(root.key), StoreFolders("replaced checkpoints", root, "*/*.replaced")
    assert remove_old_objects(replaced, 30, now=now).removed == 0
    assert remove_old_objects(replaced, None, now=now + 1000 * DAY).removed == 0
    counted = remove_old_objects(replaced, 30, dry_run=True, now=now + 31 * DAY)
    assert (counted.before, counted.removed, counted.bytes) == (2, 2, 40)
    assert len(list(root.store.entries(root.key))) == 4
    assert remove_old_objects(replaced, 30, now=now + 31 * DAY).removed == 2
    assert list(root.store.entries(root.key)) == []


def test_a_round_of_housekeeping(place: Location) -> None:
    lake = Lake(place / "lake")
    deployed(lake, version=1)
    (lake.root / "replaced" / "f" / "s.0.replaced" / "metadata").write_bytes(b"{}")
    report = run_housekeeping(lake, retention=Retention(replaced_days=0.0))
    done = {thing.what: (thing.before, thing.removed, thing.note) for thing in report.things}
    copies, runs = ("copies of checkpoints", (0, 0, "")), ("folders of bounded runs", (0, 0, ""))
    assert done == dict([copies, ("replaced checkpoints", (1, 1, "")), runs])


def test_a_round_leaves_what_is_in_no_folder_of_its_own(place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, year = Lake(place / "lake"), 365 * DAY
    own = ["spool/shop/sales/0/rows.json", "copies/README", "spool/notes", "replaced/shop/sales.0.kept/metadata"]
    doomed = ["spool/shop/bounded-1f/part", "copies/shop/sales/1/metadata", "replaced/shop/sales.0.replaced/metadata"]
    for name in own + doomed:
        (lake.root / name).write_bytes(b"1")
    monkeypatch.setattr(BucketStore, "clock", lambda store, key, clock=BucketStore.clock: clock(store, key) + year)
    report = run_housekeeping(lake)
    assert [(thing.removed, thing.note) for thing in report.things] == [(1, "")] * 3
    assert sorted(file.key.removeprefix(f"{lake.root.key}/") for file in lake.root.rglob("*")) == sorted(own)


def test_what_has_arrived_in_a_bucket_is_news(place: Location) -> None:
    folder = place / "in"
    assert arrived(folder).files == 0
    for name in ("2024-01-01.json", "more/2024-01-02.json", "_SUCCESS"):
        (folder / name).write_bytes(b"{}\n")
    seen = arrived(folder)
    assert (seen.files, seen.bytes) == (2, 6)
    assert seen.newest in ("2024-01-01.json", "2024-01-02.json")
    assert arrived(folder) == seen
    (folder / "2024-01-01.json").write_bytes(b"[]\n")
    assert arrived(folder).fingerprint != seen.fingerprint


def test_each_replaced_checkpoint_has_a_folder_of_its_own(place: Location) -> None:
    change = two_windows(Lake(place / "lake"))
    first = change.aside("s__1")
    (first / "metadata").write_bytes(b"1")
    assert (first.name, change.aside("s__1").name) == ("s__1.0.replaced", "s__1.1.replaced")
