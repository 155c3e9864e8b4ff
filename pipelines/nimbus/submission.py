"""What must hold before a flow is deployed (Nimbus rules 1.2). Pure checks: nothing is written here."""

from __future__ import annotations

import json
import re

from pipelines.bounds import MESSAGE_TIMEOUT_SECONDS, TASKS, WORKERS, OutOfBoundsError, Range, shown
from pipelines.nimbus.errors import DeployNameError, RebalanceError, SubmitError
from pipelines.nimbus.registry.lifecycle import Status, check_timeout
from pipelines.nimbus.registry.records import Content, Limits, SubmitOptions

NAME_PATTERN = r"^[^/.:\\]+$"


def check_name(name: object) -> str:
    """The name, if a flow can be deployed under it.

    Raises:
        DeployNameError: It is not text, is empty, or has one of `/ . : \\` in it.
    """
    # A full match: a bare `$` would let a line break at the end pass.
    if not isinstance(name, str) or not re.fullmatch(NAME_PATTERN[1:-1], name):
        raise DeployNameError("null" if name is None else name, NAME_PATTERN)
    return name


def check_options(name: str, options: SubmitOptions | None) -> SubmitOptions:
    """The options, if there are any and a flow can start like that.

    Raises:
        SubmitError: There are none, or the initial status is neither ACTIVE nor INACTIVE.
    """
    if options is None:
        raise SubmitError(name, "Cannot submitTopologyWithOpts: SubmitOptions parameter value is null")
    if options.status not in (Status.ACTIVE, Status.INACTIVE):
        raise SubmitError(name, f"Initial status of a topology must be ACTIVE or INACTIVE, not {options.status}")
    return options


def check_content(name: str, content: Content, limits: Limits) -> None:
    """Whether the content asks for what a flow may have.

    Raises:
        SubmitError: There are no components, a number is not above 0, a value is not JSON, or a limit is exceeded.
    """
    if not content.components:
        raise SubmitError(name, "a topology needs at least one component")
    for what, number in [("workers", content.workers), *content.components.items()]:
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise SubmitError(name, f"the number of {what} must be greater than 0, not {shown(number)}")
        _check(name, f"the number of {what}", number, WORKERS if what == "workers" else TASKS)
    _check_values(name, content)
    executors = sum(content.components.values())
    for what, asked, limit in (
        ("workers", content.workers, limits.workers),
        ("executors", executors, limits.executors),
    ):
        if limit is not None and asked > limit:
            problem = f"Failed to submit topology. Topology requests more than {limit} {what}."
            raise SubmitError(name, problem, asked=asked, limit=limit)


def check_wait(name: str, wait_seconds: float | None) -> None:
    """Whether somebody can wait for so long; a negative number means the default (Nimbus rules 4).

    Raises:
        SubmitError
    """
    if wait_seconds is not None:
        _check(name, "wait_seconds", wait_seconds, MESSAGE_TIMEOUT_SECONDS)


def _check(name: str, what: str, number: object, limit: Range) -> None:
    try:
        limit.taken(number)
    except OutOfBoundsError as error:
        raise SubmitError(name, f"{what} {error}") from None


def _check_values(name: str, content: Content) -> None:
    try:
        # NaN is not JSON, and PostgreSQL refuses it where SQLite takes it.
        json.dumps([dict(content.definition), dict(content.settings)], allow_nan=False)
        check_timeout(name, content.settings)
    except (TypeError, ValueError) as error:
        raise SubmitError(name, f"definition and settings must be plain JSON values: {error}") from error
    except RebalanceError as error:
        raise SubmitError(name, error.problem) from error
