"""The operator's handbook has an entry for every error that a user can meet, and for none that there is not."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import ops
import pipelines
from assets.events import liveness
from pipelines.errors import ChangedSourceError, LostRowsError, StateSchemaError, TrideltaError
from pipelines.nimbus import status
from pipelines.nimbus.processes import leader

PAGE = Path(__file__).parent.parent / "docs" / "handbook.md"

# Imported by nobody but Alembic.
MIGRATIONS = "pipelines.nimbus.registry.migrations"


def entries() -> dict[str, str]:
    """The text of each entry by its heading; an entry may be of several errors."""
    parts = re.split(r"^###? (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return {name: text.strip() for heading, text in pairs for name in heading.split(", ")}


def error_classes() -> set[type[TrideltaError]]:
    """All error classes of the product, wherever they are defined."""
    for package in (pipelines, ops):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith(MIGRATIONS) and not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    found, waiting = {TrideltaError}, [TrideltaError]
    while waiting:
        for one in waiting.pop().__subclasses__():
            if one.__module__.startswith(("pipelines.", "ops.")) and not one.__name__.startswith("_"):
                found.add(one)
            waiting.append(one)
    return found


def errors() -> list[str]:
    return sorted({one.__name__ for one in error_classes()})


def test_no_two_errors_have_one_name() -> None:
    assert len(errors()) == len(error_classes())


@pytest.mark.parametrize("error", errors())
def test_each_error_has_an_entry(error: str) -> None:
    assert error in entries(), f"docs/handbook.md has no entry `### {error}`: what it means, what to do"
    assert len(entries()[error].split()) >= 8


def test_each_entry_is_of_an_error_that_there_is() -> None:
    named = {heading for heading in entries() if re.fullmatch(r"\w+Error", heading)}
    assert named == set(errors())


def test_alerts_have_entries() -> None:
    # The sentences of assets.events.liveness, and problems that it passes on, by what they begin with.
    sources = [Path(liveness.__file__), Path(leader.__file__), Path(status.__file__)]
    source = "".join(file.read_text(encoding="utf-8") for file in sources)
    for sentence in (
        "its worker has not beaten",
        "it has something to read and no batch",
        "it has not come through a trigger",
        "what it reads is gone",
        "it cannot be placed",
    ):
        assert sentence in source
        assert sentence in entries()


def test_the_ways_on_without_lost_rows_say_what_they_count() -> None:
    hint = LostRowsError("s", "files 1 to 3").hint
    for text in (hint, entries()["LostRowsError"]):
        for said in ("counted again", "reset", "checkpoints/FLOW/QUERY", "of Kafka from its `starting`"):
            assert said in text


def test_slices_of_a_changed_source_are_made_without_the_checkpoint_of_its_stream() -> None:
    """A backfill beside it misses the files that the stream has counted."""
    hint = ChangedSourceError("s", "t", 1).hint
    for text in (hint, entries()["ChangedSourceError"]):
        assert "checkpoint away, backfill all its slices" in " ".join(text.split())


def test_no_hint_takes_the_table_alone_away() -> None:
    """The checkpoint beside it would refuse the flow (TableBehindError), or a state of another name (StateBehindError)."""
    hint = StateSchemaError("s", "its keys").hint
    assert "new state name and backfill it; or move the table and the flow's checkpoint away" in hint
    assert "and backfill it; or move the table and the flow's checkpoint away" in " ".join(
        entries()["StateSchemaError"].split()
    )
