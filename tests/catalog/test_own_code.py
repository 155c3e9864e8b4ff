"""Faults in the code of a flow's author: the error says what was raised and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.catalog import FlowSettings, FlowSpec, flow, flows, found
from pipelines.catalog.own_code import FlowCodeError
from pipelines.errors import DefinitionError, UnknownFlowError


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A module that TRIDELTA_FLOWS names, with a name of its own a test: Python keeps what it has imported."""
    name = f"own_{abs(hash(request.node.name))}"
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("TRIDELTA_FLOWS", name)
    return tmp_path / f"{name}.py"


@pytest.mark.parametrize(
    ("code", "said", "line"),
    [
        ("import os\nFLOWS = Count()\n", "NameError: name 'Count' is not defined", 2),
        ("\n\nFLOWS = (\n", "SyntaxError: '(' was never closed", 3),
        ("import os\nos.no_such\n", "AttributeError: module 'os' has no attribute 'no_such'", 2),
        ("import no_such_package\n", "ModuleNotFoundError: No module named 'no_such_package'", 1),
    ],
)
def test_a_module_that_fails(module: Path, code: str, said: str, line: int) -> None:
    module.write_text(code)
    with pytest.raises(FlowCodeError) as caught:
        flows()
    assert said in str(caught.value)
    assert f"{module}:{line}" in str(caught.value)
    assert caught.value.hint


def test_a_module_that_is_not_there(module: Path) -> None:
    with pytest.raises(DefinitionError, match="cannot be imported") as caught:
        flows()
    assert "PYTHONPATH" in caught.value.hint
    module.write_text("x = 1\n")


def test_a_module_without_flows(module: Path) -> None:
    module.write_text("x = 1\n")
    with pytest.raises(DefinitionError, match="has no FLOWS"):
        flows()


def test_a_build_function_that_fails() -> None:
    def build(settings: FlowSettings) -> None:
        raise KeyError("dest")

    spec = FlowSpec("broken", "Fails.", build)  # type: ignore[arg-type]
    with pytest.raises(
        FlowCodeError, match=r'flow "broken": its build function raised KeyError: .dest. at .*own_code.py:\d+'
    ):
        spec.topology(FlowSettings(Path("nowhere")))


GOOD = """
from pipelines.catalog import FlowSpec
FLOWS = (FlowSpec("NAME", "Good.", lambda settings: None),)
"""


def test_a_module_that_fails_is_no_fault_of_the_flows_of_others(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module.write_text("FLOWS = (\n")
    beside = f"{module.stem}_beside"
    (module.parent / f"{beside}.py").write_text(GOOD.replace("NAME", "beside"))
    monkeypatch.setenv("TRIDELTA_FLOWS", f"{module.stem},{beside}")
    assert flow("beside").name == "beside"
    assert flow("flights").name == "flights"
    with pytest.raises(FlowCodeError, match="was never closed"):
        flow("perhaps_in_the_module")
    specs, faults = found()
    assert [spec.name for spec in specs][-1] == "beside"
    assert [type(fault) for fault in faults] == [FlowCodeError]
    # A module that has failed is none that was imported: mended, it is read again.
    module.write_text(GOOD.replace("NAME", "perhaps_in_the_module"))
    assert flow("perhaps_in_the_module").name == "perhaps_in_the_module"
    with pytest.raises(UnknownFlowError, match=r"flights.*perhaps_in_the_module, beside"):
        flow("nowhere")


def test_a_module_that_comes_later_is_found(module: Path) -> None:
    with pytest.raises(DefinitionError, match="cannot be imported"):
        flow("late")
    module.write_text(GOOD.replace("NAME", "late"))
    assert flow("late").name == "late"


@pytest.mark.parametrize(
    ("name", "said"), [("flights", "is in the catalog already"), ("twin", "stands in its FLOWS twice")]
)
def test_two_flows_of_one_name(module: Path, name: str, said: str) -> None:
    one = f'FlowSpec("{name}", "Good.", lambda settings: None)'
    module.write_text(f"from pipelines.catalog import FlowSpec\nFLOWS = ({one}, {one})\n")
    specs, (fault,) = found()
    assert f'the flow "{name}" of {module.stem} {said}' in str(fault)
    assert [spec.name for spec in specs].count(name) == (name == "flights")
