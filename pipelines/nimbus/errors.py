"""The errors of deployed flows and of their registry. The texts of the original's messages are kept word for word."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.errors import BadNameError, TrideltaError, nearest
from pipelines.private import masked


class NimbusError(TrideltaError):
    """Nimbus refuses what was asked of it; nothing has changed."""


class RegistryError(NimbusError):
    """The registry's database cannot be opened, or has another form than this release."""

    def __init__(self, url: str, problem: str, *, hint: str = "") -> None:
        # Whoever raises it may have met the URL before it could be read as one.
        self.url, self.problem = masked(url), masked(problem)
        super().__init__(f"the registry {self.url} {self.problem}", hint=hint)


class NoTablesError(RegistryError):
    """The registry's database is there and empty: nothing was deployed yet, or its tables are being restored."""

    def __init__(self, url: str) -> None:
        hint = "if it is new, submit a flow or start a supervisor; if its tables were lost, restore them first"
        super().__init__(url, "has no tables", hint=hint)


class DeployNameError(BadNameError, NimbusError):
    """A flow cannot be deployed under this name (Nimbus rules 1.2)."""

    def __init__(self, name: object, pattern: str) -> None:
        self.pattern = pattern
        super().__init__("flow", name)
        text = f"Topology name '{name}' is not valid. It can't be null and it must match {pattern}"
        self.args = (text,)


class AlreadyAliveError(NimbusError):
    """A flow of this name is deployed; a killed one counts until it is removed (Nimbus rules 1.2)."""

    def __init__(self, flow: str, status: str) -> None:
        self.flow, self.status = flow, status
        hint = (
            "wait until it is removed" if status == "KILLED" else f"update it, or kill it first: tridelta kill {flow}"
        )
        super().__init__(f"{flow} is already alive", hint=hint)


class NotAliveError(NimbusError):
    """No flow of this name is deployed (Nimbus rules 1.3)."""

    def __init__(self, flow: str, alive: Sequence[str] = ()) -> None:
        self.flow, self.alive = flow, tuple(alive)
        hint = (
            f"deployed are: {', '.join(alive)}{nearest(flow, alive)}"
            if alive
            else f"no flow is deployed; submit it first: tridelta submit {flow}"
        )
        super().__init__(f"{flow} is not alive", hint=hint)


class NoTransitionError(NimbusError):
    """The flow's status does not allow this (Nimbus rules 1.3)."""

    def __init__(self, event: str, status: str, flow: str) -> None:
        self.event, self.status, self.flow = event, status, flow
        hint = {
            "KILLED": "it is being removed: submit it again afterwards",
            "REBALANCING": "wait until the rebalance has ended, or kill it",
        }.get(status, "")
        super().__init__(f"No transition for event: {event}, status: {status} storm-id: {flow}", hint=hint)


class SubmitError(NimbusError):
    """A flow cannot be deployed as asked (Nimbus rules 1.2)."""

    def __init__(self, flow: str, problem: str) -> None:
        self.flow, self.problem = flow, problem
        super().__init__(problem)


class FormSettingError(NimbusError):
    """A form or a file asks for a Spark setting that only the command line may give."""

    def __init__(self, flow: str, setting: str) -> None:
        self.flow, self.setting = flow, setting
        super().__init__(
            f'flow "{flow}": a form does not take {setting!r} as it is given: it may run code or lead elsewhere',
            hint="forms take sizes, counts and switches (docs/security.md); for all else: tridelta update FLOW --setting K=V",
        )


class UnknownFormSettingError(NimbusError):
    """A form asks for a setting that no flow has; its own fields stand beside the settings."""

    def __init__(self, flow: str, setting: str, known: Sequence[str]) -> None:
        self.flow, self.setting, self.known = flow, setting, tuple(known)
        super().__init__(
            f'flow "{flow}": a form has no setting {setting!r}{nearest(setting, known)}',
            hint=f"settings are {', '.join(sorted(known))}",
        )


class RebalanceError(NimbusError):
    """A rebalance asks for what the flow cannot have (Nimbus rules 1.3)."""

    def __init__(self, flow: str, problem: str, *, component: str | None = None, value: object = None) -> None:
        self.flow, self.problem, self.component, self.value = flow, problem, component, value
        super().__init__(problem)


