"""A launcher that holds runs until a test carries them out: in the process that has the session, outside the daemon."""

from __future__ import annotations

from typing import Any

import dagster as dg
from dagster._core.execution.api import execute_run
from dagster._core.launcher import LaunchRunContext
from dagster._core.launcher.sync_in_memory_run_launcher import SyncInMemoryRunLauncher
from dagster._utils.hosted_user_process import recon_job_from_origin


class HeldRuns(SyncInMemoryRunLauncher):
    """Launches nothing by itself."""

    def __init__(self, inst_data: Any = None) -> None:
        super().__init__(inst_data)
        self._held: list[tuple[Any, str]] = []

    def launch_run(self, context: LaunchRunContext) -> None:
        self._held.append((context.job_code_origin, context.dagster_run.run_id))

    def carry_out(self, instance: dg.DagsterInstance) -> int:
        """Run what is held, in order; how many those were."""
        held, self._held = self._held, []
        for origin, run_id in held:
            run = instance.get_run_by_id(run_id)
            assert run is not None
            execute_run(recon_job_from_origin(origin), run, instance)
        return len(held)
