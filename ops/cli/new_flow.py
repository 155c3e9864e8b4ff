"""`tridelta new FLOW`: a new flow in a package outside this project, with its gate, sample data and test."""

from __future__ import annotations

import importlib.util
import keyword
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Annotated, Any

import typer

from ops.cli import rendering
from ops.cli.parts import AsJson, emit, verb
from pipelines.catalog import MODULES, flows
from pipelines.catalog.flow import PROJECT
from pipelines.errors import BadNameError, TrideltaError
from pipelines.graph.fields import checked_name

app = typer.Typer()

TEMPLATES = Path(__file__).parent / "templates" / "new_flow"
KINDS = ("trident", "flowmix", "yaml")
DEFAULT = "flows"


class NewFlowError(TrideltaError):
    """A flow cannot be written there; nothing was written."""

    def __init__(self, flow: str, problem: str, *, path: Path | None = None, hint: str = "") -> None:
        self.flow, self.problem, self.path = flow, problem, path
        super().__init__(f'flow "{flow}" is not written: {problem}', hint=hint)


@dataclass(frozen=True)
class Written:
    """A written file, and its place. `table` is what the flow writes; `gathers` whether its package finds it by itself."""

    flow: str
    kind: str
    folder: Path
    files: tuple[Path, ...]
    table: str
    gathers: bool

    @property
    def exports(self) -> dict[str, str]:
        """Return the environment in which the flow is found: what is set already stays."""
        named = {
            "PYTHONPATH": (str(self.folder.parent), os.pathsep),
            MODULES: (self.folder.name, ","),
        }
        variables = {}
        for name, (value, between) in named.items():
            parts = [part for part in os.environ.get(name, "").split(between) if part]
            variables[name] = between.join([*parts, *([] if value in parts else [value])])
        return variables

    @property
    def next_steps(self) -> list[str]:
        """Return the commands that run it."""
        return [
            "export " + " ".join(f"{name}={value}" for name, value in self.exports.items()),
            f"{_python()} -m pytest {_shown(self.folder)}",
            f"tridelta run {self.flow}",
            f"tridelta state {self.table}",
            f"make -C {PROJECT} ui",
        ]


