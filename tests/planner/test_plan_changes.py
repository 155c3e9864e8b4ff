"""`plan_changes`: what would change against what is deployed, without Spark."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pipelines.errors import PlanFileError
from pipelines.execution.checkpoint.belonging import Belonging
from pipelines.execution.checkpoint.changeover import Changeover
from pipelines.execution.checkpoint.engine_files import Checkpoint, Epoch
from pipelines.graph.types import of_ddl
from pipelines.planner.changes import Change, PlanChanges, StateChange, load_plan, plan_changes, save_plan
from pipelines.planner.plan import deployed_plan
from pipelines.sources import FixedBatches
from pipelines.state.lake import Lake
from pipelines.state.record import BATCH, BatchRecord
from pipelines.state.schema import PROPERTY, StateSchema, ValueColumn
from pipelines.state.writer import StateWriter
from pipelines.trident import Average, Count, DeltaState, DistinctCount, MapGet, Sum, TridentTopology

COUNTS = StateSchema(
    layout="log",
    flow="words",
    keys=("word",),
    values=(ValueColumn(name="n", aggregator="Count"),),
    columns=(("word", "string"), ("n", "bigint")),
)


class Wide(FixedBatches):
    max_parallelism = None


def words(
    *,
    schema: str = "word string, at bigint",
    key: str = "word",
    hint: int = 1,
    extra: bool = False,
    aggregators: Any = None,
    state: str = "counts",
) -> TridentTopology:
    """The flow that is deployed, and its variants."""
    topology = TridentTopology("words")
    stream = topology.new_stream("lines", Wide(schema, [])).filter("word != ''").parallelism_hint(hint)
    stream = stream.filter("at > 0") if extra else stream
    counts = stream.group_by(key).persistent_aggregate(DeltaState(state), aggregators or [Count("n")])
    topology.new_query_stream("ask", f"args {of_ddl(schema)[key]}").state_query(counts, "args", MapGet(), "n")
    return topology


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def table(lake: Lake, declared: StateSchema | None = COUNTS, name: str = "counts") -> None:
    """A table as the engine makes it; without a schema one that somebody else made."""
    types = {
        "string": pa.string(),
        "bigint": pa.int64(),
        "struct<sum:bigint,count:bigint>": pa.struct([("sum", pa.int64()), ("count", pa.int64())]),
        "array<bigint>": pa.list_(pa.int64()),
        "decimal(10,0)": pa.decimal128(10, 0),
    }
    columns = declared.columns if declared else COUNTS.columns
    fields = [pa.field(column, types.get(kind, pa.struct([("x", pa.int32())]))) for column, kind in columns]
    path = lake.state_path(name)
    path.mkdir(parents=True)
    DeltaTable.create(
        str(path),
        pa.schema(
            [*fields, pa.field("_txid", pa.int64()), pa.field("_slice", pa.string()), pa.field("_gen", pa.int64())]
        ),
        partition_by=["_slice", "_gen"],
        configuration={PROPERTY: declared.dump()} if declared else None,
        raise_if_key_not_exists=False,
    )


def batch(lake: Lake, name: str = "counts") -> None:
    """A batch committed to a state."""
    made = lake.state(name)
    rows = pa.table({"word": ["a"], "n": pa.array([1], pa.int64())})
    record = BatchRecord(kind=BATCH, flow="words", epoch=1, txid=0)
    StateWriter(made, made.declared).commit_batch(rows, record, "words/1", known=False)


def run(lake: Lake, topology: TridentTopology, group: str = "lines", batches: int = 1) -> Path:
    """What a run leaves of its checkpoint."""
    folder = lake.checkpoint_path(topology.name, group)
    (folder / "spark" / "commits").mkdir(parents=True)
    (folder / "spark" / "offsets").mkdir()
    (folder / "spark" / "metadata").write_text("{}")
    (folder / "epoch.json").write_text('{"number": 1, "first_txid": 0}')
    for one in range(batches):
        (folder / "spark" / "commits" / str(one)).write_text("v1")
        (folder / "spark" / "offsets" / str(one)).write_text("v1\n{}\n0")
    save_plan(topology, folder)
    return folder


def deployed(lake: Lake) -> None:
    table(lake)
    batch(lake)
    run(lake, words())


def asked(topology: TridentTopology, lake: Lake) -> PlanChanges:
    """What `tridelta plan` shows: what the checkpoints say of the states, too."""
    changeover = Changeover(lake, topology)
    # A new version of a deployed flow takes what a run refuses.
    changeover.check()
    return plan_changes(topology, lake, changeover.refusals())


def state(changes: PlanChanges) -> tuple[str, str, str]:
    (found,) = changes.states
    return found.change, found.verdict, "; ".join(found.details)


def told(changes: tuple[Change, ...]) -> dict[str, tuple[str, str | None, tuple[str, ...]]]:
    return {one.name: (one.change, one.before, one.details) for one in changes if one.change != "same"}


def test_of_a_flow_that_never_ran_everything_is_new(lake: Lake) -> None:
    changes = plan_changes(words(), lake)
    assert changes.deployed_at is None
    assert {one.change for one in (*changes.bolts, *changes.spouts, *changes.batch_groups)} == {"new"}
    assert changes.states == (StateChange("counts", "new", "fits", ("its table is made",)),)
    assert (changes.refused, changes.nothing, dict(changes.parallelism)) == ((), False, {})


def test_of_what_is_deployed_nothing_changes(lake: Lake) -> None:
    deployed(lake)
    changes = plan_changes(words(), lake)
    assert changes.nothing
    assert state(changes) == ("same", "fits", "")
    assert changes.deployed_at is not None


def test_an_operation_more_changes_its_bolt(lake: Lake) -> None:
    """And here the numbers of two: the one that is merged more often comes last."""
    deployed(lake)
    changes = plan_changes(words(extra=True), lake)
    assert told(changes.bolts) == {
        "b-2": ("changed", "b-3", ()),
        "b-3": ("changed", "b-2", ("with filter at > 0",)),
    }
    assert not changes.nothing
    assert plan_changes(words(), lake).nothing


def test_bolts_are_told_apart_by_what_they_do(lake: Lake) -> None:
    """A new query takes numbers of others; those bolts only got another name."""
    deployed(lake)
    topology = words()
    topology.new_query_stream("echo").filter("args > 'a'")
    changes = plan_changes(topology, lake)
    changed = told(changes.bolts)
    # What two queries have in common (return info, answer) is matched in order.
    assert {name: found[:2] for name, found in changed.items()} == {
        "b-2": ("new", None),
        "b-3": ("new", None),
        "b-4": ("changed", "b-2"),
        "b-5": ("changed", "b-3"),
        "b-6": ("new", None),
    }
    assert told(changes.spouts) == {"echo": ("new", None, ())}
    assert told(changes.batch_groups) == {}


def test_what_is_gone_is_removed(lake: Lake) -> None:
    deployed(lake)
    topology = TridentTopology("words")
    topology.new_stream("lines", Wide("word string, at bigint", [])).filter("word != ''")
    changes = plan_changes(topology, lake)
    assert told(changes.spouts) == {"ask": ("removed", "ask", ())}
    assert sorted(one.change for one in changes.bolts) == ["changed", "removed", "removed", "removed"]
    assert changes.states == (StateChange("counts", "removed", "fits", ("its table stays as it is",)),)
    assert changes.refused == ()


def test_a_damaged_or_half_made_table_of_others_holds_up_no_plan(lake: Lake) -> None:
    deployed(lake)
    table(lake, COUNTS.model_copy(update={"flow": "elsewhere"}), "other")
    (lake.folder / "states" / "other" / "_delta_log" / f"{1:020}.json").touch()
    (lake.folder / "states" / "ghost" / "_delta_log").mkdir(parents=True)
    assert [one.name for one in plan_changes(words(), Lake(lake.root)).states] == ["counts"]


def test_parallelism_before_and_now(lake: Lake) -> None:
    deployed(lake)
    changes = plan_changes(words(hint=4), lake)
    assert dict(changes.parallelism) == {"b-2": (1, 4), "spout-lines": (1, 4)}
    assert told(changes.bolts) == {"b-2": ("changed", "b-2", ("1 -> 4 tasks",))}
    assert told(changes.spouts) == {"lines": ("changed", "lines", ("tasks: 1 -> 4",))}
    assert changes.refused == ()


def test_a_source_changes_in_its_fields_and_slices(lake: Lake) -> None:
    deployed(lake)
    changes = plan_changes(words(schema="word string, at bigint, who string"), lake)
    assert told(changes.spouts) == {"lines": ("changed", "lines", ("fields: word, at -> word, at, who",))}


def test_another_way_to_deal_the_tuples(lake: Lake) -> None:
    deployed(lake)
    changes = plan_changes(words(key="at"), lake)
    (found,) = (
        one for one in changes.bolts if one.change == "changed" and any("takes its tuples" in d for d in one.details)
    )
    assert found.details[
        -1
    ] == "takes its tuples by partition_by at, identity_partition, not by partition_by word, " + ("identity_partition")


# --- states


def test_other_keys_are_refused(lake: Lake) -> None:
    deployed(lake)
    changes = plan_changes(words(key="at"), lake)
    assert state(changes)[:2] == ("changed", "refused")
    assert "keys is word in the table and at in the flow" in state(changes)[2]
    assert [one.name for one in changes.refused] == ["counts"]


def test_a_key_of_another_type_is_refused_where_both_types_are_known(lake: Lake) -> None:
    deployed(lake)
    changes = plan_changes(words(schema="word bigint, at bigint"), lake)
    assert state(changes)[1] == "refused"
    assert 'column "word" is string in the table and bigint in the flow' in state(changes)[2]


def test_a_type_that_spark_alone_knows_is_not_compared(lake: Lake) -> None:
    deployed(lake)
    topology = TridentTopology("words")
    lines = topology.new_stream("lines", Wide("line string, at bigint", [])).each("line", lambda line: line, "word")
    lines.group_by("word").persistent_aggregate(DeltaState("counts"), [Count("n")])
    assert state(plan_changes(topology, lake)) == ("same", "fits", "")


def test_a_new_value_evolves_the_table(lake: Lake) -> None:
    deployed(lake)
    changes = plan_changes(words(aggregators=[Count("n"), Sum("at", "total")]), lake)
    assert state(changes)[:2] == ("changed", "evolves")
    assert "gets the column total" in state(changes)[2]
    assert (changes.refused, changes.nothing) == ((), False)


def test_a_value_that_is_left_out_is_refused(lake: Lake) -> None:
    table(lake, COUNTS.model_copy(update={"columns": (*COUNTS.columns, ("more", "bigint"))}))
    assert state(plan_changes(words(), lake))[1] == "refused"


def test_another_aggregator_is_refused(lake: Lake) -> None:
    deployed(lake)
    changes = plan_changes(words(aggregators=[Sum("at", "n")]), lake)
    assert state(changes)[1] == "refused"
    assert 'value "n" is a Count in the table and a Sum in the flow' in state(changes)[2]


@pytest.mark.parametrize(
    ("aggregator", "output", "stored"),
    [
        (Average(), "avg double", "struct<sum:bigint,count:bigint>"),
        (DistinctCount(), "at bigint", "array<bigint>"),
    ],
)
def test_what_a_log_keeps_unfinished_has_the_type_of_its_table_whatever_is_written(
    lake: Lake, aggregator: Any, output: str, stored: str
) -> None:
    name = output.split()[0]
    columns = (("word", "string"), (name, stored))
    kept = (ValueColumn(name=name, aggregator=type(aggregator).__name__),)
    table(lake, COUNTS.model_copy(update={"values": kept, "columns": columns}))
    topology = TridentTopology("words")
    stream = topology.new_stream("lines", Wide("word string, at bigint", []))
    stream.group_by("word").persistent_aggregate(DeltaState("counts"), "at", aggregator, output)
    assert state(asked(topology, lake)) == ("same", "fits", "")


def test_a_written_type_may_be_spelled_otherwise_than_its_table_says(lake: Lake) -> None:
    table(lake, StateSchema(layout="rows", flow="words", columns=(("m", "decimal(10,0)"),)))
    topology = TridentTopology("words")
    stream = topology.new_stream("lines", Wide("word string, at bigint", []))
    made = stream.each("at", lambda at: at.cast("decimal"), "m decimal")
    made.partition_persist(DeltaState("counts"), "m")
    assert state(asked(topology, lake)) == ("same", "fits", "")


@pytest.mark.parametrize(
    ("stored", "fits"),
    [("struct<a b:int>", True), ("struct<ab:int>", False), ("struct<A b:int>", False)],
)
def test_fields_of_structs_keep_their_names(lake: Lake, stored: str, fits: bool) -> None:
    """As the start has it. A table's types are as Spark writes them: names of fields have no quotes."""
    table(lake, StateSchema(layout="rows", flow="words", columns=(("m", stored),)))
    topology = TridentTopology("words")
    topology.new_stream("lines", Wide("m struct<`a b`: int>", [])).partition_persist(DeltaState("counts"), "m")
    assert state(plan_changes(topology, lake))[1] == ("fits" if fits else "refused")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (DeltaState("counts", layout="map"), "layout is log in the table and map in the flow"),
        (DeltaState("counts", kind="opaque"), "kind is transactional in the table and opaque in the flow"),
    ],
)
def test_another_layout_or_kind_is_refused(lake: Lake, given: DeltaState, said: str) -> None:
    deployed(lake)
    topology = TridentTopology("words")
    lines = topology.new_stream("lines", Wide("word string, at bigint", []))
    lines.group_by("word").persistent_aggregate(given, Count(), "n")
    assert state(plan_changes(topology, lake))[1] == "refused"
    assert said in state(plan_changes(topology, lake))[2]


