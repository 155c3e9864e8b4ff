"""Every error that a user of Tridelta can meet.

Each class carries its facts as fields; the text is the fact, what was seen, and the next step. Tests and callers look at
the class and the fields, never at the text alone.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `' (did you mean "x"?)'` for the closest known name, whatever its capitals, or an empty string."""
    written: dict[str, str] = {}
    for one in known:
        written.setdefault(one.lower(), one)
    matches = difflib.get_close_matches(name.lower(), list(written), n=1, cutoff=0.6)
    return f' (did you mean "{written[matches[0]]}"?)' if matches else ""


class TrideltaError(Exception):
    """Base of all errors of Tridelta. `hint` is the reader's next step."""

    hint: str = ""

    def __init__(self, text: str, *, hint: str = "") -> None:
        self.hint = hint
        super().__init__(f"{text}\n  Next: {hint}" if hint else text)


class DefinitionError(TrideltaError):
    """A topology is wrong at the line that defines it."""


class FieldError(DefinitionError):
    """An operation names a field that its stream does not have, or a read one that the state does not have.

    Args:
        where: What has the available fields, as the text says it.
    """

    def __init__(
        self, operation: str, field: str, available: Sequence[str], where: str = "this stream has", *, hint: str = ""
    ) -> None:
        self.operation, self.field, self.available = operation, field, tuple(available)
        shown = ", ".join(available) or "no fields"
        super().__init__(
            f'{operation}("{field}"): no such field; {where}: {shown}{nearest(field, available)}', hint=hint
        )


class DuplicateFieldError(DefinitionError):
    """An operation adds a field that the stream already has, or names one twice."""

    def __init__(self, operation: str, field: str, available: Sequence[str]) -> None:
        self.operation, self.field, self.available = operation, field, tuple(available)
        if field.lower() in map(str.lower, available):
            problem = f"is there already; this stream has: {', '.join(available)}"
            hint = "give the new field another name, or project the old one away first"
        else:
            problem, hint = "is named twice", "name each field once; capitals make no other name"
        super().__init__(f'{operation}: field "{field}" {problem}', hint=hint)


class ChainOutputsError(DuplicateFieldError):
    """Two aggregators of a chain make a field of the same name (Trident rules 1.4)."""

    def __init__(self, operation: str, outputs: Sequence[str], group: Sequence[str] = ()) -> None:
        names = [*group, *outputs]
        seen = [name.lower() for name in names]
        field = next(name for n, name in enumerate(names) if name.lower() in seen[:n])
        super().__init__(operation, field, names)
        beside = f" (beside the group's fields {', '.join(group)})" if group else ""
        text = f"{operation}: Output fields for chained aggregators must be distinct: [{', '.join(outputs)}]{beside}"
        self.args = (f"{text}\n  Next: {self.hint}",)
        self.outputs = tuple(outputs)


class MixedSpoutsError(DefinitionError):
    """A query stream meets a source's stream, or another query stream: a query is a batch of its own."""

    def __init__(self, operation: str, query: str, others: Sequence[str]) -> None:
        self.operation, self.query, self.others = operation, query, tuple(others)
        super().__init__(
            f'{operation}: Cannot join query stream "{query}" with streams originating from other spouts: '
            f"{', '.join(others)}",
            hint="persist the other stream into a state and read it with state_query",
        )


class PolicyError(DefinitionError):
    """A window policy has a threshold that it cannot have."""

    def __init__(self, kind: str, threshold: object, problem: str) -> None:
        self.kind, self.threshold = kind, threshold
        super().__init__(f"policy {kind} {problem}; got {threshold!r}")


class FlowError(DefinitionError):
    """A flow or one of its streams is wrong; the text names the operation, what it misses and the user's line."""

    def __init__(
        self, flow: str, problem: str, *, stream: str | None = None, at: object = None, hint: str = ""
    ) -> None:
        self.flow, self.stream, self.problem, self.at = flow, stream, problem, at
        where = f'flow "{flow}"' + (f', stream "{stream}"' if stream else "") + (f", at {at}" if at else "")
        super().__init__(f"{where}: {problem}", hint=hint)


