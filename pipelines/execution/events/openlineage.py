"""OpenLineage: report each run of a batch group to a collector of lineage, with its tables, columns and where they come from.

Off unless TRIDELTA_OPENLINEAGE is set. Where the events go is the OpenLineage client's own matter: OPENLINEAGE_URL,
OPENLINEAGE_CONFIG or OPENLINEAGE__TRANSPORT__... of its documentation; OPENLINEAGE_NAMESPACE names the namespace of the jobs.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pipelines import logs
from pipelines.errors import DefinitionError
from pipelines.execution.report import StateCommit
from pipelines.graph.lineage import Lineage, lineage
from pipelines.graph.lineage_names import Dataset, dataset_of, datasets_of

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient

    from pipelines.execution.batch.group import BatchGroup, Sink

SWITCH, NAMESPACE = "TRIDELTA_OPENLINEAGE", "OPENLINEAGE_NAMESPACE"
PRODUCER = "urn:tridelta"
BATCH, STREAMING = "BATCH", "STREAMING"
_ENDS = ("COMPLETE", "FAIL", "ABORT")
# What runs around the clock says so from time to time: collectors take a run of which they hear nothing for dead.
RUNNING_EVERY_SECONDS = 60.0

logger = logs.logger(__name__)


def is_on() -> bool:
    """Return whether events are wanted.

    Raises:
        DefinitionError: they are, and the client is not installed.
    """
    if os.environ.get(SWITCH, "").strip().lower() in ("", "0", "false", "no", "off"):
        return False
    if find_spec("openlineage") is None:
        raise DefinitionError(
            f"{SWITCH} is set, and the OpenLineage client is not installed", hint="pip install openlineage-python"
        )
    return True


@cache
def _client() -> OpenLineageClient:
    from openlineage.client import OpenLineageClient

    return OpenLineageClient()


@contextmanager
def lineage_run(group: BatchGroup, processing: str, slices: Sequence[str] = ()) -> Iterator[LineageRun | None]:
    """Report the start and the end of a run of a batch group; the block gets the run, or None if nothing is reported.

    Args:
        processing: `BATCH` for what ends by itself, `STREAMING` for what does not.
        slices: what a backfill makes.
    """
    if not is_on():
        yield None
        return
    run = LineageRun(group, processing, slices)
    run.tell("START")
    try:
        yield run
    except Exception as error:
        run.tell("FAIL", error)
        raise
    except BaseException:
        run.tell("ABORT")
        raise
    run.tell("COMPLETE")


class LineageRun:
    """One run of a batch group, as events. That an event cannot be sent is a warning: lineage stops no flow.

    Args:
        group: the batch group; a job of its own, `<flow>.<group>`.
        processing: `BATCH` or `STREAMING`.
        slices: what a backfill makes.
    """

    def __init__(self, group: BatchGroup, processing: str, slices: Sequence[str] = ()) -> None:
        from openlineage.client.uuid import generate_new_uuid

        self._group, self._processing, self._slices = group, processing, tuple(slices)
        self._id = str(generate_new_uuid())
        self._namespace = os.environ.get(NAMESPACE, "tridelta")
        self._rows: dict[str, int] = {}
        self._versions: dict[str, int] = {}
        self._last, self._lock = time.monotonic(), threading.Lock()
        self._ended, self._sending = False, threading.Lock()

    def wrote(self, commits: Sequence[StateCommit]) -> None:
        """Take in what a batch or slice committed; a run without an end reports from time to time."""
        with self._lock:
            for commit in commits:
                self._rows[commit.state] = self._rows.get(commit.state, 0) + commit.rows
                self._versions[commit.state] = commit.version
            due = self._processing == STREAMING and time.monotonic() - self._last > RUNNING_EVERY_SECONDS
            if due:
                self._last = time.monotonic()
        if due:
            # In a thread: a batch does not wait for a collector.
            threading.Thread(target=self.tell, args=("RUNNING",), name="lineage", daemon=True).start()

    def tell(self, kind: str, error: BaseException | None = None) -> None:
        """Send one event: START, RUNNING, COMPLETE, FAIL or ABORT. After one of the last three there are no more."""
        with self._sending:
            if self._ended:
                return
            self._ended = kind in _ENDS
            try:
                _client().emit(self._event(kind, error))
            except Exception as problem:
                logger.warning("lineage not reported", flow=self._group.topology.name, kind=kind, reason=str(problem))

    # --- the event --------------------------------------------------------------------------------------------------

    def _event(self, kind: str, error: BaseException | None) -> Any:
        from openlineage.client import event_v2 as ol

        return ol.RunEvent(
            eventType=ol.RunState[kind],
            eventTime=datetime.now(UTC).isoformat(),
            run=ol.Run(self._id, facets=self._of_run(error)),
            job=ol.Job(self._namespace, f"{self._group.topology.name}.{self._group.name}", facets=self._of_job()),
            inputs=[ol.InputDataset(*dataset) for dataset in self._read()],
            outputs=[self._output(sink) for sink in self._group.sinks],
            producer=PRODUCER,
        )

    def _of_run(self, error: BaseException | None) -> dict[str, Any]:
        from openlineage.client import facet_v2 as facets

        made: dict[str, Any] = {
            "processing_engine": facets.processing_engine_run.ProcessingEngineRunFacet(
                version=self._group.spark.version, name="spark"
            )
        }
        if self._slices:
            from openlineage.client.generated import execution_parameters_run as parameters

            text = ", ".join(self._slices)
            made["executionParameters"] = parameters.ExecutionParametersRunFacet(
                [parameters.ExecutionParameter(key="slices", value=text)]
            )
        if error is not None:
            made["errorMessage"] = facets.error_message_run.ErrorMessageRunFacet(str(error), "PYTHON")
        return made

    def _of_job(self) -> dict[str, Any]:
        from openlineage.client import facet_v2 as facets

        kind = facets.job_type_job.JobTypeJobFacet(self._processing, "TRIDELTA", "FLOW")
        about = self._group.topology.description
        described = {"documentation": facets.documentation_job.DocumentationJobFacet(about)} if about else {}
        return {"jobType": kind, **described}

    def _read(self) -> list[Dataset]:
        """Return the sources, channels and states that the group reads, without the states that it writes itself."""
        group = self._group
        written = {dataset_of(sink.table.path) for sink in group.sinks}
        datasets: list[Dataset] = []
        for spout in group.spouts:
            datasets += [
                dataset
                for some in datasets_of(spout, group.sources.datasets(), group.lake, group.topology.name).values()
                for dataset in some
            ]
        datasets += [dataset_of(group.lake.state_path(name)) for name in sorted(group.queried)]
        return [dataset for dataset in dict.fromkeys(datasets) if dataset not in written]

    def _output(self, sink: Sink) -> Any:
        from openlineage.client import event_v2 as ol
        from openlineage.client import facet_v2 as facets

        declared = sink.writer.declared
        columns = [facets.schema_dataset.SchemaDatasetFacetFields(name, kind) for name, kind in declared.columns]
        made: dict[str, Any] = {
            "schema": facets.schema_dataset.SchemaDatasetFacet(columns),
            "columnLineage": self._column_lineage(lineage(self._group.topology, sink.node.id), declared.names),
        }
        if sink.name in self._versions:
            version = str(self._versions[sink.name])
            made["version"] = facets.dataset_version_dataset.DatasetVersionDatasetFacet(version)
        rows = facets.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(self._rows.get(sink.name, 0))
        return ol.OutputDataset(*dataset_of(sink.table.path), facets=made, outputFacets={"outputStatistics": rows})

    def _column_lineage(self, traced: Lineage, columns: Sequence[str]) -> Any:
        from openlineage.client.generated import column_lineage_dataset as columns_of

        group = self._group
        places: dict[str, tuple[Dataset, ...]] = {
            name: (dataset_of(group.lake.state_path(name)),) for name in group.queried
        }
        for spout in group.spouts:
            places |= datasets_of(spout, group.sources.datasets(), group.lake, group.topology.name)
        fields = {}
        for name in columns:
            origins = [(*place, field) for origin, field in traced.get(name, ()) for place in places.get(origin, ())]
            fields[name] = columns_of.Fields([columns_of.InputField(*origin) for origin in origins])
        return columns_of.ColumnLineageDatasetFacet(fields)
