"""One call that runs a script of events through a flow on any of the three engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, get_args

from pipelines.errors import DefinitionError, FlowError
from pipelines.flowmix.operations import Output, Persist
from pipelines.flowmix.schemas import several_fields
from pipelines.testing.flow_reference import FlowReference

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.flowmix.flow import Flow
    from pipelines.windows.event import Event

FlowEngine = Literal["reference", "batch", "stream"]


def run_flow(
    flow: Flow,
    script: Mapping[str, Sequence[Any]],
    *,
    engine: FlowEngine = "reference",
    clock: str | None = None,
    spark: SparkSession | None = None,
) -> dict[str, list[Event]]:
    """Return what each output and each table of a flow receives from a script of events.

    ```python
    run_flow(flow, {"departures": [{"origin": "EWR", "dep_delay": 20.0}, TICK]}, clock="processing")
    ```

    A script holds, by the name of a stream with a source, events (dicts; `id` and `timestamp` in ms are optional) and one-second
    `TICK`s, in order. Its clock starts at 0 ms; an event without a timestamp gets the script's clock. At its end all streams
    stand at the latest time of all. Among events of different streams at one time, those of the stream that the flow defines
    first come first.

    - `reference`: plain Python;
    - `batch`: a real bounded run on Spark; `stream`: a real stream. Both in event time.

    Args:
        flow: a built flow. Its sources are not read.
        script: by stream.
        engine: which engine.
        clock: "event" or "processing"; None: the flow's own.
        spark: the session; None: the active one. The reference engine asks for it only if an expression needs Spark.

    Returns:
        By the name of a stream with a standard output, or of a table, its events in order. An event is a dict of its fields
        with `.id` and `.timestamp`; a field may hold a list of several values.

    Raises:
        DefinitionError: for an engine that there is not.
        FlowError: if the flow is not built, or the script names a stream without a source.
        FieldError: if an event of the script has a field that the source does not.
    """
    if engine not in get_args(FlowEngine):
        raise DefinitionError(f'no engine "{engine}"; there are: {", ".join(get_args(FlowEngine))}')
    if not getattr(flow, "built", False):  # nor if the last stream is given
        raise FlowError(flow.name, "the flow is not built", hint="end its definition with .build()")
    if engine == "reference":
        return _shown(flow, FlowReference(flow, clock, spark).run(script))
    if (clock or flow.clock) != "event":
        raise FlowError(
            flow.name, f'engine "{engine}" of the test kit runs in event time only', hint='use engine="reference"'
        )
    from pipelines.testing.flow_engines import run_on_spark

    return _shown(flow, run_on_spark(flow, script, engine, spark))


def _shown(flow: Flow, results: dict[str, list[Event]]) -> dict[str, list[Event]]:
    """Bring results into the one form of all engines.

    A field that a join made an array shows one value where it holds one; an absent field of a collected event, or of any
    other struct, is not there; a timestamp is the UTC one without a zone, as Spark returns it.
    """
    for stream in flow.streams.values():
        for index, operation in enumerate(stream.operations):
            name = operation.table if isinstance(operation, Persist) else stream.name
            if isinstance(operation, Output | Persist):
                fields = several_fields(flow, stream, index)
                results[name] = [
                    event.with_fields({field: _value(value, field in fields) for field, value in event.items()})
                    for event in results[name]
                ]
    return results


def _value(value: Any, several: bool = False) -> Any:
    if isinstance(value, Mapping):
        return {name: _value(part) for name, part in value.items() if part is not None}
    if isinstance(value, list | tuple):
        return _value(value[0]) if several and len(value) == 1 else [_value(part) for part in value]
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    return value