class FormerVersionError(NimbusError):
    """The version before of a changed flow was to read its channels to their end, and was stopped before."""

    def __init__(self, flow: str, query: str, version: int) -> None:
        self.flow, self.query, self.version = flow, query, version
        super().__init__(
            f'flow "{flow}": the query {query} of version {version} was stopped before it had read to its end',
            hint=f"if the flow cannot go on from there, bring that version back first: tridelta rollback {flow}",
        )


class VersionError(NimbusError):
    """A version of a flow is not there, or is no longer the current one."""

    def __init__(self, flow: str, version: int, problem: str, current: int) -> None:
        self.flow, self.version, self.current = flow, version, current
        super().__init__(f'flow "{flow}", version {version}: {problem}; the current version is {current}')


class LeaseHeldError(NimbusError):
    """Another holder has the lease, and it has not run out."""

    def __init__(self, name: str, holder: str, other: str, seconds: float) -> None:
        self.name, self.holder, self.other, self.seconds = name, holder, other, seconds
        super().__init__(
            f'lease "{name}": {other} holds it for {seconds:g} s more; {holder} cannot take it',
            hint="wait until it is given back or runs out",
        )


class RegistryLeaseLostError(NimbusError):
    """The lease ran out, was given back, or is another holder's by now: the old holder must stop at once."""

    def __init__(self, name: str, holder: str, token: int, *, seen_holder: str | None, seen_token: int) -> None:
        self.name, self.holder, self.token = name, holder, token
        self.seen_holder, self.seen_token = seen_holder, seen_token
        now = (
            f"{seen_holder} took it with token {seen_token}"
            if seen_token > token
            else "it has run out or was given back"
        )
        super().__init__(
            f'lease "{name}": {holder} no longer holds it with token {token}: {now}',
            hint="stop; take it again to go on",
        )


LeaseLostError = RegistryLeaseLostError
"""The former name, which `pipelines.places.lease` has, too; it goes with version 0.3."""


class SettingError(NimbusError):
    """A setting of Nimbus' processes is impossible."""

    def __init__(self, problem: str, *, hint: str = "") -> None:
        self.problem = problem
        super().__init__(problem, hint=hint)


class DeployError(NimbusError):
    """A flow cannot be deployed: what it is made of does not fit the deployment."""

    def __init__(self, flow: str, problem: str, *, hint: str = "") -> None:
        self.flow, self.problem = flow, problem
        super().__init__(f'flow "{flow}": {problem}', hint=hint)


class WaitError(NimbusError):
    """A deployed flow has not come to where somebody waits for it."""

    def __init__(self, flow: str, until: str, seconds: float, seen: str) -> None:
        self.flow, self.until, self.seconds, self.seen = flow, until, seconds, seen
        super().__init__(f'flow "{flow}" is not {until} after {seconds:g} s: {seen}', hint=f"see: tridelta logs {flow}")


class HandedOverError(NimbusError):
    """A request that was handed to a worker has failed there; `kind` is the class of the error there."""

    def __init__(self, flow: str, problem: str, *, kind: str = "", hint: str = "") -> None:
        self.flow, self.problem, self.kind = flow, problem, kind
        super().__init__(problem, hint=hint)


class OtherCodeError(NimbusError):
    """A worker has another code of a flow than whoever asks it."""

    def __init__(self, flow: str) -> None:
        self.flow = flow
        super().__init__(f'flow "{flow}": the worker was started with other code', hint=f"tridelta update {flow}")


class WorkerBusyError(NimbusError):
    """A worker has as many requests under way as it takes; 0: it ends, and takes none."""

    def __init__(self, flow: str, limit: int) -> None:
        self.flow, self.limit = flow, limit
        why = f"{limit} requests are under way in the worker, and it takes no more" if limit else "the worker ends soon"
        super().__init__(f'flow "{flow}": {why}')


class NobodyWarmError(NimbusError):
    """No worker takes a request; nothing was begun."""

    def __init__(self, flow: str, reason: str) -> None:
        self.flow, self.reason = flow, reason
        super().__init__(f'flow "{flow}": no worker takes it: {reason}')
