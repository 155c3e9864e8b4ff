"""What Dagster calls the checks of gates and suites: names that it takes, one per check."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

import dagster as dg
import pytest

from assets.factory import flow_assets
from assets.view import FlowView
from ops.flow_definitions import FlowGroup, flow_definitions
from pipelines.catalog import FlowSettings, FlowSpec
from pipelines.errors import DefinitionError
from pipelines.quality import warn
from pipelines.sources import JsonFiles
from pipelines.trident import DeltaState, TridentTopology

pytestmark = pytest.mark.filterwarnings("ignore:Property `OpDefinition.version`:DeprecationWarning")


def _crc(text: str) -> str:
    return f"{crc32(text.encode()):08x}"


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["fits", "at least-one", "none → left"], ["fits", "at_least_one", "none_left"]),
        (["größe"], [f"gr_e_{_crc('größe')}"]),
        (["数", "量"], [_crc("数"), _crc("量")]),
        (["a b", "a-b", "a_b", "c d"], [f"a_b_{_crc('a b')}", f"a_b_{_crc('a-b')}", "a_b", "c_d"]),
    ],
)
def test_each_check_has_a_name_that_dagster_takes(tmp_path: Path, given: list[str], names: list[str]) -> None:
    checks = [warn("column_values_to_not_be_null", column="größe", name=name) for name in given]

    def build(settings: FlowSettings) -> TridentTopology:
        topology = TridentTopology("o")
        rows = topology.new_stream("os_in", JsonFiles(settings.data / "o", "`größe` int"))
        rows.gate(*checks, name="g").partition_persist(DeltaState("os"))
        return topology

    view = FlowView.of(FlowSpec("o", "", build, suites={"os": tuple(checks)}), FlowSettings(tmp_path))
    made = flow_assets(view)
    assert [one.name for one in made.suites[0].check_specs] == [f"suite__{name}" for name in names]
    assert [one.name for one in view.gate_checks] == [f"g__{name}" for name in names]
    dg.Definitions.validate_loadable(flow_definitions([FlowGroup([made], "")], str(tmp_path / "lake")))


@pytest.mark.parametrize("names", [("first", "suite"), ("a", "a__b")])
def test_two_checks_of_one_name_at_a_table_are_refused(tmp_path: Path, names: tuple[str, str]) -> None:
    """Names are joined: gate `a` with its check `b__c` is gate `a__b` with its check `c`."""

    def build(settings: FlowSettings) -> TridentTopology:
        topology = TridentTopology("o")
        rows = topology.new_stream("os_in", JsonFiles(settings.data / "o", "n int"))
        for gate, check in zip(names, ("b__c", "c"), strict=True):
            rows = rows.gate(warn("column_values_to_not_be_null", column="n", name=check), name=gate)
        rows.partition_persist(DeltaState("os"))
        return topology

    suite = (warn("column_values_to_be_unique", column="n", name="c"),)
    view = FlowView.of(FlowSpec("o", "", build, suites={"os": suite}), FlowSettings(tmp_path))
    with pytest.raises(DefinitionError, match=f'two checks of os would be named "{names[1]}__c"'):
        flow_assets(view)
