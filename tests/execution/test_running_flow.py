"""The end of a running flow: one stream that has failed does not keep the others from theirs."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.errors import LostRowsError
from pipelines.execution.runtime import RunningFlow, _StreamPart


class Stream:
    """Stands for the runner, the query and the lock of a stream."""

    def __init__(self, name: str, log: list[str], error: Exception | None = None) -> None:
        self._name, self._log, self._error = name, log, error
        self.reports: list[Any] = []

    def drain(self, query: Any) -> None:
        self._log.append(f"{self._name} drained")

    def finish(self, query: Any) -> None:
        if self._error:
            raise self._error

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.append(f"{self._name} unlocked")


def test_all_streams_are_drained_and_unlocked_though_one_has_failed() -> None:
    log: list[str] = []
    streams: list[Any] = [Stream("a", log, LostRowsError("a", "files 1 to 3")), Stream("b", log)]
    with pytest.raises(LostRowsError):
        RunningFlow("f", [_StreamPart(one, one, one) for one in streams]).stop()
    assert log == ["a drained", "a unlocked", "b drained", "b unlocked"]