def test_slices_where_there_were_none_are_refused(lake: Lake) -> None:
    deployed(lake)
    topology = TridentTopology("words")
    lines = topology.new_stream("lines", Wide("word string, at bigint", []), slice_by="at")
    lines.group_by("word").persistent_aggregate(DeltaState("counts"), Count(), "n")
    assert "sliced is False in the table and True in the flow" in state(plan_changes(topology, lake))[2]


def test_the_state_of_another_flow_is_refused(lake: Lake) -> None:
    table(lake, COUNTS.model_copy(update={"flow": "others"}))
    assert "flow is others in the table and words in the flow" in state(plan_changes(words(), lake))[2]


def test_a_table_of_somebody_else_is_refused(lake: Lake) -> None:
    table(lake, None)
    assert state(plan_changes(words(), lake))[1] == "refused"
    assert "the engine did not make" in state(plan_changes(words(), lake))[2]


def test_a_new_state_in_a_flow_that_has_run_is_refused(lake: Lake) -> None:
    deployed(lake)
    topology = words()
    topology.new_stream("other", Wide("word string", [])).partition_persist(DeltaState("apart"))
    stream = topology.new_stream("third", Wide("word string", []))
    topology.merge(stream, stream.filter("word > 'a'")).partition_persist(DeltaState("third"))
    assert [one.verdict for one in plan_changes(topology, lake).states] == ["fits", "fits", "fits"]
    late = TridentTopology("words")
    lines = late.new_stream("lines", Wide("word string, at bigint", [])).filter("word != ''")
    lines.group_by("word").persistent_aggregate(DeltaState("counts"), [Count("n")])
    lines.partition_persist(DeltaState("rows"))
    changes = asked(late, lake)
    assert [(one.name, one.change, one.verdict) for one in changes.refused] == [("rows", "new", "refused")]
    assert "the flow has run 1 batch(es)" in changes.refused[0].details[0]


