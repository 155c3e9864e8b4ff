"""A table's commits, read from its log once and then as it grows: the only ledger there is."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from pipelines.errors import ReadPointError
from pipelines.state.record import BATCH, COMPACTION, RESET, SLICE, CommitRecord, parse_commit


class History:
    """The commit records of one table, by version, kept up to date by reading the new log files only.

    Args:
        name: the state's name, for messages.
        path: the table's folder.
    """

    def __init__(self, name: str, path: Path) -> None:
        self._name, self._log = name, path / "_delta_log"
        self._records: dict[int, CommitRecord] = {}
        self._versions: dict[int, int] = {}
        self._lock = threading.Lock()

    def records(self) -> list[CommitRecord]:
        """All commits whose log files are there, oldest first."""
        with self._lock:
            self._refresh()
            return [self._records[version] for version in sorted(self._records)]

    def _refresh(self) -> None:
        following = max(self._records, default=-1) + 1
        if (self._log / f"{following:020d}.json").exists() or not self._records:
            for file in sorted(self._log.glob("[0-9]*.json")):
                version = int(file.stem) if file.stem.isdigit() else -1
                if version >= following:
                    self._add(version, file)

    def _add(self, version: int, file: Path) -> None:
        info = {}
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                if line.startswith('{"commitInfo"'):
                    info = json.loads(line)["commitInfo"]
                    break
        record = parse_commit(version, info)
        self._records[version] = record
        if record.kind == BATCH and record.txid is not None:
            self._versions[record.txid] = version
        if record.kind == RESET:
            self._versions.clear()

    def batches(self) -> list[CommitRecord]:
        """The commits of streams since the last reset."""
        found: list[CommitRecord] = []
        for record in self.records():
            if record.kind == RESET:
                found.clear()
            elif record.kind == BATCH:
                found.append(record)
        return found

    def claims(self) -> dict[str, frozenset[str]]:
        """For each backfilled slice the source files whose rows of that slice the table counts through its backfill."""
        found: dict[str, frozenset[str]] = {}
        for commit in self.records():
            record = commit.record
            if commit.kind == RESET:
                found.clear()
            elif record is None or record.claims is None:
                continue
            elif commit.kind == SLICE and record.slice is not None:
                found[record.slice] = frozenset(record.claims)
            elif commit.kind == COMPACTION and isinstance(record.claims, dict):
                found.update(
                    {slice_: frozenset(files) for slice_, files in record.claims.items() if slice_ not in found}
                )
        return found

    def version_of(self, txid: int) -> int:
        """The version that holds the batches up to `txid` and nothing later.

        Raises:
            ReadPointError: if the txid is not committed yet, or its log is gone.
        """
        records = self.records()
        versions = self._versions
        if txid in versions:
            return versions[txid]
        asked = f"txid {txid}"
        if not versions:
            raise ReadPointError(self._name, asked, "no batch is committed yet")
        if txid > max(versions):
            raise ReadPointError(self._name, asked, f"the last committed batch is {max(versions)}")
        earlier = [known for known in versions if known < txid]
        if not earlier:
            oldest = records[0].time
            raise ReadPointError(
                self._name,
                asked,
                f"its log is gone; the oldest batch that can be read is {min(versions)} (log since {oldest:%Y-%m-%d %H:%M})",
                hint="read a later txid, or keep the log longer (retention of checkpoint_compaction_job)",
            )
        return versions[max(earlier)]
