"""The settings of a deployed flow: their bounds, to the last element, and what a form may ask for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints, ValidationError, model_validator

from pipelines import bounds, logs
from pipelines.bounds import shown
from pipelines.errors import nearest
from pipelines.flowmix.yaml_parts import Form
from pipelines.nimbus.errors import FormSettingError, SubmitError, UnknownFormSettingError
from pipelines.private import SPARK_SETTINGS
from pipelines.thresholds import Thresholds

if TYPE_CHECKING:
    from pipelines.trident.topology import TridentTopology


logger = logs.logger(__name__)


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be printable text")
    return text


def _distinct(ports: Sequence[str]) -> Sequence[str]:
    if len(set(ports)) != len(ports):
        raise ValueError("names one twice")
    return ports


Words = Annotated[str, StringConstraints(min_length=1, max_length=200), AfterValidator(_printable)]
Value = Annotated[str, StringConstraints(max_length=10_000), AfterValidator(_printable)]
HostNames = Annotated[Sequence[Words], AfterValidator(_distinct)]


class UserWorkerOption(Form):
    """A worker as the user wants it.

    Attributes:
        components: Tasks by query of the flow.
        host: Where; anywhere if it is left out.
        port: Which slot of that host.
    """

    components: Annotated[dict[Words, Annotated[int, bounds.TASKS.field()]], Field(min_length=1)]
    host: Annotated[str, StringConstraints(max_length=200), AfterValidator(_printable)] = ""
    port: Annotated[int, bounds.PORT.field()] | None = None

    @model_validator(mode="after")
    def _port_of_a_host(self) -> UserWorkerOption:
        # Only a worker with a host is placed by its port (Nimbus rules 5.3.4): alone it would be passed over in silence.
        if self.port is not None and not self.host:
            raise ValueError("a port without a host")
        return self


class FlowSettingsForm(Form):
    """The settings of a deployed flow; what is left out has its default where it is used.

    Attributes:
        trigger_seconds: How often a batch begins.
        message_timeout_seconds: The delay of a kill or rebalance that names none.
        max_attempts: Tries a batch.
        application: Flows that name the same one share a Spark application.
        isolated: A Spark application of its own.
        master: Where Spark runs.
        spark: Spark settings of the application.
        hosts: The only hosts it may use.
        user_workers: Workers as the user wants them.
        use_old_assignment: Submitted again, it goes where it was.
        rebalance: Thresholds of the periodic rebalance that differ from the defaults.
        clustering: The columns that most reads of a state name.
        on_fresh_checkpoint: What a start does with tables whose checkpoint is gone.
        owner: Whose it is.
    """

    trigger_seconds: float = bounds.TRIGGER_SECONDS.field(5.0)
    message_timeout_seconds: float | None = bounds.MESSAGE_TIMEOUT_SECONDS.field(None)
    max_attempts: int = bounds.ATTEMPTS.field(3)
    application: Words | None = None
    isolated: bool = False
    master: Annotated[str, StringConstraints(max_length=1000, pattern=f"^(?:{bounds.MASTER})$")] | None = None
    spark: dict[Words, Value | bool | int | float] = {}
    hosts: HostNames = ()
    user_workers: Sequence[UserWorkerOption] = ()
    use_old_assignment: bool = False
    rebalance: dict[Words, Any] = {}
    clustering: dict[Words, Words | Sequence[Words]] = {}
    on_fresh_checkpoint: Literal["refuse", "continue", "reset"] = "refuse"
    owner: Value = ""


SETTINGS: tuple[str, ...] = FlowSettingsForm.parts()
"""The names of all settings."""

TEXTS = frozenset({"application", "master", "on_fresh_checkpoint", "owner"})
"""Settings that are texts: on the command line they stay as they are written, be they `2013-13-45`."""

_KINDS = {
    "application": "a name",
    "clustering": "columns by state",
    "hosts": "a list of names of hosts, each once",
    "isolated": "true or false",
    "master": "where Spark runs: local, local[4], local[*], yarn, spark://HOST:PORT or k8s://...",
    "on_fresh_checkpoint": f"one of {', '.join(bounds.ON_FRESH)}",
    "owner": "a text",
    "rebalance": "thresholds by name",
    "spark": "Spark settings by name, each a text, a number or true or false",
    "use_old_assignment": "true or false",
    "user_workers": "a list of workers, each with components {query: tasks}, and host, or host and port, where it matters",
    "trigger_seconds": str(bounds.TRIGGER_SECONDS),
    "message_timeout_seconds": str(bounds.MESSAGE_TIMEOUT_SECONDS),
    "max_attempts": str(bounds.ATTEMPTS),
}


def check_settings(flow: str, settings: Mapping[str, Any]) -> None:
    """Check that settings are known, and each of its kind to the last element."""
    check_names(flow, settings)
    try:
        FlowSettingsForm.model_validate(dict(settings))
    except ValidationError as error:
        raise SubmitError(flow, _sentence(error, settings)) from None
    try:
        Thresholds(**settings.get("rebalance", {}))
    except (TypeError, ValueError) as error:
        known = ", ".join(Thresholds.__dataclass_fields__)
        problem = str(error).removeprefix("Thresholds.__init__() ")
        raise SubmitError(flow, f"setting rebalance: {problem}; thresholds are {known}") from None


def check_names(flow: str, settings: Mapping[str, Any]) -> None:
    """Check that settings are known."""
    for name in settings:
        if name not in SETTINGS:
            raise SubmitError(flow, f"unknown setting {shown(name)}; settings are {', '.join(sorted(SETTINGS))}")


def going_on(flow: str, before: Any, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the version before with which the next one goes on; another release may have written them.

    What this release has no setting or threshold for is left out, and logged.

    Args:
        asked: Those that are named now.

    Raises:
        SubmitError: One that is not named now has a value that this release cannot work with: whoever updates is to say it.
    """
    held = before if isinstance(before, Mapping) else {}
    unknown = sorted(shown(name) for name in held if name not in SETTINGS)
    if unknown or held is not before:
        logger.warning("settings left out", flow=flow, settings=unknown or shown(before), reason="of another release")
    kept = {name: value for name, value in held.items() if name in SETTINGS}
    if isinstance(limits := kept.get("rebalance"), Mapping):
        # Also where some are named now: they come on top of those that are held.
        kept["rebalance"] = _known_thresholds(flow, limits)
    for name, value in kept.items():
        if name not in asked:
            try:
                check_settings(flow, {name: value})
            except SubmitError as error:
                problem = f"{error.problem}; another release wrote it: name it, --setting {name}=VALUE"
                raise SubmitError(flow, problem) from None
    return kept


