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
EDGE = re.compile(r"(\w+) (?:-->|-\.->) (\w+)")


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


def test_the_whole_vocabulary() -> None:
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
        '  n1(["sentences"])\n'
        '  n5[/"query ask"/]\n'
        '  subgraph bolt0["b-0-sentences"]\n'
        '    n2["each Split -> word"]\n'
        '    n3{"gate words"}\n'
        "  end\n"
        '  subgraph bolt1["b-1-sentences"]\n'
        '    n4["persist word_counts"]\n'
        "  end\n"
        '  subgraph bolt2["b-2-ask"]\n'
        '    n6["query state word_counts -> count"]\n'
        "  end\n"
        '  state_word_counts[("word_counts")]\n'
        "  n1 --> n2\n"
        "  n2 --> n3\n"
        "  n3 --> n4\n"
        "  n4 --> state_word_counts\n"
        "  n5 --> n6\n"
        "  state_word_counts -.-> n6\n"
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
