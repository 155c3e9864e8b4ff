"""A folder of files as a source: which of them Spark takes, which are read, and how a batch reads those of several layouts.

What stands in a file is the business of the formats (`pipelines.sources.files`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import reduce
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from pipelines.causes import causes, shortened
from pipelines.errors import DefinitionError, MissingPathError, MovedSourceError, SourceError
from pipelines.places.location import S3, Location, Place, path_below
from pipelines.sources.base import CORRUPT, FILE, StoredSource, file_address, file_key, place_of
from pipelines.sources.layouts import NOT_READ, of_each
from pipelines.sources.linked_folders import endless
from pipelines.sources.offsets import files_of_batches, last_file, log_offset
from pipelines.sources.reader_options import check_options
from pipelines.surroundings import may_hold_private

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PATTERN = re.compile(r"[\\\[\]{}?*]")
# Spark's default forgets files a week older than the newest: one that comes late with its old time would never be read, and
# behind one from a clock that was far ahead no other. So many days in milliseconds are just within a long.
_MAX_FILE_AGE = "100000000d"
_LOOKED_AT = 36
"""So many files are compared with the schema before it is refused."""


def literal_path(path: str) -> str:
    """Return a path as Spark reads it, which takes `?`, `*`, `[` and `{` for patterns."""
    return _PATTERN.sub(r"\\\g<0>", path)


@dataclass(frozen=True)
class Unread:
    """The layout of files that are not read: links out of the source's folder, pipes and the like, odd names.

    Attributes:
        why: what is said of a file for which `_unread` has no reason.
    """

    why: str = "not read"


_UNREAD = Unread()
_FOLDERS = re.compile(
    r"\[(?:EMPTY_PARTITION_COLUMN_(?:NAME|VALUE)|CONFLICTING_(?:PARTITION_COLUMN_NAMES|DIRECTORY_STRUCTURES)|"
    r"INVALID_PARTITION_VALUE)\] "
)
"""What Spark says of folders `key=value` begins so."""


def passed_over(name: str) -> bool:
    """Return whether Spark passes over files and folders of a name: hidden ones, and what `hdfs dfs -put` is writing."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")


def is_listed(name: str) -> bool:
    """Return whether Spark lists a folder of a name: what of it is read it sees behind that.

    Those of `_metadata` are for summaries of Parquet; no file in them is taken.
    """
    return not passed_over(name) or name.startswith(("_metadata", "_common_metadata"))


@dataclass(frozen=True)
class FilesRead:
    """The files of a folder that Spark reads: it passes over some names, and other folders than `key=value`.

    Attributes:
        glob: a pattern of their names.
        any_folder: whether it looks into other folders, too (`recursiveFileLookup`).
    """

    glob: str = "*"
    any_folder: bool = False

    def takes(self, below: Path | None) -> bool:
        """Return whether it reads a file, by the path that leads to it from the folder."""
        if below is None or passed_over(below.name) or not fits(below.name, self.glob):
            return False
        return all(map(self.enters, below.parts[:-1]))

    def enters(self, name: str) -> bool:
        """Return whether it looks into a folder of a name."""
        return (self.any_folder or "=" in name) and not passed_over(name)


def fits(name: str, glob: str) -> bool:
    """Return whether a file's name fits a pattern of Hadoop's: that of `fnmatch`, and `{a,b}`."""
    choice = re.search(r"\{([^{}]*)\}", glob)
    if choice is None:
        return fnmatchcase(name, glob)
    return any(fits(name, glob[: choice.start()] + one + glob[choice.end() :]) for one in choice[1].split(","))


def links_out(folder: str, files: Iterable[str]) -> list[str]:
    """Return the files that lie elsewhere: who may put files into a folder could have any file read that the flow may read."""
    base = os.path.realpath(folder).rstrip("/") + "/"
    return [file for file in files if not os.path.realpath(file).startswith(base)]


def unordinary(files: Iterable[str]) -> list[str]:
    """Return the files that are pipes, devices or sockets: Spark lists them, and who opens a pipe waits for its other end."""
    return [file for file in files if not Path(file).is_file() and Path(file).exists()]


def _oddly_named(files: Iterable[str]) -> dict[str, str]:
    """Return the files of a bucket that Spark alone would read, and why."""
    from pipelines.places.bucket import UNREAD

    return {file: "its name is not read" for file in files if UNREAD.search(file.partition("://")[2])}


def _address(file: str) -> str:
    return quote(file, safe="/:") if isinstance(place_of(file), Location) else file_address(Path(file).as_uri())


