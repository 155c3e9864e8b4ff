"""The expectation types that a gate may name, without importing great-expectations (its import costs seven seconds).

The table was read from great-expectations 1.24; `tests/quality/test_vocabulary.py` compares it with the installed one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Shape = Literal["map", "pair", "multi", "aggregate", "table"]

_COLUMNS: dict[Shape, tuple[str, ...]] = {
    "map": ("column",),
    "pair": ("column_A", "column_B"),
    "multi": ("column_list",),
    "aggregate": ("column",),
    "table": (),
}
_CONDITION = ("row_condition", "condition_parser")
_OPTIONS: dict[Shape, tuple[str, ...]] = {
    "map": ("mostly", *_CONDITION),
    "pair": ("mostly", "ignore_row_if", *_CONDITION),
    "multi": ("mostly", "ignore_row_if", *_CONDITION),
    "aggregate": _CONDITION,
    "table": (),
}
_RANGE = ("min_value", "max_value", "strict_min", "strict_max")

# Accepted by every expectation; they change no answer.
DESCRIPTIVE = ("meta", "notes", "description", "severity")


@dataclass(frozen=True)
class ExpectationType:
    """The part of an expectation that a gate must know before Spark is there.

    `row` is True when a single row can be said to violate it by Spark columns alone: only those can drop rows.
    """

    name: str
    shape: Shape
    required: tuple[str, ...]
    optional: tuple[str, ...]
    row: bool

    @property
    def parameters(self) -> tuple[str, ...]:
        """Return all keyword arguments that great-expectations takes for it."""
        return (*self.required, *self.optional)


_Entry = tuple[Shape, tuple[str, ...], tuple[str, ...], bool]


def _row(shape: Shape, *required: str, optional: tuple[str, ...] = ()) -> _Entry:
    return shape, required, optional, True


def _whole(shape: Shape, *required: str, optional: tuple[str, ...] = ()) -> _Entry:
    return shape, required, optional, False


_TABLE = {
    "column_values_to_not_be_null": _row("map"),
    "column_values_to_be_null": _row("map"),
    "column_values_to_be_between": _row("map", optional=_RANGE),
    "column_values_to_be_in_set": _row("map", "value_set"),
    "column_values_to_not_be_in_set": _row("map", "value_set"),
    "column_values_to_match_regex": _row("map", optional=("regex",)),
    "column_values_to_not_match_regex": _row("map", "regex"),
    "column_values_to_match_regex_list": _row("map", "regex_list", optional=("match_on",)),
    "column_values_to_not_match_regex_list": _row("map", "regex_list"),
    "column_values_to_match_like_pattern": _row("map", "like_pattern", optional=("escape",)),
    "column_values_to_not_match_like_pattern": _row("map", "like_pattern", optional=("escape",)),
    "column_values_to_match_like_pattern_list": _row("map", "like_pattern_list", optional=("match_on", "escape")),
    "column_values_to_not_match_like_pattern_list": _row("map", "like_pattern_list", optional=("escape",)),
    "column_value_lengths_to_be_between": _row("map", optional=_RANGE),
    "column_value_lengths_to_equal": _row("map", "value"),
    "column_values_to_be_unique": _row("map"),
    "column_pair_values_a_to_be_greater_than_b": _row("pair", optional=("or_equal",)),
    "column_pair_values_to_be_equal": _row("pair"),
    "column_pair_values_to_be_in_set": _row("pair", "value_pairs_set"),
    "compound_columns_to_be_unique": _row("multi"),
    "select_column_values_to_be_unique_within_record": _row("multi"),
    "multicolumn_sum_to_equal": _row("multi", "sum_total"),
    "multicolumn_values_to_be_equal": _row("multi"),
    # About the whole batch, its schema, or its order: no single row can be blamed by columns alone.
    "column_values_to_be_of_type": _whole("map", "type_"),
    "column_values_to_be_in_type_list": _whole("map", optional=("type_list",)),
    "column_values_to_be_increasing": _whole("map", optional=("strictly",)),
    "column_values_to_be_decreasing": _whole("map", optional=("strictly",)),
    "column_values_to_be_json_parseable": _whole("map"),
    "column_values_to_match_json_schema": _whole("map", "json_schema"),
    "column_values_to_match_strftime_format": _whole("map", "strftime_format"),
    "column_values_to_be_dateutil_parseable": _whole("map"),
    "column_values_to_not_be_outliers": _whole("map", optional=("method", "multiplier")),
    "column_value_z_scores_to_be_less_than": _whole("map", "threshold", "double_sided"),
    "column_min_to_be_between": _whole("aggregate", optional=_RANGE),
    "column_max_to_be_between": _whole("aggregate", optional=_RANGE),
    "column_mean_to_be_between": _whole("aggregate", optional=_RANGE),
    "column_median_to_be_between": _whole("aggregate", optional=_RANGE),
    "column_sum_to_be_between": _whole("aggregate", optional=_RANGE),
    "column_stdev_to_be_between": _whole("aggregate", optional=_RANGE),
    "column_unique_value_count_to_be_between": _whole("aggregate", optional=_RANGE),
    "column_proportion_of_unique_values_to_be_between": _whole("aggregate", optional=_RANGE),
    "column_proportion_of_non_null_values_to_be_between": _whole("aggregate", optional=_RANGE),
    "column_distinct_values_to_be_in_set": _whole("aggregate", "value_set"),
    "column_distinct_values_to_contain_set": _whole("aggregate", "value_set"),
    "column_distinct_values_to_equal_set": _whole("aggregate", "value_set"),
    "column_most_common_value_to_be_in_set": _whole("aggregate", "value_set", optional=("ties_okay",)),
    "column_quantile_values_to_be_between": _whole("aggregate", "quantile_ranges", optional=("allow_relative_error",)),
    "column_kl_divergence_to_be_less_than": _whole(
        "aggregate",
        optional=(
            "partition_object",
            "threshold",
            "internal_weight_holdout",
            "tail_weight_holdout",
            "bucketize_data",
            "min_value",
            "max_value",
        ),
    ),
    "table_row_count_to_be_between": _whole("table", optional=(*_RANGE, *_CONDITION)),
    "table_row_count_to_equal": _whole("table", "value", optional=_CONDITION),
    "table_column_count_to_be_between": _whole("table", optional=("min_value", "max_value")),
    "table_column_count_to_equal": _whole("table", "value"),
    "table_columns_to_match_ordered_list": _whole("table", optional=("column_list",)),
    "table_columns_to_match_set": _whole("table", optional=("column_set", "exact_match")),
    # These name a column, but the stream need not have it: that is what they check.
    "column_to_exist": _whole("table", "column", optional=("column_index",)),
}

EXPECTATIONS: dict[str, ExpectationType] = {
    f"expect_{name}": ExpectationType(
        f"expect_{name}", shape, (*_COLUMNS[shape], *required), (*_OPTIONS[shape], *optional), row
    )
    for name, (shape, required, optional, row) in _TABLE.items()
}

# Types that great-expectations has but that need another table, another data source or a database.
UNSUPPORTED: dict[str, str] = {
    "expect_column_type_to_be": "it runs on databases only; use expect_column_values_to_be_of_type",
    "expect_query_results_to_match_comparison": "it compares with another data source",
    "expect_table_row_count_to_equal_other_table": "it compares with another table",
    "unexpected_rows_expectation": "its SQL runs outside of the batch's session; put the condition in a filter, or add "
    "a column with the condition and use expect_column_values_to_be_in_set(column, [True])",
}


def full_name(name: str) -> str:
    """Return the type name with its prefix: `column_max_to_be_between` -> `expect_column_max_to_be_between`."""
    return name if name.startswith(("expect_", "unexpected_")) else f"expect_{name}"
