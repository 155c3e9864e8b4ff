"""`tridelta new`: what is written works as it stands, is clean, and overwrites nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ops.cli.app import app
from pipelines.catalog.flow import PROJECT

runner = CliRunner()
BIN = Path(sys.executable).parent
KINDS = {"orders": "--trident", "large_sales": "--flowmix", "quick": "--yaml"}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which all three kinds were written; the package is `flows`."""
    with pytest.MonkeyPatch.context() as patched:
        folder = tmp_path_factory.mktemp("own")
        patched.chdir(folder)
        patched.delenv("PYTHONPATH", raising=False)
        for flow, kind in KINDS.items():
            done = runner.invoke(app, ["new", flow, kind])
            assert done.exit_code == 0, done.output
            assert f"tridelta run {flow}" in done.stdout
            assert f"export PYTHONPATH={folder} TRIDELTA_FLOWS=flows" in done.stdout
    return folder


def in_it(folder: Path, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command there, as the printed steps say."""
    given = os.environ | {"PYTHONPATH": str(folder), "TRIDELTA_FLOWS": "flows", "TRIDELTA_HOME": str(folder / "home")}
    given.pop("PYTEST_ADDOPTS", None)
    return subprocess.run(command, cwd=folder, env=given | more, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_package_holds_the_flows(written: Path) -> None:
    code = "import flows; print([spec.name for spec in flows.FLOWS])"
    done = in_it(written, sys.executable, "-c", code)
    assert done.stdout.strip() == "['large_sales', 'orders', 'quick']", done.stderr


@pytest.mark.slow
def test_the_command_line_finds_them(written: Path) -> None:
    done = in_it(written, str(BIN / "tridelta"), "list", "--json")
    listed = {one["flow"]: one for one in json.loads(done.stdout)}
    assert listed["orders"]["states"] == {"orders_by_shop": None}
    assert listed["orders"]["queries"] == ["shop"]
    assert "large_sales_large" in listed["large_sales"]["states"]
    assert "quick_large" in listed["quick"]["states"]


@pytest.mark.parametrize("configured", [True, False], ids=["as here", "by default"])
def test_the_files_are_clean(written: Path, configured: bool) -> None:
    chosen = ["--config", str(PROJECT / "pyproject.toml")] if configured else ["--isolated"]
    for command in (["check"], ["format", "--check"]):
        done = in_it(written, str(BIN / "ruff"), *command, *chosen, "flows")
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_types_are_right(written: Path) -> None:
    done = subprocess.run(
        [str(BIN / "mypy"), "--config-file", "pyproject.toml", str(written / "flows")],
        cwd=PROJECT,
        env=os.environ | {"MYPYPATH": f"{PROJECT}{os.pathsep}{written}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_tests_pass(written: Path) -> None:
    done = in_it(written, sys.executable, "-m", "pytest", "-q", "flows")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "11 passed" in done.stdout


@pytest.mark.slow
def test_dagster_shows_them(written: Path) -> None:
    code = """
import definitions
graph, repository = definitions.defs.resolve_asset_graph(), definitions.defs.get_repository_def()
print(*sorted(key.to_user_string() for key in graph.get_all_asset_keys() if graph.get(key).group_name == "orders"))
print(*sorted(job.name for job in repository.get_all_jobs() if "orders" in job.name))
print(*sorted(key.name for key in graph.asset_check_keys if key.asset_key.to_user_string() == "orders_by_shop"))
"""
    done = in_it(written, sys.executable, "-W", "ignore", "-c", code)
    assets, jobs, checks = done.stdout.splitlines()
    assert {"orders_by_shop", "orders_best_shops", "sources/orders_sales"} <= set(assets.split()), done.stderr
    assert jobs == "orders_slices_job"
    assert "accepted__cents_are_possible" in checks.split()


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(*arguments: str) -> str:
    done = runner.invoke(app, ["new", *arguments])
    assert done.exit_code == 1, done.output
    return " ".join(done.stderr.split())


def test_nothing_is_overwritten(here: Path) -> None:
    assert runner.invoke(app, ["new", "orders", "--yaml", "--into", "mine"]).exit_code == 0
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    assert "is there already" in refused("orders", "--trident", "--into", "mine")
    assert {path: path.read_bytes() for path in here.rglob("*") if path.is_file()} == before
    (here / "mine" / "sales.yaml").write_text("mine")
    # A long path is broken somewhere, perhaps within the name.
    assert "sales.yamlisthere" in refused("sales", "--yaml", "--into", "mine").replace(" ", "")
    assert not (here / "mine" / "sales.py").exists()


@pytest.mark.parametrize(
    ("flow", "reason"),
    [
        ("Orders", "does not match"),
        ("class", "a word of Python"),
        ("match", "a word of Python"),
        ("test_orders", "the name of a test"),
        ("conftest", "the name of a test"),
        ("flights", "the catalog has a flow of this name"),
    ],
)
@pytest.mark.usefixtures("here")
def test_a_name_that_cannot_be(flow: str, reason: str) -> None:
    assert reason in refused(flow, "--trident")
    assert not Path("flows").exists()


@pytest.mark.usefixtures("here")
def test_one_kind_must_be_chosen() -> None:
    assert "its kind is missing" in refused("orders")
    assert "several kinds" in refused("orders", "--trident", "--yaml")


@pytest.mark.parametrize(
    ("folder", "reason"),
    [
        ("my-flows", "cannot be the name of a Python package"),
        ("json", "would hide"),
        ("sys", "would hide"),
        (str(PROJECT / "pipelines" / "mine"), "a part of Tridelta itself"),
        (str(PROJECT), "a part of Tridelta itself"),
        ("taken", "is a file"),
        ("other", "is a package without FLOWS"),
    ],
)
def test_a_folder_that_cannot_be(here: Path, folder: str, reason: str) -> None:
    (here / "taken").write_text("")
    (here / "other").mkdir()
    (here / "other" / "__init__.py").write_text("")
    assert reason in refused("orders", "--trident", "--into", folder)


def test_a_package_that_lists_its_flows_is_told_of(here: Path) -> None:
    (here / "listed").mkdir()
    (here / "listed" / "__init__.py").write_text("FLOWS = ()\n")
    done = runner.invoke(app, ["new", "orders", "--trident", "--into", "listed"])
    assert done.exit_code == 0, done.output
    assert "Add it to FLOWS of listed/__init__.py: from listed.orders import FLOW" in done.stdout
    assert (here / "listed" / "__init__.py").read_text() == "FLOWS = ()\n"


def test_what_is_set_already_stays(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    done = runner.invoke(app, ["new", "orders", "--flowmix", "--into", "mine", "--json"])
    exports = json.loads(done.stdout)["export"]
    assert exports == {"PYTHONPATH": f"/somewhere:{here}", "TRIDELTA_FLOWS": "mine"}