def _known_thresholds(flow: str, held: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: value for name, value in held.items() if name in Thresholds.__dataclass_fields__}
    if unknown := sorted(shown(name) for name in held.keys() - known.keys()):
        logger.warning("thresholds left out", flow=flow, thresholds=unknown, reason="of another release")
    return known


def check_user_workers(flow: str, settings: Mapping[str, Any], queries: Sequence[str]) -> None:
    """Check that the flow has the queries that its user-defined workers name."""
    named = {name for worker in settings.get("user_workers", ()) for name in worker["components"]}
    if unknown := sorted(named - set(queries)):
        raise SubmitError(
            flow, f"setting user_workers: the flow has no query {shown(unknown[0])}; it has {', '.join(queries)}"
        )


def _sentence(error: ValidationError, settings: Mapping[str, Any]) -> str:
    """Describe the first fault: which setting, where in it, what it may be and what it is."""
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0])
    # pydantic names the alternatives that it tried too: what is not in the value is no place.
    value: Any = settings.get(name)
    places = []
    for part in first["loc"][1:]:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            continue
        places.append(str(part))
    where = f" ({'.'.join(places)})" if places else ""
    return f"setting {name} must be {_KINDS[name]}, not {shown(first['input'])}{where}"


_VALUE = re.compile(r"-?[0-9][0-9.]{0,18}[A-Za-z]{0,2}|true|false", re.IGNORECASE)
_MASTER = re.compile(r"local(\[(\*|[0-9]{1,4})\])?")


def check_form(flow: str, settings: Mapping[str, Any]) -> None:
    """Refuse what is no setting (`file`), and what would run code or lead elsewhere: `spark.plugins`, another master.

    To be called before the settings are expanded into arguments: else a key of theirs may be any argument.

    Args:
        flow: The flow, for the error.
        settings: As a form has given them, not checked yet.
    """
    for name in settings:
        if name not in SETTINGS:
            raise UnknownFormSettingError(flow, str(name)[:100], SETTINGS)
    master = settings.get("master")
    if master is not None and not (isinstance(master, str) and _MASTER.fullmatch(master)):
        raise FormSettingError(flow, "master")
    spark = settings.get("spark")
    # What is no mapping is refused by the check of the settings' kinds.
    for name, value in spark.items() if isinstance(spark, Mapping) else ():
        if name not in SPARK_SETTINGS or not _VALUE.fullmatch(str(value)):
            raise FormSettingError(flow, str(name)[:100])


SETTING = "clustering"


def asked_columns(settings: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the columns that reads name, by state, most important first.

    Args:
        settings: the flow's settings, checked; `clustering` is `{state: column}` or `{state: [column, ...]}`.
    """
    named = (settings.get(SETTING) or {}).items()
    return {state: (columns,) if isinstance(columns, str) else tuple(columns) for state, columns in named}


def check_asked_columns(topology: TridentTopology, settings: Mapping[str, Any]) -> None:
    """Check that a flow has the states and the columns that its setting names.

    Raises:
        SubmitError: A state that it does not write; a column that the state's files cannot lie by (a key of a log or map
            state, any column of a table of rows).
    """
    from pipelines.state.kinds import ROWS

    asked = asked_columns(settings)
    known: dict[str, Sequence[str]] = {
        node.state.name: node.fields if node.state.layout == ROWS else node.group for node in topology.persists
    }
    for state, columns in asked.items():
        if state not in known:
            states = ", ".join(sorted(known))
            problem = f'setting {SETTING}: the flow writes no state "{state}"{nearest(state, list(known))}; it writes {states}'
            raise SubmitError(topology.name, problem)
        for column in columns:
            if column not in known[state]:
                problem = f'setting {SETTING}: "{state}" cannot lie by "{column}"{nearest(column, list(known[state]))}'
                raise SubmitError(topology.name, f"{problem}; it can by {', '.join(known[state])}")