class BadNameError(DefinitionError):
    """A flow, state or stream has a name that is not `[a-z][a-z0-9_]*`, or one that is taken."""

    def __init__(self, kind: str, name: object, reason: str = "does not match [a-z][a-z0-9_]*") -> None:
        self.kind, self.name, self.reason = kind, name, reason
        super().__init__(f"{kind} name {name!r} {reason}")


class FunctionError(DefinitionError):
    """A function, filter or aggregator cannot be used where it was given."""

    def __init__(self, operation: str, reason: str, *, hint: str = "") -> None:
        self.operation, self.reason = operation, reason
        super().__init__(f"{operation}: {reason}", hint=hint)


class WindowError(FunctionError):
    """A window operation lacks a part, or has one that does not fit the others (Flowmix rules 2)."""


class AggregationError(TrideltaError):
    """An aggregator met a value, or is given a field, of a type that it cannot take (Flowmix rules 5.2, Trident rules 1.3)."""

    def __init__(self, aggregator: str, field: str, value: object, kind: str | None = None) -> None:
        self.aggregator, self.field, self.value = aggregator, field, value
        self.type = kind or type(value).__name__
        shown = f"of type {self.type}" if kind else f"{value!r} of type {self.type}"
        super().__init__(
            f'{aggregator}("{field}"): Problem converting value {shown}: it takes numbers',
            hint="cast the field before it, for instance with each(...) or in the source's schema",
        )


class ParallelismError(DefinitionError):
    """Bolts that must have as many tasks as each other cannot: a state fixes a number that is not possible (rule 3.9).

    `states` are the states that fix a number of partitions, `fixed` those numbers, `maximum` the most tasks that a source
    in the same class can use, or None where two states disagree.
    """

    def __init__(self, states: Sequence[str], fixed: Sequence[int], maximum: int | None = None) -> None:
        self.states, self.fixed, self.maximum = tuple(states), tuple(fixed), maximum
        demanded = ", ".join(f"{name} has {n}" for name, n in zip(states, fixed, strict=True))
        if maximum is None:
            text = f"Cannot have one group have fixed parallelism of two different values ({demanded})"
            hint = "give these states the same number of partitions, or put a repartition between them"
        else:
            text = (
                f"Parallelism is fixed to {fixed[0]} but max parallelism is less than that: {maximum} "
                f"({demanded} partitions; the source has at most {maximum} tasks)"
            )
            hint = "put a repartition (shuffle, partition_by) between the source and the state, or ask for fewer partitions"
        super().__init__(text, hint=hint)


class ResourceError(DefinitionError):
    """An operation says more or fewer kinds of resources than another one in its bolt (rule 3.10).

    `operation` is the one at fault, `kinds` what differs, `missing` whether it lacks them, `bolt` all operations of the
    bolt with the kinds that each has.
    """

    def __init__(
        self, operation: str, kinds: Sequence[str], bolt: Sequence[tuple[str, Sequence[str]]], *, missing: bool
    ) -> None:
        self.operation, self.kinds, self.missing = operation, tuple(kinds), missing
        self.bolt = tuple((label, tuple(names)) for label, names in bolt)
        text = "resources unset which are set" if missing else "resources set which are not set"
        listed = "\n".join(f"    [ {label}, resources set: {', '.join(names) or 'none'} ]" for label, names in bolt)
        super().__init__(
            f"Found an operation with {text} in other operations in the group: [ {operation} ]: {', '.join(kinds)}\n"
            f"  The group at fault:\n{listed}",
            hint="set these resources in all operations of the group, or give a default: topology.set_resource_defaults(...)",
        )


class FlowFileError(DefinitionError):
    """A YAML file is no flow. `faults` are its faults: line (from 1), path in the document, problem."""

    def __init__(self, file: object, faults: Sequence[tuple[int, str, str]]) -> None:
        self.file, self.faults = str(file), tuple(faults)
        listed = "".join(f"\n  line {line}{f', {path}' if path else ''}: {problem}" for line, path, problem in faults)
        super().__init__(
            f"{file} is not a flow:{listed}", hint="the form of a flow is described by docs/flow.schema.json"
        )