def test_what_the_checkpoint_says_of_a_flow_of_one_state(lake: Lake) -> None:
    deployed(lake)
    checkpoint = Checkpoint("words", lake.checkpoint_path("words", "lines"))
    assert state(asked(words(), lake)) == ("same", "fits", "")
    renamed = asked(words(state="others"), lake)
    assert [(one.name, one.change, one.verdict) for one in renamed.refused] == [("others", "new", "refused")]
    Belonging(checkpoint, lake).note([lake.state("counts")])
    assert state(asked(words(), lake)) == ("same", "fits", "")
    shutil.rmtree(lake.state_path("counts"))
    assert state(asked(words(), lake)) == ("new", "refused", "the table is gone")
    assert asked(words(state="others"), lake).refused[0].name == "others"


def test_a_state_that_was_taken_out_and_is_put_back_is_refused(lake: Lake) -> None:
    deployed(lake)
    checkpoint = Checkpoint("words", lake.checkpoint_path("words", "lines"))
    Belonging(checkpoint, lake).begun(Epoch(1, 0), [])
    changes = asked(words(), lake)
    assert state(changes)[:2] == ("changed", "refused")
    assert "of which it would lack some or all" in state(changes)[2]
    assert not changes.nothing
    # Nothing has run.
    (checkpoint.spark / "commits" / "0").unlink()
    assert state(asked(words(), lake)) == ("same", "fits", "")


