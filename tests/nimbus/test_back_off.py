"""Pauses between tries of what fails again and again."""

from __future__ import annotations

from pipelines.nimbus.processes.back_off import pause_after


def test_pauses_double_up_to_the_longest() -> None:
    assert [pause_after(failures, 60.0) for failures in range(1, 9)] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


def test_what_fails_for_days_still_waits() -> None:
    """A power of the count was no float any more after 1,024 failures, 17 hours with a minute between them."""
    assert pause_after(100_000, 60.0) == 60.0
