"""Flows as YAML: one model per form, from which the JSON schema is made (docs/flow.schema.json)."""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pipelines.bounds import LIFETIME_MS, THRESHOLD
from pipelines.flowmix.yaml_parts import ONE, Form, OneOf
from pipelines.flowmix.yaml_sources import SourceForm
from pipelines.windows.operations import HOUR

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
Names = Annotated[list[str], Field(min_length=1)]
Threshold = Annotated[int, THRESHOLD.field()]
Scalar = bool | int | float | str | datetime.datetime | datetime.date


class PolicyForm(OneOf):
    """`{count: 5}`, `{time: 60}` (seconds) or `{time_delta_lt: 3}` (seconds)."""

    model_config = ConfigDict(json_schema_extra=ONE)

    count: Threshold | None = None
    time: Threshold | None = None
    time_delta_lt: Threshold | None = None


OneValue = Annotated[dict[str, Scalar], Field(min_length=1, max_length=1)]
SomeValues = Annotated[dict[str, list[Scalar]], Field(min_length=1, max_length=1)]
TwoValues = Annotated[
    dict[str, Annotated[list[Scalar], Field(min_length=2, max_length=2)]], Field(min_length=1, max_length=1)
]


class CriteriaForm(OneOf):
    """`{eq: {field: value}}` and the like, `{and: [...]}`, or a Python predicate by its name."""

    model_config = ConfigDict(json_schema_extra=ONE)

    eq: OneValue | None = None
    not_eq: OneValue | None = None
    gt: OneValue | None = None
    gte: OneValue | None = None
    lt: OneValue | None = None
    lte: OneValue | None = None
    has: str | None = None
    has_not: str | None = None
    in_: SomeValues | None = Field(None, alias="in")
    range_: TwoValues | None = Field(None, alias="range")
    and_: list[Criteria] | None = Field(None, alias="and")
    or_: list[Criteria] | None = Field(None, alias="or")
    not_: Criteria | None = Field(None, alias="not")
    python: str | None = None


Criteria = str | CriteriaForm
"""SQL text or a form."""


class FieldAndOutput(Form):
    """An input field, and the name of the result."""

    field: str
    output: str | None = None


class CountForm(Form):
    """With a field only the events that have it are counted."""

    field: str | None = None
    output: str | None = None


class FieldsAndOutput(Form):
    """Several input fields, and the name of the result."""

    fields: Names
    output: str | None = None


class EndsForm(Form):
    """The first or last `n` values of `field`, as they came or in the order of `sort_field`."""

    n: Annotated[int, Field(ge=1)]
    field: str
    sort_field: str | None = None
    reverse: bool = False
    output: str | None = None


class OwnForm(Form):
    """A user's own aggregator: a class by its name, and its arguments."""

    name: str
    arguments: dict[str, Any] = {}


OfField = str | FieldAndOutput


class AggregatorForm(OneOf):
    """`{sum: v}`, `{sum: {field: v, output: total}}`, ..."""

    model_config = ConfigDict(json_schema_extra=ONE)

    count: CountForm | None = None
    sum: OfField | None = None
    average: OfField | None = None
    min: OfField | None = None
    max: OfField | None = None
    distinct_count: OfField | None = None
    std_dev: OfField | None = None
    collect: OfField | None = None
    assoc_count: OfField | None = None
    group_count: FieldsAndOutput | None = None
    first_n: EndsForm | None = None
    last_n: EndsForm | None = None
    own: OwnForm | None = None


class AggregateForm(Form):
    """A window whose events are aggregated."""

    aggregators: Annotated[list[Literal["count"] | AggregatorForm], Field(min_length=1)]
    trigger: PolicyForm
    evict: PolicyForm
    clear_on_trigger: bool = False
    window_evict_millis: Annotated[int, LIFETIME_MS.field()] = HOUR


class AlignedForm(Form):
    """Windows at fixed places in time; lengths in seconds."""

    aggregators: Annotated[list[Literal["count"] | AggregatorForm], Field(min_length=1)]
    every: Annotated[int, Field(ge=1)]
    size: Annotated[int, Field(ge=1)] | None = None
    offset: int = 0
    time_zone: str | None = None


class SessionForm(Form):
    """Windows that end `gap` seconds behind their last event."""

    aggregators: Annotated[list[Literal["count"] | AggregatorForm], Field(min_length=1)]
    gap: Annotated[int, Field(ge=1)]