def test_a_fresh_checkpoint_before_a_table_with_batches_is_refused(lake: Lake) -> None:
    """Streams that meet now share a checkpoint, which nobody has run."""
    deployed(lake)
    topology = TridentTopology("words")
    lines = topology.new_stream("lines", Wide("word string, at bigint", []))
    merged = topology.merge(lines, topology.new_stream("more", Wide("word string, at bigint", [])))
    merged.group_by("word").persistent_aggregate(DeltaState("counts"), [Count("n")])
    changes = plan_changes(topology, lake)
    assert told(changes.batch_groups).keys() == {"lines", "lines__more"}
    assert state(changes)[1] == "refused"
    assert "the checkpoint is fresh, and the table holds batches up to txid 0" in state(changes)[2]


# --- what a run stores


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    assert load_plan(tmp_path) is None
    file = save_plan(words(), tmp_path / "new" / "folder")
    found = load_plan(file.parent)
    assert found is not None
    assert found.plan == json.loads(json.dumps(words().build().to_json()))
    assert [one.name for one in file.parent.iterdir()] == ["plan.json"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"format": 99}', "is of format 99"),
        ("{}", "cannot be read"),
    ],
)
def test_a_damaged_plan_is_an_error(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(PlanFileError, match=said) as refused:
        load_plan(tmp_path)
    assert refused.value.path == str(tmp_path / "plan.json")


def test_the_plan_that_was_stored_last_is_what_is_deployed(lake: Lake) -> None:
    folder = lake.root / "checkpoints" / "words"
    assert deployed_plan(folder) is None
    save_plan(words(hint=2), folder / "b")
    time.sleep(0.002)
    save_plan(words(hint=3), folder / "a")
    found = deployed_plan(folder)
    assert found is not None
    assert found.plan["parallelism"]["spout-lines"] == 3


def test_json_is_plain(lake: Lake) -> None:
    deployed(lake)
    found = plan_changes(words(hint=2, aggregators=[Count("n"), Sum("at", "total")]), lake).to_json()
    plain = json.loads(json.dumps(found))
    assert plain["flow"] == "words"
    assert (plain["refused"], plain["evolves"], plain["nothing"]) == ([], ["counts"], False)
    assert plain["parallelism"]["spout-lines"] == {"before": 1, "now": 2}
    assert plain["plan"]["parallelism"]["spout-lines"] == 2
    assert plain["mermaid"].startswith("flowchart LR\n")
    assert [one["name"] for one in plain["states"]] == ["counts"]