class FileSource(StoredSource):
    """A folder of immutable files; a batch is the next files by modification time.

    A link that leads out of the folder is not followed, and a pipe not read: it goes to quarantine as one record, `not_read`. So
    does an object of a bucket with a control character in its name; where one is there at the start, the start is refused.
    A start is refused, too, where links lead to folders that they lie in, here or elsewhere, or to more than 100,000 elsewhere.

    Args:
        path: the folder. Files whose names start with `_` or `.`, or end with `._COPYING_`, are left out, as Spark does.
        schema: DDL, e.g. `"sentence string, n bigint"`.
        max_files_per_batch: at most so many files per batch; None: no limit.
        max_bytes_per_batch: instead of that, at most so many bytes per batch (at least one file).
        options: further options of Spark's reader, of those that say how a record is written (`reader_options`).

    Raises:
        DefinitionError: for any other option, or two limits.
    """

    text: bool = True
    sliceable: bool = True

    def __init__(
        self,
        path: str | Place,
        schema: str,
        *,
        max_files_per_batch: int | None = None,
        max_bytes_per_batch: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(path, schema, max_files_per_batch=max_files_per_batch, max_bytes_per_batch=max_bytes_per_batch)
        if max_files_per_batch is not None and max_bytes_per_batch is not None:
            problem = (
                f"{type(self).__name__}: max_files_per_batch and max_bytes_per_batch are given, and Spark takes one"
            )
            raise DefinitionError(problem, hint="leave one of them out")
        check_options(type(self).__name__, self.format, options)
        self.options = options
        self._seen: tuple[list[Place], Place | None] = ([], None)
        """The first files that `check` has found, and one whose name Spark cannot read."""
        self._known_in: set[tuple[Place, int]] = set()
        """The checkpoints that were asked: in a run the folder stays."""

    def prepare(self, name: str, spool: Place) -> Self:
        own = super().prepare(name, spool)
        own._known_in = set()
        return own

    def check(self, name: str, spark: SparkSession) -> None:
        """Check that the folder exists, and that Spark sees all its files.

        Raises:
            MissingPathError, SourceError
        """
        folder = place_of(self.path)
        if isinstance(folder, Path) and not folder.is_dir():
            raise MissingPathError(name, self.path)
        self.check_place(name)
        if isinstance(folder, Path) and (why := endless(folder, is_listed)):
            raise SourceError(f'source "{name}": {self.path} cannot be listed: {why}', hint="remove such links")
        files = self._found(folder)
        # A folder of a bucket in which there are empty folders alone is there, too.
        if isinstance(folder, Location) and not files and not any(map(str, folder.iterdir())):
            raise MissingPathError(name, self.path)
        for file in files:
            if any("\ud800" <= letter <= "\udfff" for letter in str(file)):
                raise SourceError(
                    f'source "{name}": Spark does not see a file whose name is not UTF-8: {str(file)!r}',
                    hint="rename the file",
                )
        outside = set() if isinstance(folder, Location) else set(links_out(self.path, map(str, files)))
        first = list(islice((file for file in files if str(file) not in outside), _LOOKED_AT))
        self._seen = first, next((file for file in files if ":" in file.name), None)

    def _found(self, folder: Place) -> list[Place]:
        """Return the files of the folder that `check` looks at, in order."""
        read = FilesRead(self.reads.glob)

        def is_looked_at(file: Place) -> bool:
            return read.takes(path_below(file, folder))

        if isinstance(folder, Location):
            return sorted(folder.files(is_looked_at), key=str)
        return sorted((file for file in folder.rglob("*") if is_looked_at(file) and file.is_file()), key=str)

    @property
    def reads(self) -> FilesRead:
        """Return which files of the folder the stream takes."""
        return FilesRead(str(self._option("pathGlobFilter", "*")), self._is_recursive)

    def check_first(self, name: str, *, begun: bool = False) -> None:
        """Check that the files have readable names, and the first one fits the schema; later ones go to quarantine.

        In the folder of a stream that has begun one of the first files must fit, else a backfill would empty its slices.

        Raises:
            SourceError, SourceSchemaError
        """
        first, unreadable = self._seen
        if unreadable is not None and not begun:
            raise SourceError(
                f'source "{name}": Spark cannot read a file with a colon in its name: {unreadable}',
                hint="rename the file",
            )
        refused: list[SourceError] = []
        for file in first if begun else first[:1]:
            try:
                self.check_file(name, file)
            except SourceError as error:
                refused.append(error)
            else:
                return
        if refused:
            raise refused[0]

    def check_same(self, name: str, spark: SparkSession, checkpoint: Place, index: int) -> None:
        """Refuse to go on where the stream has taken files of another folder: Spark knows them by their paths.

        Raises:
            MovedSourceError
        """
        if (checkpoint, index) in self._known_in:
            return
        last = last_file(checkpoint / "sources" / str(index))
        if last is not None and self._has_moved(file_key(last)):
            raise MovedSourceError(name, file_key(last), self.path)
        self._known_in.add((checkpoint, index))

    def _has_moved(self, last: str) -> bool:
        """Return whether a file that was taken has another path now; a source of fewer folders than before keeps its files'."""
        path = self.path.rstrip("/")
        folder, _, name = last.rpartition("/")
        if last.startswith(f"{path}/"):
            return False
        return not path.startswith(f"{folder}/") or (place_of(path) / name).exists()

    def check_file(self, name: str, file: Place) -> None:
        """Compare one file with the schema; the formats override it."""

    def stream(self, spark: SparkSession) -> DataFrame:
        reader = spark.readStream.schema(self._read_schema()).format(self.format)
        reader = reader.options(**{**self._options(), "maxFileAge": _MAX_FILE_AGE, **self._limits})
        with self._naming_folders():
            return self._with_file(reader.load(literal_path(self.path)))

    def bounded(self, spark: SparkSession) -> tuple[DataFrame, frozenset[str]]:
        with self._naming_folders():
            frame = self._read(spark, [self.path])
        files = frozenset(file_address(file) for file in frame.inputFiles())
        layouts = self._all_layouts(sorted(file_key(file) for file in files))
        return (self._by_layout(spark, layouts) if self._differ(layouts) else self._with_file(frame)), files

    @contextmanager
    def _naming_folders(self) -> Iterator[None]:
        """Name the folders of which Spark makes no columns: with such a one below it, it reads nothing of the source's folder.

        Raises:
            SourceError
        """
        try:
            yield
        except Exception as error:
            fault = self.fault("", error)
            if fault is None:
                raise
            raise fault from error

    def fault(self, name: str, error: BaseException) -> SourceError | None:
        of_spark = (cause.text for cause in causes(error) if cause.type.startswith("org.apache.spark."))
        said = next((text for text in of_spark if _FOLDERS.match(text)), None)
        if said is None:
            return None
        known = re.search(r"path segment '(.*?)'\.|cast value '(.*?)' to data type .* partition column `(.*?)`\.", said)
        folder = "" if known is None else f" `{known[1] or f'{known[3]}={known[2]}'}`"
        return SourceError(
            f"{self!r}: Spark makes no columns of its folders{folder}: {shortened(' '.join(said.split()))}",
            hint="rename the folder `key=value`, or move it out of the source; then run the flow again",
        )

    def gone(self, files: Iterable[str]) -> frozenset[str]:
        keys = {file_key(file): file for file in files}
        return frozenset(keys[key] for key in self.absent(keys))

    def absent(self, keys: Iterable[str]) -> frozenset[str]:
        return frozenset(key for key, there in of_each(lambda key: place_of(key).exists(), [*keys]) if not there)

    def of_batch(self, frame: DataFrame, files: frozenset[str]) -> DataFrame:
        """Return the frame; if a file is not laid out as declared, or its name looks like a pattern, read those files apart.

        Spark's stream then reads the batch's other files twice.
        """
        layouts = self._all_layouts(sorted(files))
        if not self._differ(layouts) and not any(_PATTERN.search(file) for file in files):
            return frame
        return self._by_layout(frame.sparkSession, layouts)

    def layouts(self, files: list[str]) -> dict[Any, list[str]]:
        """Group the files by layout; None is the declared one. The formats override it."""
        return {None: files}

    def _all_layouts(self, files: list[str]) -> dict[Any, list[str]]:
        """Return `layouts` with what is not read apart."""
        unread = list(self._unread(files))
        if not unread:
            return self.layouts(files)
        others = [file for file in files if file not in unread]
        return {**(self.layouts(others) if others else {}), _UNREAD: unread}

    def _unread(self, files: list[str]) -> dict[str, str]:
        """Return the files that are not read, and why."""
        if isinstance(folder := place_of(self.path), Location):
            return _oddly_named(files) if folder.scheme == S3 else {}
        unread = {file: "a colon in its name, which Spark cannot read" for file in files if ":" in Path(file).name}
        unread |= dict.fromkeys(unordinary(files), "no ordinary file, not read")
        # What lies outside is not read anyway.
        if self.confined and may_hold_private(self.path):
            unread |= dict.fromkeys(self.kept_out(files), "a file of the system or of the deployment, not read")
        return unread | dict.fromkeys(links_out(self.path, files), "a link out of the folder, not followed")

    def _rejected(self, spark: SparkSession, files: list[str], layout: Unread) -> DataFrame:
        """Return a rejected record for each file that is not read."""
        from pyspark.sql import functions as F

        # Unless a file has become another one meanwhile, each has its reason.
        reasons = {**dict.fromkeys(files, layout.why), **self._unread(files)}
        said = [(f"{NOT_READ}{why}\0{file}: {why}", _address(file)) for file, why in reasons.items()]
        rejected = spark.createDataFrame(said, f"{CORRUPT} string, {FILE} string")
        return rejected.select(*(F.lit(None).cast(kind).alias(name) for name, kind in self._columns), CORRUPT, FILE)

    def _by_layout(self, spark: SparkSession, layouts: dict[Any, list[str]]) -> DataFrame:
        """Return each file as it is laid out, in an order that a replay repeats."""
        alike: dict[Any, list[str]] = {}
        for layout, files in layouts.items():
            for file in files:
                alike.setdefault((layout, self._of_folders(file)), []).append(file)
        parts = [
            self._with_file(self._read(spark, files))
            if layout is None
            else self._rejected(spark, files, layout)
            if isinstance(layout, Unread)
            else self._laid_out(spark, layout, files)
            for (layout, _), files in sorted(alike.items(), key=lambda item: min(item[1]))
        ]
        return reduce(lambda part, other: part.unionByName(other), parts)

    def _differ(self, layouts: dict[Any, list[str]]) -> bool:
        """Return whether files must be read apart: what lies beside folders `key=value` Spark leaves out of a read of these."""
        return bool(set(layouts) - {None}) or len(set(map(self._of_folders, layouts.get(None, ())))) > 1

    def _of_folders(self, file: str) -> tuple[str, ...]:
        """Return the columns, in small letters, whose values a file has from the folders `key=value` that it lies in."""
        if self._is_recursive:
            return ()
        folders = file.removeprefix(self.path).split("/")[:-1]
        return tuple(folder.partition("=")[0].lower() for folder in folders if "=" in folder)

    @property
    def _is_recursive(self) -> bool:
        return str(self._option("recursiveFileLookup", False)).lower() == "true"

    def _own_and_given(self, file: str) -> tuple[dict[str, str], dict[str, str]]:
        """Return the fields, with their types, whose values stand in a file, and those that it has from its folders."""
        of_folders, columns = self._of_folders(file), dict(self._columns)
        own = {name: kind for name, kind in columns.items() if name.lower() not in of_folders}
        return own, {name: kind for name, kind in columns.items() if name not in own}

    def _option(self, name: str, default: Any) -> Any:
        """Return what the user gave for an option of Spark's, in any case of letters."""
        return next((value for given, value in self.options.items() if given.lower() == name.lower()), default)

    @property
    def _line_ends(self) -> dict[str, Any]:
        """Return the option for a reader of lines as they are."""
        return {name: value for name, value in self.options.items() if name.lower() == "linesep"}

    def _laid_out(self, spark: SparkSession, layout: Any, files: list[str]) -> DataFrame:
        """Return the rows of files of one layout; for the formats that tell any apart."""
        raise NotImplementedError

    def _read(self, spark: SparkSession, paths: list[str]) -> DataFrame:
        reader = spark.read.schema(self._read_schema()).format(self.format).options(**self._options())
        return reader.option("basePath", self.path).load([literal_path(path) for path in paths])

    def positions(self, checkpoint: Place, first: int, last: int, index: int = 0) -> frozenset[str]:
        start, end = log_offset(checkpoint, first - 1, index) + 1, log_offset(checkpoint, last, index)
        return frozenset(file_key(file) for file in files_of_batches(checkpoint / "sources" / str(index), start, end))

    def _read_schema(self) -> str:
        return f"{self.schema}, {CORRUPT} string" if self.text else self.schema

    def _options(self) -> dict[str, Any]:
        if not self.text:
            return self.options
        return {**self.options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}

    def _text_options(self) -> dict[str, str] | None:
        """Return the options for a single record; None: a record of this source can be more than a line."""
        given = {name.lower(): value for name, value in self._options().items()}
        if str(given.pop("multiline", False)).lower() == "true":
            return None
        shown = {name: value for name, value in given.items() if name not in ("header", "encoding", "charset")}
        return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in shown.items()}

    def _with_file(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        return self._with_position(frame, F.col("_metadata.file_path"), F.col(CORRUPT) if self.text else None)