class CollectForm(Form):
    """A window whose events come out as one event."""

    trigger: PolicyForm
    evict: PolicyForm
    clear_on_trigger: bool = False
    field: str = "events"
    window_evict_millis: Annotated[int, LIFETIME_MS.field()] = HOUR


class SortForm(Form):
    """A window whose events come out sorted: one of progressive, tumbling, top_n."""

    by: str | Names
    progressive: Annotated[int, Field(ge=1)] | None = None
    tumbling: PolicyForm | None = None
    top_n: Annotated[int, Field(ge=1)] | None = None
    trigger: PolicyForm | None = None
    flush: bool = False
    window_evict_millis: Annotated[int, LIFETIME_MS.field()] = HOUR


class SwitchForm(Form):
    """The policies of a switch: when to stop (`open`) and when to let pass again (`close`)."""

    open: PolicyForm
    evict: PolicyForm
    close: PolicyForm
    window_evict_millis: Annotated[int, LIFETIME_MS.field()] = HOUR


class JoinForm(Form):
    """Two streams that lead here, and which stored events of the left one leave."""

    left: Name
    right: Name
    evict: PolicyForm


class SplitForm(Form):
    """Criteria by stream; what the default lets pass goes on along this stream."""

    default: Criteria | None = None
    paths: dict[Name, Criteria] = {}
    all: Name | list[Name] = []


class EachForm(Form):
    """A Python function by its name, and the fields that it makes."""

    function: str
    schema_: str | None = Field(None, alias="schema")


class GateForm(Form):
    """Checks, each `{drop: {expectation: ..., column: ...}}` with warn, drop or fail."""

    name: Name | None = None
    checks: Annotated[list[CheckForm], Field(min_length=1)]


class ExpectationForm(BaseModel):
    """A great-expectations type, the check's name, and the expectation's own arguments beside them."""

    model_config = ConfigDict(extra="allow", frozen=True)

    expectation: str
    name: str = ""


class CheckForm(OneOf):
    """The action of a check: what to do when the expectation does not hold."""

    model_config = ConfigDict(json_schema_extra=ONE)

    warn: ExpectationForm | None = None
    drop: ExpectationForm | None = None
    fail: ExpectationForm | None = None


class OperationForm(OneOf):
    """One operation of a stream."""

    model_config = ConfigDict(json_schema_extra=ONE)

    select: str | Names | None = None
    compute: Annotated[dict[str, str], Field(min_length=1)] | None = None
    filter: Criteria | None = None
    each: str | EachForm | None = None
    partition: str | list[str] | None = None
    aggregate: AggregateForm | None = None
    aligned: AlignedForm | None = None
    session: SessionForm | None = None
    collect: CollectForm | None = None
    sort: SortForm | None = None
    switch: SwitchForm | None = None
    join: JoinForm | None = None
    split: SplitForm | None = None
    to: Name | Annotated[list[Name], Field(min_length=1)] | None = None
    persist: Name | None = None
    gate: GateForm | None = None


class StreamForm(Form):
    """One stream: where its events come from, and what happens to them."""

    name: Name
    source: str | SourceForm | None = None
    id: str | None = None
    timestamp: str | None = None
    delay: Threshold = 0
    slice_by: str | None = None
    operations: Annotated[list[Literal["output", "partition"] | OperationForm], Field(min_length=1)]


class FlowForm(Form):
    """A flow."""

    model_config = ConfigDict(title="Tridelta flow")

    flow: Name
    description: str = ""
    clock: Literal["event", "processing"] = "event"
    windows: Literal["channels", "batch"] | None = None
    streams: Annotated[list[StreamForm], Field(min_length=1)]


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a flow file."""
    schema = FlowForm.model_json_schema(by_alias=True)
    for form in schema["$defs"].values():
        if form.get("maxProperties") == 1:
            for part in form["properties"].values():
                _said(part)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _said(part: dict[str, Any]) -> None:
    """Check that a part that is there says something: it is not null."""
    part.pop("default", None)
    part["anyOf"] = [option for option in part["anyOf"] if option != {"type": "null"}]
    if len(part["anyOf"]) == 1:
        part.update(part.pop("anyOf")[0])


if __name__ == "__main__":
    import json
    import sys
    from pathlib import Path

    text = json.dumps(json_schema(), indent=1) + "\n"
    sys.stdout.write(text) if len(sys.argv) == 1 else Path(sys.argv[1]).write_text(text, "utf-8")
