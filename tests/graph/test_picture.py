"""The picture of a plan: every bolt, operation and state is in it, and nothing that a browser would fetch."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from pipelines.catalog import FlowSettings, flow, flows
from pipelines.flowmix.compile import as_topology
from pipelines.flowmix.yaml_form import load_flow
from pipelines.graph.picture import to_svg

NAMESPACE = "{http://www.w3.org/2000/svg}"


def picture(name: str) -> ET.Element:
    return ET.fromstring(flow(name).topology(FlowSettings(Path("/nowhere"))).build().to_svg())


def texts(found: ET.Element) -> list[str]:
    return [one.text or "" for one in found.iter(f"{NAMESPACE}text")]


def boxes(found: ET.Element) -> list[tuple[float, float, float, float]]:
    """Left, top, right, bottom."""
    sides = [
        [float(one.get(name, 0)) for name in ("x", "y", "width", "height")] for one in found.iter(f"{NAMESPACE}rect")
    ]
    return [(x, y, x + width, y + height) for x, y, width, height in sides]


def test_spouts_bolts_and_states_are_there() -> None:
    found = picture("flights")
    plan = flow("flights").topology(FlowSettings(Path("/nowhere"))).build()
    said = texts(found)
    assert {"flights", "query delays", "query route"} <= set(said)
    assert {bolt.name for bolt in plan.bolts} <= set(said)
    assert {"departures", "carrier_delay", "route_traffic", "airport_hour"} <= set(said)
    assert "gate accepted" in said
    assert any(one.startswith("partition_by") for one in said)


@pytest.mark.parametrize("name", [one.name for one in flows()])
def test_nothing_overlaps_and_nothing_is_cut_off(name: str) -> None:
    found = picture(name)
    width, height = float(found.get("width", 0)), float(found.get("height", 0))
    drawn = boxes(found)
    assert len(drawn) > 2
    for x1, y1, x2, y2 in drawn:
        assert 0 <= x1 < x2 <= width
        assert 0 <= y1 < y2 <= height
    for number, one in enumerate(drawn):
        for other in drawn[number + 1 :]:
            assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]


def test_a_state_that_its_own_bolt_queries_is_an_edge_back() -> None:
    svg = flow("flights").topology(FlowSettings(Path("/nowhere"))).build().to_svg()
    assert svg.count('class="q"') == 2
    # No script, no picture, no font and no link.
    assert set(re.findall(r"<(\w+)", svg)) == {"svg", "style", "path", "rect", "text"}
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")


def test_control_characters_of_a_filter_are_written_out(tmp_path: Path) -> None:
    file = tmp_path / "flow.yaml"
    file.write_text(
        "flow: odd\nstreams:\n- name: s\n  source: {json_files: {path: in, schema: 'x string'}}\n  operations:\n"
        "  - filter: \"x = '\\x1b\\x01\\uffff'\"\n  - persist: k\n"
    )
    assert "filter x = '\\x1b\\x01\\uffff'" in texts(ET.fromstring(to_svg(as_topology(load_flow(file)))))
