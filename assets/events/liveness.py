"""The check that a deployed flow is alive: one per deployment, on demand and by the sensor that follows all of them."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from assets.deployment import deployment_key
from assets.events.reporting import plain_failures
from assets.view import FlowView
from pipelines import logs
from pipelines.nimbus.status import DRAINED, SILENT, STAYS, UNPLACED
from resources import NimbusResource

if TYPE_CHECKING:
    from pipelines.nimbus.status import FlowStatus, TaskStatus

logger = logs.logger(__name__)

ALIVE = "alive"
ALERT = "TRIDELTA_ALERT"
"""Where alerts go: an http(s) URL that takes JSON, or a command that gets it on its standard input."""

STUCK_SECONDS = 600.0
"""With something to read and no batch for so long (and for ten triggers), a query is stuck; so it is without a first trigger."""
_ALERT_SECONDS = 10.0


def trouble(seen: FlowStatus, now: float) -> dict[str, str]:
    """Return the faults of a deployed flow as sentences, each by what stays the same while it lasts; empty if all is well.

    A flow that somebody deactivated, or that a rebalance or a kill drains, is well.
    """
    problems = {seen.problem: seen.problem} if seen.problem else {}
    if seen.status == "ACTIVE":
        for task in seen.tasks:
            if task.state == SILENT and seen.problem and not seen.problem.startswith((UNPLACED, STAYS)):
                # Its worker may well beat for other flows: nobody beats for a query that cannot be loaded.
                continue
            if (found := _trouble(task, now)) is not None:
                problems[f"{task.group}: {found[0]}"] = f"{task.group}: {found[1]}"
    return problems


def _trouble(task: TaskStatus, now: float) -> tuple[str, str] | None:
    """Return the kind of a query's fault, and what it is now: seconds grow, and each attempt has its own error."""
    if task.state == "silent":
        return "silent", f"its worker has not beaten for {task.beat_age_seconds:.0f} s"
    if task.failing:
        what, *more = (task.last_error or "failed").splitlines()
        # A refusal names its batch: that a gate refuses the next one, too, is another fault.
        kind = what if '" refused ' in what else "failing"
        return kind, "\n".join([what, *(line for line in more if line.startswith("  Next: "))])
    if task.gone:
        what = f"what it reads is gone: {', '.join(task.gone)}"
        return what, what
    behind = task.lag_seconds or 0.0
    # While it was deactivated nobody expected a batch.
    still = now - max(task.last_batch_at or now - behind, task.begun_at or 0.0)
    # Also one that hangs in its start, or while it drains for another place. Drained it is only until its worker has seen
    # that the flow is active.
    stands = task.state != DRAINED and any(task.backlog.values())
    patience = max(STUCK_SECONDS, 10 * task.trigger_seconds)
    if stands and still > patience:
        return "stuck", f"it has something to read and no batch since {still:.0f} s"
    # What it has to read nobody has counted before its first trigger in this worker: not in a start that hangs.
    started = now - (now if task.no_trigger_since is None else task.no_trigger_since)
    if task.state != DRAINED and started > patience:
        return "start", f"it has not come through a trigger since {started:.0f} s"
    return None


def liveness(seen: FlowStatus, wrong: list[str]) -> dg.AssetCheckEvaluation:
    """Return the check as the sensor reports it."""
    return dg.AssetCheckEvaluation(asset_key=deployment_key(seen.name), check_name=ALIVE, **_verdict(wrong, seen))


def liveness_check(view: FlowView) -> dg.AssetChecksDefinition:
    """Make the same check, on demand."""

    @dg.asset_check(
        asset=deployment_key(view.name),
        name=ALIVE,
        description="All queries of the deployed flow run and make progress.",
    )
    def alive(nimbus: NimbusResource) -> dg.AssetCheckResult:
        with plain_failures():
            seen = nimbus.deployed().get(view.name)
        if seen is None:
            return dg.AssetCheckResult(passed=True, metadata={"deployed": False})
        return dg.AssetCheckResult(**_verdict(list(trouble(seen, time.time()).values()), seen))

    return alive


def _verdict(wrong: list[str], seen: FlowStatus) -> dict[str, Any]:
    metadata: dict[str, Any] = {"status": seen.status, "version": seen.version}
    if wrong:
        metadata |= {"trouble": "\n".join(wrong), "next": f"tridelta status {seen.name}; tridelta logs {seen.name}"}
    return {"passed": not wrong, "severity": dg.AssetCheckSeverity.ERROR, "metadata": metadata}


def alert(flow: str, wrong: list[str], environment: Mapping[str, str] = os.environ) -> bool:
    """Send an alert that a flow is in trouble, or (with nothing wrong) that it is well again.

    Args:
        environment: Its TRIDELTA_ALERT says where it goes; without it no alert is sent.

    Returns:
        Whether the alert was delivered. An alert that does not get through is logged, and is no error.
    """
    where = environment.get(ALERT, "").strip()
    if not where:
        return False
    text = json.dumps({"flow": flow, "status": "trouble" if wrong else "well", "trouble": wrong}).encode()
    try:
        if where.lower().startswith(("http://", "https://")):
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(where, data=text, headers=headers)  # noqa: S310 (the scheme is known)
            # No other scheme: a redirection leads to these or fails.
            urllib.request.urlopen(request, timeout=_ALERT_SECONDS).close()  # noqa: S310
        else:
            subprocess.run(shlex.split(where), input=text, timeout=_ALERT_SECONDS, check=True, capture_output=True)
    # Whatever is wrong with the address, the command or what answers: the tick that tells of flows goes on.
    except Exception as error:
        logger.error("alert not delivered", flow=flow, reason=_reason(error))
        return False
    return True


def alert_all(flows: Sequence[tuple[str, list[str]]]) -> None:
    """Send alerts side by side, and wait for all of them no longer than for one.

    Whatever answers late, a name server among it, must not keep the sensor from telling of flows: what is under way goes on.
    """
    sending = [threading.Thread(target=alert, args=flow, name="alert", daemon=True) for flow in flows]
    for thread in sending:
        thread.start()
    until = time.monotonic() + _ALERT_SECONDS
    for thread in sending:
        thread.join(max(0.0, until - time.monotonic()))


def _reason(error: Exception) -> str:
    """Say what went wrong, without the address or the arguments: these may hold a token."""
    if isinstance(error, subprocess.CalledProcessError):
        return f"the command ended with exit code {error.returncode}"
    if isinstance(error, subprocess.TimeoutExpired | TimeoutError):
        return f"no answer within {_ALERT_SECONDS:g} s"
    if isinstance(error, urllib.error.HTTPError):
        return f"the address answered {error.code}"
    if isinstance(error, OSError):
        inner = error.reason if isinstance(error, urllib.error.URLError) else error
        return f"{type(error).__name__}: {getattr(inner, 'strerror', None) or type(inner).__name__}"
    return f"{type(error).__name__}: {ALERT} is no address and no command that can be used"
