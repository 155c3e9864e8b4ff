"""What Spark's logs say of the files that a batch took, whether they are read by name or looked for."""

from __future__ import annotations

import json
from pathlib import Path

from pipelines.sources.offsets import files_of_batches, listings, log_offset


def entries(*numbers: int) -> str:
    lines = [json.dumps({"path": f"file:///in/{number}", "timestamp": 1, "batchId": number}) for number in numbers]
    return "\n".join(["v1", *lines]) + "\n"


def test_files_of_listings_by_name_and_behind_a_compaction(tmp_path: Path) -> None:
    # Spark writes the tenth as a compact file, and deletes what it holds after a while.
    (tmp_path / "9.compact").write_text(entries(*range(10)))
    for number in (6, 7, 8, 10, 11, 12, 13, 14, 15):
        (tmp_path / str(number)).write_text(entries(number))
    for first in range(16):
        for last in range(first - 1, 16):
            wanted = [f"file:///in/{number}" for number in range(first, last + 1)]
            assert sorted(files_of_batches(tmp_path, first, last)) == sorted(wanted), (first, last)
    assert list(files_of_batches(tmp_path / "none", 0, 3)) == []


def test_the_last_listing_of_a_batch_that_is_not_in_the_log_is_that_of_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    for batch, listing in ((0, 0), (1, 2), (4, 5)):
        (tmp_path / "offsets" / str(batch)).write_text(f'v1\n{{}}\n{{"logOffset":{listing}}}')
    (tmp_path / "offsets" / "5").write_text("v1\n{}\n-")
    assert [log_offset(tmp_path, batch) for batch in range(-1, 6)] == [-1, 0, 2, 2, 2, 5, -1]
    assert log_offset(tmp_path / "none", 3) == -1


def test_listings_have_numbers_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    for batch, lines in enumerate((("0", "-"), ("2", "-"), ("2", "0"))):
        offsets = [line if line == "-" else f'{{"logOffset":{line}}}' for line in lines]
        (tmp_path / "offsets" / str(batch)).write_text("\n".join(["v1", "{}", *offsets, '{"topic":{"0":1}}', "7"]))
    assert [[*listings(tmp_path, batch, 0)] for batch in range(3)] == [[0], [1, 2], []]
    assert [[*listings(tmp_path, batch, 1)] for batch in range(3)] == [[], [], [0]]
    assert {listings(tmp_path, batch, index).stop for batch in range(3) for index in (2, 3)} == {0}
