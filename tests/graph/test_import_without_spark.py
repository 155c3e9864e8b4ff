"""The model and the API need no Spark: a topology is defined, checked, planned and drawn in milliseconds."""

import subprocess
import sys
import textwrap

import pytest


def modules_after(program: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after a program."""
    end = "\nimport sys; print(' '.join({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program) + end], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.splitlines()[-1].split())


def test_graph_and_trident_import_no_spark() -> None:
    loaded = modules_after("import pipelines.graph.nodes, pipelines.trident, pipelines.aggregators, pipelines.planner")
    assert loaded.isdisjoint({"pyspark", "delta", "py4j", "dagster", "great_expectations"})


@pytest.mark.slow
def test_defining_planning_and_interpreting_need_no_spark() -> None:
    loaded = modules_after(
        """
        from pipelines.quality import drop
        from pipelines.sources import FixedBatches
        from pipelines.testing import run_topology
        from pipelines.trident import Count, DeltaState, Split, TridentTopology

        def build(topology, gated):
            stream = topology.new_stream("sentences", FixedBatches("sentence string", [[("a b",)]]))
            words = stream.each("sentence", Split(), "word")
            words = words.gate(drop("column_values_to_not_be_null", column="word")) if gated else words
            words.group_by("word").persistent_aggregate(DeltaState("word_counts"), Count(), "count")
            return topology

        assert build(TridentTopology("gated"), True).build().to_mermaid()
        plain = build(TridentTopology("plain"), False)
        assert len(run_topology(plain, {"sentences": [[("a b",)]]})["word_counts"]) == 2
        """
    )
    assert loaded.isdisjoint({"pyspark", "delta", "py4j", "dagster", "great_expectations"})


@pytest.mark.slow
def test_comparing_a_flow_with_what_is_deployed_needs_no_spark() -> None:
    loaded = modules_after(
        """
        import tempfile
        from pipelines.catalog import flow
        from pipelines.planner.changes import plan_changes
        from pipelines.state.lake import Lake

        with tempfile.TemporaryDirectory() as root:
            assert plan_changes(flow("flights").topology(), Lake(root)).states
        """
    )
    assert loaded.isdisjoint({"pyspark", "delta", "py4j", "dagster", "great_expectations"})
