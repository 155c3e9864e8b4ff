"""The YAML files of a watched folder: what each defines, which are faulty, and which define the same flow."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.errors import FlowFileError, MissingPathError, SameFlowError, TrideltaError
from pipelines.flowmix.flow import Flow
from pipelines.flowmix.yaml_document import content_of
from pipelines.flowmix.yaml_form import load_flow

SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class FlowFile:
    """One file as it is now: its content's hash, and the flow that it defines or what is wrong with it."""

    path: Path
    digest: str
    flow: Flow | None = None
    error: TrideltaError | None = None


class FlowFiles:
    """Reads a folder again and again; a file is loaded when its content has changed.

    Args:
        folder: the folder; its subfolders are not looked into, nor files whose names begin with a dot.
        settle_seconds: a file that was written to later than so long ago may not be whole yet: it counts as it was before.
        functions: as of `load_flow`.
    """

    def __init__(
        self, folder: Path, *, settle_seconds: float = 0.5, functions: Mapping[str, Callable[..., Any]] | None = None
    ) -> None:
        self.folder, self._settle, self._functions = folder, settle_seconds, functions
        self._known: dict[Path, FlowFile] = {}

    def read(self) -> list[FlowFile]:
        """The files, by name.

        Raises:
            MissingPathError: the folder cannot be read; that says nothing about the flows.
        """
        try:
            paths = sorted(p for p in self.folder.iterdir() if p.suffix in SUFFIXES and not p.name.startswith("."))
        except OSError:
            raise MissingPathError("flows", str(self.folder)) from None
        self._known = {found.path: found for path in paths for found in self._read(path)}
        return list(self._known.values())

    def _read(self, path: Path) -> Iterator[FlowFile]:
        known = self._known.get(path)
        try:
            fresh = 0 <= time.time() - path.stat().st_mtime < self._settle
            digest = hashlib.sha256(content_of(path)).hexdigest()
        except FileNotFoundError:
            return
        except FlowFileError as error:
            yield FlowFile(path, "", error=error)
            return
        except OSError as error:
            yield FlowFile(path, "", error=FlowFileError(path, [(1, "", f"cannot be read: {error.strerror}")]))
            return
        if known is not None and (fresh or known.digest == digest):
            yield known
        elif not fresh:
            yield self._load(path, digest)

    def _load(self, path: Path, digest: str) -> FlowFile:
        try:
            return FlowFile(path, digest, load_flow(path, self._functions))
        except TrideltaError as error:
            return FlowFile(path, digest, error=error)
        except (Exception, SystemExit) as error:
            # Whatever a file brings about is that file's: the flows of the others go on.
            problem = f"cannot be loaded: {type(error).__name__}: {str(error)[:200]}"
            return FlowFile(path, digest, error=FlowFileError(path, [(1, "", problem)]))


def by_flow(files: list[FlowFile], owners: Mapping[str, Path]) -> tuple[dict[str, FlowFile], list[FlowFile]]:
    """The files by the flow that they define, and the files that define one which another file defines.

    Args:
        files: the files.
        owners: the files of the flows that are deployed: those keep their names, even while they are faulty.
    """
    faulty = {file.path for file in files if file.flow is None}
    found: dict[str, list[FlowFile]] = {}
    for file in files:
        if file.flow is not None:
            found.setdefault(file.flow.name, []).append(file)
    chosen, refused = {}, []
    for name, several in found.items():
        owner = owners.get(name)
        own = [file for file in several if file.path == owner]
        if owner in faulty:
            own, others = [], several
        elif own or len(several) > 1:
            others = [file for file in several if file not in own]
        else:
            own, others = several, []
        if own:
            chosen[name] = own[0]
        everyone = sorted({*(file.path for file in several), *([owner] if owner in faulty else [])})
        refused += [FlowFile(one.path, one.digest, error=SameFlowError(name, everyone)) for one in others]
    return chosen, refused
