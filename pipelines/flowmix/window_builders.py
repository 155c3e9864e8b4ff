"""The builders of a stream's stateful operations: what is missing is refused in the original's words (Flowmix rules 2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from pipelines.aggregators.window import EventAggregator
from pipelines.graph.fields import added, checked_name
from pipelines.windows.operations import (
    AggregateWindow,
    CollectWindow,
    JoinWindow,
    SortWindow,
    SwitchWindow,
)
from pipelines.windows.policy import Policy

Refuse = Callable[..., NoReturn]
"""Raises a FlowError at the user's line: `refuse(problem, hint="")`."""


def aggregate_window(
    aggregators: Sequence[Any],
    trigger: Any,
    evict: Any,
    clear_on_trigger: bool,
    window_evict_millis: int,
    refuse: Refuse,
) -> AggregateWindow:
    """Return an aggregate as data."""
    if not aggregators:
        refuse(
            "Aggregator operator needs an aggregator class", hint='aggregate(Count(), ...), aggregate(Sum("v"), ...)'
        )
    for one in aggregators:
        if not isinstance(one, EventAggregator):
            refuse(
                f"Aggregator operator needs an aggregator class; got {one!r}",
                hint="use those of pipelines.flowmix (with brackets: Count()), or a subclass of WindowAggregator",
            )
    _policy(trigger, "Aggregator operator needs to have trigger policy and threshold", refuse)
    _policy(evict, "Aggregator operator needs to have eviction policy and threshold", refuse)
    _millis(window_evict_millis, refuse)
    return AggregateWindow(
        tuple(aggregators), trigger, evict, clear_on_trigger=clear_on_trigger, window_evict_millis=window_evict_millis
    )


def inputs_of(aggregator: Any) -> tuple[str, ...]:
    """Return the fields that an aggregator says it reads; none of what is no aggregator, which is refused elsewhere."""
    return aggregator.reads if isinstance(aggregator, EventAggregator) else ()


def collect_window(
    trigger: Any, evict: Any, clear_on_trigger: bool, field: str, window_evict_millis: int, refuse: Refuse
) -> CollectWindow:
    """Return a collect as data."""
    _policy(trigger, "Collect operator needs to have trigger policy and threshold", refuse)
    _policy(evict, "Collect operator needs to have eviction policy and threshold", refuse)
    _millis(window_evict_millis, refuse)
    added("collect", field, ())
    return CollectWindow(
        trigger, evict, clear_on_trigger=clear_on_trigger, field=field, window_evict_millis=window_evict_millis
    )


def sort_window(
    fields: Sequence[str],
    progressive: int | None,
    tumbling: Any,
    top_n: int | None,
    trigger: Any,
    flush: bool,
    window_evict_millis: int,
    refuse: Refuse,
) -> SortWindow:
    """Build a sort as data; the checks are in the original's order: fields, eviction, trigger."""
    by = tuple(_sort_key(field, refuse) for field in fields)
    if not by:
        refuse("Sort operator needs at least one field name to sort by", hint='sort("v", ...) or sort("v desc", ...)')
    modes = {"progressive": progressive, "tumbling": tumbling, "top_n": top_n}
    given = [mode for mode, value in modes.items() if value is not None]
    if len(given) != 1:
        seen = f"; got {' and '.join(given)}" if given else ""
        refuse(
            f"Sort operator needs an eviction policy and threshold{seen}",
            hint="give one of progressive=n, tumbling=policy, top_n=n",
        )
    mode, size = given[0], modes[given[0]]
    if mode == "tumbling":
        if trigger is not None and tumbling is not trigger:
            refuse("Sort operator: tumbling takes its policy itself", hint="tumbling=Policy.count(n), without trigger")
        trigger, size = tumbling, None
    elif not isinstance(size, int) or isinstance(size, bool) or size < 1:
        refuse(f"Sort operator needs an eviction policy and threshold; {mode} takes a number of events, got {size!r}")
    if mode == "progressive" and trigger is not None:
        refuse("Sort operator: progressive is triggered by every event", hint="leave trigger out, or use top_n")
    if mode != "progressive":
        _policy(trigger, "Sort operator needs a trigger policy and threshold", refuse)
    if flush and mode != "top_n":
        refuse(f"Sort operator: flush goes with top_n, not with {mode}")
    _millis(window_evict_millis, refuse)
    return SortWindow(by, mode, size, trigger, flush, window_evict_millis)  # type: ignore[arg-type]


def switch_window(open: Any, evict: Any, close: Any, refuse: Refuse) -> SwitchWindow:
    """Return a switch (the original's stop gate) as data."""
    _policy(open, "Stop gate operator must have an activation policy and threshold", refuse)
    _policy(evict, "Stop gate operator must have an eviction policy and threshold", refuse)
    _policy(close, "Stop gate operator must have an close policy and threshold", refuse)
    return SwitchWindow(open, evict, close)


def join_window(left: Any, right: Any, evict: Any, refuse: Refuse) -> JoinWindow:
    """Return a join as data."""
    _policy(evict, "Eviction policy is required by the join operator", refuse)
    if not left or not right:
        refuse("Left and right side streams required by the join operator")
    if left == right:
        refuse(f'Left and right side streams required by the join operator: both are "{left}"')
    return JoinWindow(checked_name("stream", left), checked_name("stream", right), evict)


def _policy(given: Any, problem: str, refuse: Refuse) -> None:
    if not isinstance(given, Policy):
        seen = "" if given is None else f"; got {given!r}"
        refuse(f"{problem}{seen}", hint="Policy.count(events), Policy.time(seconds) or Policy.time_delta_lt(seconds)")


def _millis(given: Any, refuse: Refuse) -> None:
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        refuse(f"window_evict_millis is a positive whole number of milliseconds; got {given!r}")


def _sort_key(text: Any, refuse: Refuse) -> tuple[str, bool]:
    """`"v"`, `"v asc"` or `"v desc"` as (field, descending)."""
    parts = text.split() if isinstance(text, str) else []
    if len(parts) not in (1, 2) or (len(parts) == 2 and parts[1].lower() not in ("asc", "desc")):
        refuse(f'Sort operator needs at least one field name to sort by; {text!r} is not "field" or "field desc"')
    return parts[0], parts[-1].lower() == "desc" and len(parts) == 2
