"""Mermaid flowcharts of topologies."""

import re

import pytest

from pipelines.graph.drawing import escape, to_mermaid
from pipelines.quality import drop
from pipelines.sources import FixedBatches
from pipelines.trident import Count, DeltaState, MapGet, Split, TridentTopology

LABEL = r'"(?:[\w .,+\-=()/>*]|#\d+;)*"'
NODE = re.compile(rf"n\d+(?:\(\[{LABEL}\]\)|\[/{LABEL}/\]|\[{LABEL}\]|\{{{LABEL}\}})")
STATE = re.compile(rf"state_[a-z0-9_]+\[\({LABEL}\)\]")
SUBGRAPH = re.compile(rf"subgraph bolt\d+\[{LABEL}\]")
EDGE = re.compile(rf"(\w+) (?:-->(?:\|{LABEL}\|)?|-\.->) (\w+)")


def assert_mermaid(text: str) -> None:
    """Every line is of a known form, boxes are closed, and edges join what is declared."""
    first, *lines = text.splitlines()
    assert first == "flowchart LR"
    depth, declared = 0, set[str]()
    for line in map(str.strip, lines):
        if SUBGRAPH.fullmatch(line):
            depth += 1
        elif line == "end":
            depth -= 1
        elif edge := EDGE.fullmatch(line):
            assert declared.issuperset(edge.groups()), line
        else:
            assert NODE.fullmatch(line) or STATE.fullmatch(line), line
            declared.add(re.split(r"[\[({]", line)[0])
        assert depth in (0, 1)
    assert depth == 0


def test_operations_bolts_states_and_repartitions() -> None:
    topology = TridentTopology("wordcount")
    counts = (
        topology.new_stream("sentences", FixedBatches("sentence string", []))
        .each("sentence", Split(), "word")
        .gate(drop("column_values_to_not_be_null", column="word"), name="words")
        .group_by("word")
        .persistent_aggregate(DeltaState("word_counts"), Count(), "count")
    )
    topology.new_query_stream("ask", "word string").state_query(counts, "word", MapGet(), "count")
    text = to_mermaid(topology)
    assert_mermaid(text)
    assert text == (
        "flowchart LR\n"
        '  n0(["sentences"])\n'
        '  n8[/"query ask"/]\n'
        '  subgraph bolt0["b-0"]\n'
        '    n11["return info"]\n'
        "  end\n"
        '  subgraph bolt1["b-1"]\n'
        '    n14["answer"]\n'
        "  end\n"
        '  subgraph bolt2["b-2"]\n'
        '    n6["Count by word"]\n'
        '    n7["persist word_counts"]\n'
        '    n9["arguments"]\n'
        '    n10["query state word_counts -> count"]\n'
        '    state_word_counts[("word_counts")]\n'
        "  end\n"
        '  subgraph bolt3["b-3"]\n'
        '    n1["each Split -> word"]\n'
        '    n2{"gate words"}\n'
        '    n3["init Count -> count"]\n'
        '    n4["Count by word a partition"]\n'
        "  end\n"
        '  n0 -->|"identity_partition"| n1\n'
        "  n1 --> n2\n"
        "  n2 --> n3\n"
        "  n3 --> n4\n"
        '  n4 -->|"partition_by word"| n6\n'
        "  n6 --> n7\n"
        "  n7 --> state_word_counts\n"
        '  n8 -->|"identity_partition"| n9\n'
        "  n9 --> n10\n"
        "  state_word_counts -.-> n10\n"
        '  n8 -->|"identity_partition"| n11\n'
        '  n11 -->|"batch_global"| n14\n'
        '  n10 -->|"batch_global"| n14\n'
    )


@pytest.mark.parametrize(
    "predicate",
    [
        """sentence = 'a "quoted" word'""",
        "length(sentence) < 3 or sentence rlike '^[a-z]|`x`$'",
        "sentence like '%%{init: 1}%%' and sentence != '#35;'",
        "sentence = 'style x:#fff; y' and sentence = 'ü & <b>bold</b>'",
        "sentence = '" + "long " * 100 + "'",
        "sentence =\n  'two lines\\\\'",
    ],
)
def test_labels_cannot_break_out(predicate: str) -> None:
    topology = TridentTopology("t")
    topology.new_stream("s", FixedBatches("sentence string", [])).filter(predicate)
    text = to_mermaid(topology)
    assert_mermaid(text)
    assert max(map(len, text.splitlines())) < 400


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ('say "hi"', "say #34;hi#34;"),
        ("a < b", "a #60; b"),
        ("a|b", "a#124;b"),
        ("`code`", "#96;code#96;"),
        ("#35;", "#35;35#59;"),
        ("%%{x}%%", "#37;#37;#123;x#125;#37;#37;"),
        ("a:b;c", "a#58;b#59;c"),
        ("[x]", "#91;x#93;"),
        ("a\n\tb", "a b"),
        ("x" * 81, "x" * 77 + "..."),
    ],
)
def test_escape(text: str, escaped: str) -> None:
    assert escape(text) == escaped