class PlanFileError(TrideltaError):
    """The plan that a run stored beside its checkpoint cannot be read."""

    def __init__(self, path: str, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(
            f"the stored plan {path} {problem}", hint="remove the file; the next run of the flow writes it again"
        )


class UnknownFlowError(TrideltaError):
    """The catalog has no flow of this name."""

    def __init__(self, flow: str, known: Sequence[str]) -> None:
        self.flow, self.known = flow, tuple(known)
        super().__init__(
            f'no flow "{flow}" in the catalog; it has: {", ".join(known) or "none"}{nearest(flow, known)}',
            hint="use one of these names; or, where files are taken, name its file: FILE.yaml; or name the flow's package in "
            "TRIDELTA_FLOWS; or add its module to pipelines/catalog",
        )


class UnknownStateError(TrideltaError):
    """The lake has no state of this name."""

    def __init__(self, state: str, known: Sequence[str], root: str) -> None:
        self.state, self.known, self.root = state, tuple(known), root
        super().__init__(
            f'no state "{state}" in the lake {root}; it has: {", ".join(known) or "none"}{nearest(state, known)}',
            hint="run the flow that writes it first (tridelta run FLOW)",
        )


class UnknownQueryError(TrideltaError):
    """The topology has no query stream of this name."""

    def __init__(self, flow: str, query: str, known: Sequence[str]) -> None:
        self.flow, self.query, self.known = flow, query, tuple(known)
        super().__init__(
            f'flow "{flow}" has no query "{query}"; it has: {", ".join(known) or "none"}{nearest(query, known)}'
        )


class SourceError(TrideltaError):
    """A source cannot be read at all: refused before the start."""


class MissingPathError(SourceError):
    """The folder or table that a source reads is not there."""

    def __init__(self, source: str, path: str) -> None:
        self.source, self.path = source, path
        super().__init__(f'source "{source}": there is nothing at {path}', hint="create the folder or correct the path")


class SourceSchemaError(SourceError):
    """The data at the source's path does not fit the declared schema."""

    def __init__(self, source: str, path: str, problem: str, declared: Sequence[str], seen: Sequence[str]) -> None:
        self.source, self.path, self.problem = source, path, problem
        self.declared, self.seen = tuple(declared), tuple(seen)
        super().__init__(
            f'source "{source}": {path} does not fit the declared schema: {problem}; '
            f"declared: {', '.join(declared)}; seen: {', '.join(seen) or 'nothing'}",
            hint="correct the schema in the flow, or the file",
        )


class NotSliceableError(SourceError, DefinitionError):
    """A slice is asked of a source that cannot be read again by position (Kafka, a rate, a change feed)."""

    def __init__(self, source: str, asked: str) -> None:
        self.source, self.asked = source, asked
        super().__init__(
            f"{asked}: {source} has no slices: what it has delivered cannot all be read again",
            hint="leave slice_by out; or write the stream into a Delta table (partition_persist) and slice that",
        )


class LostRowsError(SourceError):
    """Rows that a flow has still to read are gone from its source (Kafka's retention, a topic created again)."""

    def __init__(self, source: str, lost: str) -> None:
        self.source, self.lost = source, lost
        super().__init__(
            f'source "{source}" no longer has rows that the flow has still to read: {lost}',
            hint="bring them back if you can. To go on without them: move away the checkpoint of its query alone "
            '(checkpoints/FLOW/QUERY), and pass on_fresh_checkpoint="continue" (what the source still holds, of Kafka from its '
            "`starting` on, is counted again; windows that run in the query's batches begin empty: those open now give too "
            'little) or "reset" (it is read into emptied states; checkpoints of queries that read its channels go, too). '
            "To prevent it: let the source keep its rows for longer than the flow may stand still",
        )


class MovedSourceError(SourceError):
    """A stream of a folder has counted files of another folder: if they were moved, they would count again."""

    def __init__(self, source: str, file: str, path: str) -> None:
        self.source, self.file, self.path = source, file, path
        super().__init__(
            f'source "{source}" reads {path} now, and the last file that its stream has taken is {file}: files are known by '
            "their paths, so what was moved from there would count again",
            hint="put the folder (of FixedBatches: the lake) back, or a link to it, and name its former path. If these are other "
            "files: move away the checkpoint of its query alone (checkpoints/FLOW/QUERY), and pass "
            'on_fresh_checkpoint="continue" (all that lies there now is counted; windows that run in the query\'s batches begin '
            'empty) or "reset" (it is read into emptied states)',
        )


class ChangedSourceError(SourceError):
    """Rows that a stream has read, or could have, were changed or deleted in its source, which it reads for appends alone."""

    def __init__(self, source: str, table: str, version: int | None) -> None:
        self.source, self.table, self.version = source, table, version
        commit = "a commit" if version is None else f"version {version}"
        super().__init__(
            f'source "{source}" cannot be streamed on: {commit} of {table} deletes or replaces rows (a DELETE, an UPDATE, a '
            "slice that was replaced), and a stream takes appends alone",
            hint="running it again will not help. Begin with the table as it is now: move the flow's checkpoint away and pass "
            'on_fresh_checkpoint="reset", which empties the flow\'s states; or, of a flow with slices, move its checkpoint away, '
            "backfill all its slices (tridelta backfill), and do not stream it",
        )


class StateSchemaError(TrideltaError):
    """A flow's schema for a state does not fit the table that is there: refused before the start."""

    def __init__(self, state: str, problem: str) -> None:
        self.state, self.problem = state, problem
        super().__init__(
            f'state "{state}": the flow does not fit the table: {problem}',
            hint="give the new form a new state name and backfill it; or move the table and the flow's checkpoint away and run "
            'the flow with on_fresh_checkpoint="reset"',
        )


class BoundedBesideStreamError(TrideltaError):
    """A bounded run of a flow with windows would write into tables that its stream writes."""

    def __init__(self, flow: str, state: str) -> None:
        self.flow, self.state = flow, state
        super().__init__(
            f'flow "{flow}": its stream has written "{state}", and goes on with windows of its own; what a bounded run reads '
            "beyond it would come twice",
            hint="run it into a lake of its own, or catch the stream up",
        )


class FreshCheckpointError(TrideltaError):
    """A fresh checkpoint meets a table that an earlier epoch wrote, be it by a replay: its rows would be dropped, or come twice.

    Attributes:
        last_txid: of the table's last batch; -1: it holds rows of replays alone.
    """

    def __init__(self, flow: str, state: str, last_txid: int, epoch: int) -> None:
        self.flow, self.state, self.last_txid, self.epoch = flow, state, last_txid, epoch
        batches = f"batches up to txid {last_txid} of epoch {epoch}"
        held = batches if last_txid >= 0 else "rows that a replay of quarantine has put in"
        super().__init__(
            f'flow "{flow}" starts with a fresh checkpoint, but state "{state}" holds {held}',
            hint='restore the checkpoint; or pass on_fresh_checkpoint="continue" to go on after that txid with what the '
            'source now holds, or on_fresh_checkpoint="reset" to empty the flow\'s states and start over',
        )


class ChannelReadersError(TrideltaError):
    """A query is to start over whose channels other queries have read: to these all that it sends again would be new."""

    def __init__(self, flow: str, query: str, readers: Sequence[str]) -> None:
        self.flow, self.query, self.readers = flow, query, tuple(readers)
        super().__init__(
            f'flow "{flow}": query "{query}" is to start over, and what it sends would be counted once more by '
            f"{', '.join(readers)}; nothing was emptied",
            hint=f"move their checkpoints away, too (checkpoints/{flow}/QUERY), and run the flow again: all of them start "
            "over; or put the checkpoint back that is missing",
        )


class StateBehindError(TrideltaError):
    """A state is new in a flow that has run, or was out of it for a while: it would lack batches, and look whole."""

    def __init__(self, flow: str, state: str, batches: int) -> None:
        self.flow, self.state, self.batches = flow, state, batches
        super().__init__(
            f'flow "{flow}": state "{state}" was added or put back, and the flow has run {batches} batch(es) already, of which '
            "it would lack some or all",
            hint="backfill its slices first (tridelta backfill), if the flow has slices; or remove the flow's checkpoint and "
            'start over with on_fresh_checkpoint="reset"; or pass on_fresh_checkpoint="continue" to take only what comes now',
        )


class ChangeoverError(TrideltaError):
    """A changed flow needs a fresh checkpoint for a query, which stands where none could take it up exactly."""

    def __init__(self, flow: str, query: str, problem: str, hint: str = "") -> None:
        self.flow, self.query, self.problem = flow, query, problem
        super().__init__(
            f'flow "{flow}": the sources or the number of windows of its query "{query}" have changed, and the query cannot '
            f"begin again: {problem}",
            hint=hint
            or "put the former definition back, and change it while `tridelta watch` runs it, or behind a run with --once: "
            "then it has read what is there",
        )


class ChangedGateError(TrideltaError):
    """A batch is in some tables, and the gates are others than those that began it: its rows would be lost or counted twice."""

    def __init__(self, flow: str, query: str, txid: int, state: str) -> None:
        self.flow, self.query, self.txid, self.state = flow, query, txid, state
        super().__init__(
            f'flow "{flow}": batch {txid} of "{query}" was cut off and has to be finished by the gates that began it: state '
            f'"{state}" holds it, and the gates have changed since',
            hint="put the former gates back, finish the batch (tridelta run "
            f"{flow} --max-batches 1), and change them then; a batch that fails for good with them is left out: "
            f"tridelta skip {flow} {txid} --stream {query}",
        )


class SameFlowError(DefinitionError):
    """Two files of a folder define one flow."""

    def __init__(self, flow: str, files: Sequence[object]) -> None:
        self.flow, self.files = flow, tuple(map(str, files))
        super().__init__(
            f'the flow "{flow}" is defined by several files: {", ".join(self.files)}',
            hint="give each flow one file, or another name",
        )


class NeedsSparkError(TrideltaError):
    """An expression that only Spark can evaluate, where there is no Spark.

    Args:
        reason: why none can be started; empty: nobody tried.
    """

    def __init__(self, wanted_for: str, reason: str = "", *, hint: str = "") -> None:
        self.wanted_for, self.reason = wanted_for, reason
        hint = hint or 'give the function a plain form ("rows", "keep") or write it as a Python generator'
        super().__init__(
            f"Spark is needed to evaluate {wanted_for}, and {reason or 'there is no session'}",
            hint=f"pass spark=, or {hint}",
        )


class ReadPointError(TrideltaError):
    """A read names a txid, version or time that the table does not hold (not yet, or no longer)."""

    def __init__(self, state: str, asked: str, reason: str, *, hint: str = "") -> None:
        self.state, self.asked, self.reason = state, asked, reason
        super().__init__(f'state "{state}" cannot be read as of {asked}: {reason}', hint=hint)


class StateAccessError(TrideltaError):
    """A function reads or changes a state with keys or values that are not shaped like the state's."""


class DuplicateKeyError(StateAccessError):
    """Two rows of one batch set the same key of a map state: partitions changed it each for itself."""

    def __init__(self, key: Sequence[object]) -> None:
        self.key = tuple(key)
        super().__init__(
            f"the batch sets key {self.key!r} of the state more than once",
            hint="bring the tuples of one key together before the state: partition_by its key fields, or global_()",
        )


class BehindStateError(TrideltaError):
    """A batch comes to a state that holds a later one: it could not be undone any more (Trident rules 6, OpaqueMap)."""

    def __init__(self, txid: int, state_txid: int, state: str = "") -> None:
        self.txid, self.state_txid, self.state = txid, state_txid, state
        of = f' of "{state}"' if state else ""
        super().__init__(
            f"Current batch ({txid}) is behind state's batch ({state_txid}){of}",
            hint="batches commit in the order of their txids: find out which process writes this state out of turn",
        )


class BatchError(TrideltaError):
    """A batch failed."""


class AccountingError(BatchError):
    """A stage received other than what the stage before it emitted, or a replay differs from the first delivery."""

    def __init__(self, stage: str, txid: int, attempt: int, expected: int, received: int) -> None:
        self.stage, self.txid, self.attempt = stage, txid, attempt
        self.expected, self.received = expected, received
        super().__init__(f"stage {stage} of batch {txid}:{attempt}: expected {expected} rows but received {received}")


class ListingError(BatchError):
    """The files that Spark wrote to a store hold other rows than it was given, as the store lists them; nothing is committed.

    The next attempt writes others, into a folder of its own.
    """

    def __init__(self, state: str, txid: int, given: int, listed: int) -> None:
        self.state, self.txid, self.given, self.listed = state, txid, given, listed
        super().__init__(
            f'state "{state}", batch {txid}: Spark wrote {given} rows, and the files that the store lists hold {listed}',
            hint="if it comes again and again, look whether something else writes to or deletes from the lake's bucket",
        )


class GateError(BatchError):
    """A gate whose action is `fail` refused a batch or slice; nothing of it was committed behind the gate."""

    def __init__(self, gate: str, failed: Sequence[str], batch: str) -> None:
        self.gate, self.failed, self.batch = gate, tuple(failed), batch
        super().__init__(f'gate "{gate}" refused {batch}: {"; ".join(failed)}')


class StateQueryError(BatchError):
    """A query function written in Python gave another number of results than it got arguments."""

    def __init__(self, function: str, state: str, results: int, arguments: int) -> None:
        self.function, self.state, self.results, self.arguments = function, state, results, arguments
        super().__init__(
            f'{function} on state "{state}": Results size is different than argument size: {results} vs {arguments}',
            hint="batch_retrieve must return one result for each tuple of its arguments, None where there is nothing",
        )


class PoisonBatchError(BatchError):
    """A batch failed at every attempt; its rows are in quarantine and the flow has stopped."""

    def __init__(self, flow: str, txid: int, attempts: int, reason: str, quarantine: str, *, stream: str) -> None:
        self.flow, self.txid, self.attempts, self.reason, self.quarantine = flow, txid, attempts, reason, quarantine
        self.stream = stream
        super().__init__(
            f'flow "{flow}" stopped: batch {txid} of "{stream}" failed {attempts} time{"s" * (attempts != 1)}, '
            f"last with: {reason}; its rows are kept in {quarantine}",
            hint="correct the flow or the data and run it again, or leave the batch out with: "
            f"tridelta skip {flow} {txid} --stream {stream}",
        )


class FarTimeError(TrideltaError):
    """A table holds, or is to hold, a date or time of a year that Python or delta-rs does not have."""

    def __init__(
        self, table: str, column: str, value: str, key: Mapping[str, object] | None = None, *, written: bool = False
    ) -> None:
        self.table, self.column, self.value, self.key = table, column, value, dict(key or {})
        at = f" of {', '.join(f'{name}={given}' for name, given in self.key.items())}" if self.key else ""
        what = "cannot be written" if written else "cannot be read as a value"
        super().__init__(
            f'"{table}": column {column}{at} holds {value}, which {what}: years 1 to 9999 can',
            hint="let the flow compute no such date or time, or keep it as a text or a number",
        )


class NotTextError(TrideltaError):
    """A text that a flow has computed is not UTF-8: refused before the commit, for nobody could read the table any more."""

    def __init__(self, table: str, column: str, row: int | None = None, seen: bytes = b"") -> None:
        self.table, self.column, self.row, self.seen = table, column, row, seen
        of_row = "" if row is None else f" of row {row}"
        what = f"the bytes {str(seen[:80])[2:-1]}, which" if seen else "bytes that"
        super().__init__(
            f'"{table}": column {column}{of_row} holds {what} are no text in UTF-8',
            hint="read a file of text by its encoding (`encoding=`); or keep such bytes as binary, or make them text "
            "(`make_valid_utf8`)",
        )


class DiskFullError(TrideltaError):
    """The disk under the lake is full. Nothing is lost: the batch is not committed and runs again."""

    def __init__(self, path: str, doing: str) -> None:
        self.path, self.doing = path, doing
        super().__init__(
            f"no space left on the disk of {path} while {doing}; the batch was not committed",
            hint="make room and run the flow again: it continues with this batch",
        )


class LockedError(TrideltaError):
    """Another process holds the flow's checkpoint."""

    def __init__(self, flow: str, path: str, seconds: float) -> None:
        self.flow, self.path, self.seconds = flow, path, seconds
        super().__init__(
            f'flow "{flow}" is in use by another process ({path} is locked; waited {seconds:g} s)',
            hint="wait for that run to end, or stop it",
        )


class TooLargeToFoldError(TrideltaError):
    """A state has more rows to fold than this compaction can; all else that a compaction does was done."""

    def __init__(self, state: str, rows: int, most: int, hint: str) -> None:
        self.state, self.rows, self.most = state, rows, most
        super().__init__(
            f'state "{state}" has {rows:,} rows to fold, more than the {most:,} that are folded here', hint=hint
        )


class NotCompactedError(TrideltaError):
    """Several tables of a flow were not compacted; all others were."""

    def __init__(self, flow: str, failed: Mapping[str, Exception]) -> None:
        self.flow, self.failed = flow, dict(failed)
        told = "\n".join(f"  {name}: {error}" for name, error in failed.items())
        super().__init__(
            f'flow "{flow}": {len(failed)} tables were not compacted, all others were:\n{told}',
            hint="mend the causes and compact the flow again",
        )


class HalfMadeCheckpointError(TrideltaError):
    """A change of a query's partitions was cut off, and what it has left of the checkpoint is not what a run would go on from."""

    def __init__(self, flow: str, group: str) -> None:
        self.flow, self.group = flow, group
        super().__init__(
            f'flow "{flow}", query "{group}": a change of its partitions was cut off; its checkpoint may be half-made',
            hint=f"start the flow once, which mends it (tridelta run {flow}), then try again; if it has this stream no "
            f"more, remove checkpoints/{flow}/{group} from the lake",
        )


class AssignmentError(TrideltaError):
    """A flow's tasks cannot be placed (Nimbus rules 5)."""

    def __init__(self, flow: str, problem: str, hint: str = "") -> None:
        self.flow, self.problem = flow, problem
        super().__init__(f'flow "{flow}": {problem}', hint=hint or "start a supervisor on another host")


class NotEnoughWorkersError(AssignmentError):
    """Fewer slots are free than the flow needs workers; `hosts` are the only ones that it may use, if it names any."""

    def __init__(
        self, flow: str, wanted: int, available: int, reserved: int, hosts: tuple[str, ...] = (), up: Iterable[str] = ()
    ) -> None:
        self.wanted, self.available, self.reserved, self.hosts = wanted, available, reserved, hosts
        problem = f"allocWorkerNum={wanted}, availableWorkerNum={available},reserveWorkerNum={reserved}"
        hint = "start supervisors, or ask for fewer workers"
        if hosts:
            there = sorted(set(up))
            seen = ", ".join(there[:10]) + (", ..." if len(there) > 10 else "")
            problem += f" on the hosts {', '.join(hosts)} (supervisors are on: {seen})"
            hint = "start supervisors there, name other hosts, or ask for fewer workers"
        super().__init__(flow, f"there's no enough worker. {problem}", hint)


class NotEnoughNodesError(AssignmentError):
    """Tasks that must stand on different nodes have too few nodes."""


class JavaError(TrideltaError):
    """There is no Java that Spark can run on."""

    def __init__(self, seen: str) -> None:
        self.seen = seen
        super().__init__(
            f"Spark needs Java 17 or 21, and {seen}",
            hint="install it (Debian, Ubuntu: apt-get install openjdk-17-jre-headless) or set JAVA_HOME",
        )


class JarsError(TrideltaError):
    """Delta's, Kafka's or S3's jars are not in the project's cache."""

    def __init__(self, cache: str, missing: Sequence[str], name: str = "Delta") -> None:
        self.cache, self.missing, self.name = cache, tuple(missing), name
        first, more = missing[:5], len(missing) - 5
        shown = ", ".join([*first, *([f"and {more} more"] if more > 0 else [])])
        super().__init__(
            f"{name}'s jars are not in {cache}: {shown}",
            hint="run `make setup` once with access to Maven Central (or your mirror of it)",
        )
