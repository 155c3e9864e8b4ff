"""Any batches, replays and removals: tables of every layout and kind equal a plain model. No Spark."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.state.kinds import LOG, MAP, OPAQUE, ROWS, TRANSACTIONAL
from tests.state.small_kinds import SmallTable

pytestmark = pytest.mark.slow

Row = tuple[str | None, int | None]
BATCH = st.dictionaries(st.sampled_from(("a", "b", None)), st.integers(-5, 5) | st.none(), max_size=3)
ATTEMPTS = st.lists(BATCH, min_size=1, max_size=3)
GAPS = st.sampled_from((1, 1, 1, 63, 64))


def rows_of(batch: dict[str | None, int | None], layout: str) -> list[Row]:
    """In a map state a null removes the key."""
    return [(key, n if layout == MAP else n or 0) for key, n in batch.items()]


def applied(held: list[Row], rows: list[Row], layout: str) -> list[Row]:
    """What the state holds after a batch on top of `held`."""
    if layout == ROWS:
        return held + rows
    now = dict(held)
    for key, n in rows:
        if layout == LOG:
            now[key] = (now.get(key) or 0) + (n or 0)
        elif n is None:
            now.pop(key, None)
        else:
            now[key] = n
    return list(now.items())


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        (TRANSACTIONAL, LOG),
        (OPAQUE, MAP),
        (OPAQUE, ROWS),
        *(
            pytest.param(*other, marks=pytest.mark.exhaustive)
            for other in ((TRANSACTIONAL, MAP), (TRANSACTIONAL, ROWS), (OPAQUE, LOG))
        ),
    ],
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(st.tuples(ATTEMPTS, GAPS), max_size=5))
def test_each_batch_counts_once(
    layout: str, kind: str, batches: list[tuple[list[dict[str | None, int | None]], int]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        state = SmallTable(Path(folder), layout, kind)
        txid, model = -1, list[Row]()
        for attempts, gap in batches:
            txid, before = txid + gap, model
            for number, batch in enumerate(attempts):
                rows = rows_of(batch, layout)
                known = state.writer.committed("shop/counts/1") == txid
                assert known == (number > 0)
                state.commit(txid, *rows, known=known)
                if not known or kind == OPAQUE:
                    model = applied(before, rows, layout)
                assert state.held() == sorted(model, key=lambda row: [(one is None, str(one)) for one in row])
                if kind == OPAQUE:
                    assert sorted(map(str, state.base(txid))) == sorted(map(str, before))
            assert state.held(txid=txid) == state.held()
