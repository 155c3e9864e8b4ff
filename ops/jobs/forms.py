"""Steps of jobs, and jobs of one step with a form: the launchpad's fields, and what it refuses before the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any
from zlib import crc32

import dagster as dg
from pydantic import create_model

from assets.view import FlowView


def flow_step(
    view: FlowView, verb: str, what: str, *, after: str = "", alone: bool = False, priority: int = 0
) -> Callable[[Callable[..., None]], dg.OpDefinition]:
    """Make a function the step of a flow in a job of all flows.

    Args:
        verb: What the step does; its name is `<verb>_<flow>`.
        what: Its help text.
        after: What the step before has done; empty: it is the first.
        alone: Whether it holds the flow's pool, so that nothing else writes meanwhile.
        priority: Where one process runs the steps, those of higher priority come first.
    """
    return dg.op(
        name=f"{verb}_{view.name}",
        description=what,
        ins={after: dg.In(dg.Nothing)} if after else None,
        out=dg.Out(dg.Nothing),
        tags={"flow": view.name, "dagster/priority": str(priority)},
        pool=view.pool if alone else None,
    )


def one_of(name: str, members: Iterable[str]) -> Any:
    """Make an enum: the form offers its members, and refuses all else before the run. Without members it has `none`.

    Dagster keeps the types of forms by name, for as long as the process lives: other members need another name, or a second
    catalog in one process (in tests, say) is refused what it has.

    Args:
        name: What the form calls it.
    """
    chosen = {member: member for member in members} or {"none": "none"}
    return Enum(f"{name}_{crc32(repr(sorted(chosen)).encode()):08x}", chosen)


def form(verb: str, what: str, **fields: Any) -> Any:
    """Make the config class of a job's step.

    Args:
        verb: What the job does, e.g. `skip_batch`.
        what: Its help text.
        fields: (type, pydantic's Field) by name.
    """
    made: Any = create_model(f"{verb.title().replace('_', '')}Config", __base__=dg.Config, **fields)
    made.__doc__ = what
    return made


def one_step_job(
    verb: str,
    what: str,
    step: dg.OpDefinition,
    max_runtime_seconds: int,
    example: Mapping[str, Any] | None = None,
) -> dg.JobDefinition:
    """Make `<verb>_job` of the step alone. Dagster ends a run that takes too long.

    Args:
        verb: What the job does.
        what: Its help text.
        example: The step's config with which the launchpad opens; none: the defaults of its fields.
    """
    opened_with: Any = {"ops": {step.name: {"config": dict(example)}}} if example is not None else None

    @dg.job(
        name=f"{verb}_job",
        description=what,
        tags={"dagster/max_runtime": str(max_runtime_seconds)},
        config=opened_with,
    )
    def job() -> None:
        step()

    return job