@verb(app)
def new(
    flow: Annotated[str, typer.Argument(metavar="FLOW", help="The name of the flow: a-z, 0-9, _.")],
    trident: Annotated[bool, typer.Option("--trident", help="A topology: states, questions, slices.")] = False,
    flowmix: Annotated[bool, typer.Option("--flowmix", help="A flow of events: windows, splits, joins.")] = False,
    yaml: Annotated[bool, typer.Option("--yaml", help="A flow of events, written as YAML.")] = False,
    into: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The package for it; default: `flows` in this folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a new flow: a package outside this project, with the flow, its gate, sample data and its test."""
    chosen = [kind for kind, wanted in zip(KINDS, (trident, flowmix, yaml), strict=True) if wanted]
    if len(chosen) != 1:
        raise NewFlowError(flow, "its kind is missing" if not chosen else "it has several kinds", hint=_KINDS_HINT)
    written = write(flow, chosen[0], into or Path(DEFAULT))
    if as_json:
        emit(_plain(written))
    else:
        _show(written)


_KINDS_HINT = "give one of --trident (a topology), --flowmix (events and windows), --yaml (the same as a file)"


def write(flow: str, kind: str, folder: Path) -> Written:
    """Write the files of a flow into a package. Writes all files or no file; leaves existing files alone.

    Args:
        kind: trident, flowmix or yaml.
        folder: the package; it is made if it is not there.

    Raises:
        NewFlowError: the folder cannot be such a package, a file is there already, or the flow is in the catalog.
    """
    folder = folder.expanduser().absolute()
    _check_flow(flow)
    files = _files(flow, kind, folder)
    # These belong to all flows of the package: the first one writes them.
    shared = {name: text for name, text in _shared(folder).items() if not name.exists()}
    _check_folder(flow, folder, own=set(shared) == set(_shared(folder)))
    for path in files:
        if path.exists():
            raise NewFlowError(flow, f"{path} is there already", path=path, hint="take another name, or another --into")
    made: list[Path] = []
    try:
        for path, text in (shared | files).items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as opened:
                made.append(path)
                opened.write(text)
    except OSError as error:
        for path in made:
            path.unlink(missing_ok=True)
        raise NewFlowError(flow, f"{error.strerror}: {error.filename}", hint="give another --into") from error
    table = f"{flow}_by_shop" if kind == "trident" else f"{flow}_large"
    gathers = "flows_of(" in (folder / "__init__.py").read_text(encoding="utf-8")
    return Written(flow, kind, folder, tuple(made), table, gathers)


# --- what is written ------------------------------------------------------------------------------------------------


def _files(flow: str, kind: str, folder: Path) -> dict[Path, str]:
    """Return the files of the flow itself."""
    named = {"flow.py": f"{flow}.py", "flow.yaml": f"{flow}.yaml", "test.py": f"test_{flow}.py"}
    files = {folder / named[name]: text for name, text in _filled(kind, {"flow": flow}).items()}
    return files | {folder / "data" / flow / name: text for name, text in _filled("data", {}).items()}


def _shared(folder: Path) -> dict[Path, str]:
    return {folder / name: text for name, text in _filled("package", {}).items()}


def _filled(kind: str, names: Mapping[str, str]) -> dict[str, str]:
    """Fill the templates of a kind, by the names of their files."""
    return {
        path.name.removesuffix(".tmpl"): Template(path.read_text(encoding="utf-8")).substitute(names)
        for path in sorted((TEMPLATES / kind).glob("*.tmpl"))
    }


# --- what is refused ------------------------------------------------------------------------------------------------


def _check_flow(flow: str) -> None:
    checked_name("flow", flow)
    if keyword.iskeyword(flow) or keyword.issoftkeyword(flow):
        raise BadNameError("flow", flow, "is a word of Python, so that no module can have it")
    if flow.startswith("test_") or flow == "conftest":
        raise BadNameError("flow", flow, "is the name of a test")
    if flow in {spec.name for spec in flows()}:
        raise BadNameError("flow", flow, "is taken: the catalog has a flow of this name")


def _check_folder(flow: str, folder: Path, *, own: bool) -> None:
    """Refuse a folder that is no package of flows and cannot become one."""
    name, inside = folder.name, PROJECT in folder.parents and folder.relative_to(PROJECT).parts[0]
    hint = "give another folder: --into FOLDER"
    if not name.isidentifier() or keyword.iskeyword(name):
        raise NewFlowError(flow, f"{name!r} cannot be the name of a Python package", path=folder, hint=hint)
    if folder == PROJECT or (inside and (PROJECT / inside / "__init__.py").exists() and not _has_flows(folder)):
        raise NewFlowError(flow, f"{folder} is a part of Tridelta itself", path=folder, hint=hint)
    if folder.exists() and not folder.is_dir():
        raise NewFlowError(flow, f"{folder} is a file", path=folder, hint=hint)
    if not own and not _has_flows(folder):
        raise NewFlowError(flow, f"{folder} is a package without FLOWS", path=folder, hint=hint)
    if own and (other := _imported_as(name)) is not None and other != folder:
        problem = f'"{name}" is imported from {other}, which would hide {folder}'
        raise NewFlowError(flow, problem, path=folder, hint=hint)


def _has_flows(folder: Path) -> bool:
    """Check whether the folder is a package whose `__init__` says FLOWS."""
    init = folder / "__init__.py"
    return init.is_file() and "FLOWS" in init.read_text(encoding="utf-8")


def _imported_as(name: str) -> Path | str | None:
    """Return where a name is imported from now; a folder without `__init__` counts as nothing."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None or spec.origin is None:
        return None
    return Path(spec.origin).parent if spec.submodule_search_locations else spec.origin


# --- what is said ---------------------------------------------------------------------------------------------------


def _plain(written: Written) -> dict[str, Any]:
    return {
        "flow": written.flow,
        "kind": written.kind,
        "folder": str(written.folder),
        "files": [str(path) for path in written.files],
        "export": written.exports,
        "next": written.next_steps,
    }


def _show(written: Written) -> None:
    rendering.say(f"Wrote the flow {written.flow}:")
    for path in written.files:
        rendering.say(f"  {_shown(path)}")
    if not written.gathers:
        name = written.folder.name
        rendering.say(f"Add it to FLOWS of {name}/__init__.py: from {name}.{written.flow} import FLOW")
    rendering.say("\nNext (the sample data is there, so each of these works at once):")
    for step in written.next_steps:
        print(f"  {step}")


def _shown(path: Path) -> str:
    """Return the path relative to the working directory, if it is beneath it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _python() -> str:
    """Return the project's Python, by the name that a shell finds it under."""
    import shutil
    import sys

    path = shutil.which("python")
    return "python" if path and Path(path) == Path(sys.executable) else sys.executable
