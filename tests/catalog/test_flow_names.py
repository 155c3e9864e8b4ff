"""What Dagster does not take for a name, an owner, a tag or a partition is refused where the flow is defined."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

import pytest
from dagster._core.definitions.utils import DISALLOWED_NAMES, is_valid_owner
from dagster._utils.tags import is_valid_strict_tag_value, is_valid_tag_key

from pipelines.catalog import FlowSettings
from pipelines.catalog.flow import _RESERVED, DailySlices, FlowSpec, QueryAsset
from pipelines.errors import DefinitionError
from pipelines.sources import FixedBatches
from pipelines.trident import DeltaState, TridentTopology


def spec(state: str = "kept", name: str = "shop", **other: Any) -> FlowSpec:
    def build(_: FlowSettings) -> TridentTopology:
        made = TridentTopology(name)
        made.new_stream("rows", FixedBatches("n bigint", [])).partition_persist(DeltaState(state))
        return made

    return FlowSpec(name, "A shop.", build, **other)


def test_the_names_that_dagster_reserves_are_known() -> None:
    assert _RESERVED - {"mro"} == DISALLOWED_NAMES


@pytest.mark.parametrize("name", ["output", "class", "mro"])
def test_no_asset_has_such_a_name(name: str, tmp_path: Any) -> None:
    settings = FlowSettings(tmp_path)
    with pytest.raises(DefinitionError, match=f'no asset of Dagster is named "{name}"; give the state another name'):
        spec(name).topology(settings)
    with pytest.raises(DefinitionError, match="give the query asset another name"):
        spec(queries=(QueryAsset(name, "Asks.", ("kept",)),)).topology(settings)
    spec().topology(settings)


def test_names_of_flows() -> None:
    spec(name="relaunch")
    for wrong in ({"name": "mro"}, {"name": "relaunch", "slices": DailySlices(date(2026, 1, 1))}):
        with pytest.raises(DefinitionError, match="take another"):
            spec(**wrong)


OWNERS = ["bob", "team:", "team:data", "bob@shop.example", "bob@shop", "a b@shop.org", "bob@x.y.info", ""]
KEYS = ["a", "a b", "team/a", "a/b/c", "dagster/kind/json", "x" * 63, "x" * 64, "", "ä"]
VALUES = ["", "a", "a b", "x" * 63, "x" * 64, "a/b", "a\n"]


@pytest.mark.parametrize("owner", OWNERS)
def test_owners_are_those_of_dagster(owner: str) -> None:
    if is_valid_owner(owner):
        spec(owners=(owner,))
    else:
        with pytest.raises(DefinitionError, match="neither an e-mail address nor team:NAME"):
            spec(owners=(owner,))


@pytest.mark.parametrize(("key", "value"), [*((key, "v") for key in KEYS), *(("k", value) for value in VALUES)])
def test_tags_are_those_of_dagster(key: str, value: str) -> None:
    # Its pattern ends with $, which a line's end may follow.
    if is_valid_tag_key(key) and is_valid_strict_tag_value(value) and not value.endswith("\n"):
        spec(tags={key: value})
    else:
        with pytest.raises(DefinitionError, match="is not one of Dagster"):
            spec(tags={key: value})


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
    with pytest.raises(DefinitionError, match="daily slices"):
        DailySlices(*days)
