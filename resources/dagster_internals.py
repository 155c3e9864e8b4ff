"""The private names of Dagster that this project uses, each with why; nothing else imports `dagster._...` (ruff, TID251).

The dependency is held below 1.14 for them. Before raising it, see which of them have moved or have become public.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

# A run within a test has no code location; asking for it fails a check.
from dagster._check import CheckError

# Dagster counts a partition's verdict only as long as it names the last materialization of that partition.
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationTargetMaterializationData

# The class of asset checks of their own (suites), against the checks that an asset brings along (gates).
from dagster._core.definitions.asset_checks.asset_checks_definition import AssetChecksDefinition

# The graph of all assets: parents, checks, which of them block.
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
from dagster._core.definitions.assets.graph.base_asset_graph import BaseAssetGraph

# The tags by which Dagster compares the version that a deployment was made from with the registry's.
from dagster._core.definitions.data_version import (
    CODE_VERSION_TAG,
    DATA_VERSION_TAG,
    INPUT_DATA_VERSION_TAG_PREFIX,
    INPUT_EVENT_POINTER_TAG_PREFIX,
    NULL_EVENT_POINTER,
)

# The slices of several flows for one backfill.
from dagster._core.definitions.selector import PartitionRangeSelector, PartitionsByAssetSelector, PartitionsSelector

# An output with this key makes no event, and lets what comes after it run.
from dagster._core.definitions.source_asset import SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION

# The type of what `define_asset_job` returns.
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

# The last verdict of a check on one partition, or on the table as a whole.
from dagster._core.event_api import PartitionKeyFilter

# Backfills: the public client starts them over HTTP alone.
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus, PartitionBackfill

# The launcher of runs on this machine, which ours extends.
from dagster._core.launcher.base import CheckRunHealthResult, WorkerStatus
from dagster._core.launcher.default_run_launcher import DefaultRunLauncher

# Sets of statuses: over or not.
from dagster._core.storage.asset_check_execution_record import COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES
from dagster._core.storage.dagster_run import FINISHED_STATUSES, NOT_FINISHED_STATUSES

# What the UI's page of an asset's partitions shows.
from dagster._core.storage.partition_status_cache import get_and_update_asset_status_cache_value
from dagster._core.utils import make_new_backfill_id

# A forked run gets Dagster's instance as text, ends on an interrupt as Dagster's own runs do, and is reported with its words.
from dagster._serdes import deserialize_value, serialize_value
from dagster._utils import get_run_crash_explanation
from dagster._utils.interrupts import capture_interrupts

if TYPE_CHECKING:
    from dagster._core.launcher.base import LaunchRunContext

__all__ = [
    "CODE_VERSION_TAG",
    "COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES",
    "DATA_VERSION_TAG",
    "FINISHED_STATUSES",
    "INPUT_DATA_VERSION_TAG_PREFIX",
    "INPUT_EVENT_POINTER_TAG_PREFIX",
    "NOT_FINISHED_STATUSES",
    "NULL_EVENT_POINTER",
    "SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION",
    "AssetCheckEvaluationTargetMaterializationData",
    "AssetChecksDefinition",
    "AssetGraph",
    "BaseAssetGraph",
    "BulkActionStatus",
    "BulkActionsFilter",
    "CheckError",
    "CheckRunHealthResult",
    "DefaultRunLauncher",
    "LaunchRunContext",
    "PartitionBackfill",
    "PartitionKeyFilter",
    "PartitionRangeSelector",
    "PartitionsByAssetSelector",
    "PartitionsSelector",
    "UnresolvedAssetJobDefinition",
    "WorkerStatus",
    "capture_interrupts",
    "deserialize_value",
    "dev_command",
    "execute_run_command",
    "get_and_update_asset_status_cache_value",
    "get_run_crash_explanation",
    "make_new_backfill_id",
    "serialize_value",
]


def execute_run_command() -> Callable[..., Any]:
    """Return what `dagster api execute_run` calls. Imported on demand: the command line loads much of Dagster."""
    from dagster._cli.api import _execute_run_command_body

    return _execute_run_command_body


def dev_command() -> Any:
    """Return the module of `dagster dev`, whose start of the web server is replaced by the guarded one."""
    from dagster._cli import dev

    return dev
