"""User counters: raised inside functions wherever they run, they arrive at the hooks of the batch (docs/architecture.md#trident).

```python
from pipelines.trident import count

@row_function("string")
def words(sentence):
    if not sentence:
        count("empty_sentences")
    yield from (sentence or "").split()
```

As in the original, a counter says what was done and not what was committed: a row that is computed twice, for an attempt that
failed or a task that Spark ran again, counts twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol


class CountSink(Protocol):
    """A sink of counts: a Spark accumulator of dicts."""

    def add(self, counts: dict[str, int]) -> None: ...


_compiling: ContextVar[tuple[CountSink, str] | None] = ContextVar("compiling", default=None)
"""Where the functions of the plan that this thread builds shall count, and the prefix of their counters' names."""
_running: tuple[CountSink, str] | None = None
"""Where the function that runs now, in this process, counts."""


def count(name: str, number: int = 1) -> None:
    """Add to a counter of the batch. Outside a topology's function it does nothing."""
    if _running is not None:
        sink, scope = _running
        sink.add({f"{scope}{name}": number})


@contextmanager
def counting_into(sink: CountSink, scope: str = "") -> Iterator[None]:
    """Let the functions of plans that are built within it count into `sink`, under names that begin with `scope`."""
    token = _compiling.set((sink, scope))
    try:
        yield
    finally:
        _compiling.reset(token)


def counted(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a user's function as a plan ships it: its counters go where the plan's counters go.

    A generator's body runs after this returns, so what it counts goes to the same place: the function that ran last in the
    process is of the same plan.
    """
    target = _compiling.get()
    return call if target is None else _CountedCall(call, target)


class _CountedCall:
    """A class and not a closure: pickled by name, it finds this module's own globals in the worker."""

    def __init__(self, call: Callable[..., Any], target: tuple[CountSink, str]) -> None:
        self._call, self._target = call, target

    def __call__(self, *values: Any) -> Any:
        global _running
        _running = self._target
        return self._call(*values)
