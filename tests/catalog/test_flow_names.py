"""What Dagster does not take for a name, an owner, a tag or a partition is refused where Dagster loads the flow."""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from dagster._core.definitions.utils import DISALLOWED_NAMES, is_valid_owner
from dagster._utils.tags import is_valid_strict_tag_value, is_valid_tag_key

from assets.view import FlowView
from pipelines.catalog import FlowSettings
from pipelines.catalog.flow import _RESERVED, DailySlices, FlowSpec, QueryAsset, Ranking
from pipelines.errors import DefinitionError, FieldError
from pipelines.quality import warn
from pipelines.sources import FixedBatches
from pipelines.trident import DeltaState, TridentTopology


def spec(state: str = "kept", name: str = "shop", schema: str = "n bigint", **other: Any) -> FlowSpec:
    def build(_: FlowSettings) -> TridentTopology:
        made = TridentTopology(name)
        made.new_stream("rows", FixedBatches(schema, [])).partition_persist(DeltaState(state))
        return made

    return FlowSpec(name, "A shop.", build, **other)


def test_the_names_that_dagster_reserves_are_known() -> None:
    assert _RESERVED - {"mro"} == DISALLOWED_NAMES


def view(*given: Any, **named: Any) -> FlowView:
    return FlowView.of(spec(*given, **named), FlowSettings(Path("nowhere")))


@pytest.mark.parametrize("name", ["output", "class", "mro"])
def test_no_asset_has_such_a_name(name: str) -> None:
    """What is deployed runs on: it is Dagster that does not take it."""
    spec(name).topology(FlowSettings(Path("nowhere")))
    with pytest.raises(DefinitionError, match=f'Dagster has something named "{name}"; give the state another name'):
        view(name)
    with pytest.raises(DefinitionError, match="give the query asset another name"):
        view(queries=(QueryAsset(name, "Asks.", ("kept",)),))
    view()


def test_names_of_flows() -> None:
    view(name="relaunch")
    for wrong in ({"name": "mro"}, {"name": "relaunch", "slices": DailySlices(date(2026, 1, 1))}):
        with pytest.raises(DefinitionError, match="has something of this name"):
            view(**wrong)


OWNERS = ["bob", "team:", "team:data", "bob@shop.example", "bob@shop", "a b@shop.org", "bob@x.y.info", ""]
KEYS = ["a", "a b", "team/a", "a/b/c", "dagster/kind/json", "x" * 63, "x" * 64, "", "ä"]
VALUES = ["", "a", "a b", "x" * 63, "x" * 64, "a/b", "a\n"]


@pytest.mark.parametrize("owner", OWNERS)
def test_owners_are_those_of_dagster(owner: str) -> None:
    if is_valid_owner(owner):
        view(owners=(owner,))
    else:
        with pytest.raises(DefinitionError, match="neither an e-mail address nor team:NAME"):
            view(owners=(owner,))


@pytest.mark.parametrize(("key", "value"), [*((key, "v") for key in KEYS), *(("k", value) for value in VALUES)])
def test_tags_are_those_of_dagster(key: str, value: str) -> None:
    # Its pattern ends with $, which a line's end may follow.
    if is_valid_tag_key(key) and is_valid_strict_tag_value(value) and not value.endswith("\n"):
        view(tags={key: value})
    else:
        with pytest.raises(DefinitionError, match="is not one of Dagster"):
            view(tags={key: value})


@pytest.mark.parametrize(
    "days",
    [
        (date(999, 1, 1),),
        (datetime(2026, 1, 1),),
        ("2026-01-01",),
        (None,),
        (date(2026, 1, 1), "2026-01-02"),
        (date(2026, 1, 2), date(2026, 1, 1)),
    ],
)
def test_days_that_are_none(days: Any) -> None:
    with pytest.raises(DefinitionError, match=r"its slices go from|of its slices is a date"):
        view(slices=DailySlices(*days))


@pytest.mark.parametrize("column", ["place.city", "`place`.city"])
def test_a_suite_names_a_field_of_a_struct_as_a_gate_does(column: str) -> None:
    settings, kept = FlowSettings(Path("nowhere")), "n bigint, place struct<city: string>"
    suites = {"kept": (warn("column_values_to_not_be_null", column=column),)}
    spec(schema=kept, suites=suites).topology(settings)
    with pytest.raises(FieldError, match="no such field; the state has: n"):
        spec(schema="n bigint", suites=suites).topology(settings)
    by = QueryAsset("best", "", reads=("kept",), ranking=Ranking(column))
    with pytest.raises(FieldError, match="the ranking of"):
        spec(schema=kept, queries=(by,)).topology(settings)
