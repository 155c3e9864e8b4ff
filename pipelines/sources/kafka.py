"""Topics of Kafka."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pipelines import bounds
from pipelines.causes import causes
from pipelines.errors import DefinitionError, LostRowsError, SourceError
from pipelines.graph.fields import added, parse_ddl
from pipelines.graph.lineage_names import Dataset
from pipelines.places.location import Place, put_whole
from pipelines.private import LOGIN, SecretError, resolved
from pipelines.sources.base import CORRUPT, FILE, Source, one_value, unmarked
from pipelines.sources.folder import unordinary
from pipelines.sources.layouts import nothing_read, with_any
from pipelines.sources.offsets import offset_of
from pipelines.surroundings import private_among

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

JSON, TEXT, BYTES = "json", "text", "bytes"
EARLIEST, LATEST = "earliest", "latest"
RECORD_FIELDS = {
    "key": "key string",
    "topic": "topic string",
    "partition": "partition int",
    "offset": "offset bigint",
    "timestamp": "timestamp timestamp",
}
"""What `with_fields` may name, with its type."""
_ANSWER_SECONDS = 15
# What brokers before 2.8 give as the id of every topic.
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
# Spark's own errors about Kafka, and the broker's about what is not there: none holds a record's text.
_SPARKS = "org.apache.spark.sql.kafka010."
_GONE = {
    "org.apache.kafka.clients.consumer.OffsetOutOfRangeException",
    "org.apache.kafka.common.errors.OffsetOutOfRangeException",
    "org.apache.kafka.common.errors.UnknownTopicOrPartitionException",
}


class Kafka(Source):
    """The records of one or more topics; a batch is a range of offsets of each partition.

    Gives: the fields of `schema` out of each record's value, then those of `with_fields`. A value that is not JSON, or does
    not fit the types, is malformed: it goes to quarantine with its text. A record without a value (a tombstone) has null
    fields.
    Positions: the partitions, `kafka:<topic>/<partition>`. It has no slices.
    Transactional: Spark keeps the offsets of a batch before it runs, so a replay asks for the same offsets; if they are no
    longer there (retention, a topic created again) the flow stops with LostRowsError, it never leaves rows out in silence.
    A topic is identified by its id, at the start and before each batch.
    A compacted topic may give fewer rows on a replay: its states must be opaque.
    A new partition is found by itself and read from its start. Delegation tokens (Kerberos) are not supported.

    Args:
        servers: `host:port`, several with commas or as a list.
        topics: one topic or a list.
        schema: DDL of the value's fields; for `text` and `bytes` one field of type string or binary, `value` by default.
        value_format: `json` (an object), `text` (UTF-8) or `bytes`.
        starting: where a new flow starts: `earliest`, `latest`, or a time (datetime, or ISO text; UTC if it names no zone).
            A flow that has run goes on where it stopped.
        max_records_per_batch: at most so many records per batch, over all partitions; None: all that are there.
        with_fields: further fields of each record: `key` (as text), `topic`, `partition`, `offset`, `timestamp`.
        options: further options of Spark's Kafka source and, with `kafka.` before their names, of Kafka's consumer, e.g.
            `{"kafka.security.protocol": "SASL_SSL"}`. They are never shown. Records of a Kafka transaction that was not
            committed are left out, unless `kafka.isolation.level` says otherwise.

    Raises:
        DefinitionError: for anything else than the above.
    """

    transactional: bool = True

    def __init__(
        self,
        servers: str | Sequence[str],
        topics: str | Sequence[str],
        schema: str | None = None,
        *,
        value_format: str = JSON,
        starting: str | datetime = EARLIEST,
        max_records_per_batch: int | None = None,
        with_fields: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.servers = servers if isinstance(servers, str) else ",".join(servers)
        self.topics = (topics,) if isinstance(topics, str) else tuple(topics)
        self.value_format, self.starting = value_format, _starting(starting)
        self.max_records_per_batch = max_records_per_batch
        self.options = {option: str(value) for option, value in (options or {}).items()}
        self.value_schema = _value_schema(schema, value_format)
        self.with_fields = tuple(with_fields)
        self._check_arguments()
        values = tuple(name for name, _ in parse_ddl(self.value_schema))
        added("Kafka with_fields", self.with_fields, values)
        self.text = value_format == JSON
        super().__init__(", ".join([self.value_schema, *(RECORD_FIELDS[name] for name in self.with_fields)]))

    def _check_arguments(self) -> None:
        if not self.servers or not self.topics:
            raise DefinitionError("Kafka: name at least one server and one topic")
        for topic in self.topics:
            if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic):
                raise DefinitionError(f"Kafka: {topic!r} cannot be the name of a topic")
        unknown = [name for name in self.with_fields if name not in RECORD_FIELDS]
        if unknown:
            raise DefinitionError(f"Kafka with_fields: no {unknown[0]!r}; there are: {', '.join(RECORD_FIELDS)}")
        bounds.required("Kafka: max_records_per_batch", bounds.BYTES, self.max_records_per_batch)

    def __repr__(self) -> str:
        return f"Kafka({self.servers!r}, {', '.join(self.topics)!r})"

    def datasets(self) -> tuple[Dataset, ...]:
        broker = f"kafka://{self.servers.split(',')[0]}"
        return tuple((broker, topic) for topic in self.topics)

    # --- before the start -------------------------------------------------------------------------------------------

    def check(self, name: str, spark: SparkSession) -> None:
        """Check that the jars are present, that a broker answers and that it has the topics.

        Raises:
            JarsError: if Kafka's jars are not in the cache.
            SourceError: if the session started without them, no broker answers, or it lacks a topic.
        """
        from pipelines.spark.jars import KAFKA, set_paths
        from pipelines.spark.session import is_local

        jvm = spark._jvm
        assert jvm is not None
        try:
            jvm.java.lang.Class.forName("org.apache.spark.sql.kafka010.KafkaSourceProvider")
        except Exception:
            if is_local(str(spark.sparkContext.master)):
                set_paths(KAFKA)
            raise SourceError(
                f'source "{name}": this Spark session has started without Kafka\'s jars',
                hint="start it with pipelines.spark_session, in a process of its own",
            ) from None
        self._check_topics(name, spark)

    def _check_topics(self, name: str, spark: SparkSession) -> None:
        from py4j.protocol import Py4JJavaError

        try:
            self._topic_ids(spark)
        except Py4JJavaError as error:
            raise self._refusal(name, str(error.java_exception)) from None

    def check_same(self, name: str, spark: SparkSession, checkpoint: Place, index: int) -> None:
        """Check that the topics are those of the checkpoint's offsets: a topic that was deleted and created again counts from 0.

        Kafka gives each topic an id (since 2.8; older brokers give all the same); those of the first start are kept beside the
        offsets. If no broker answers, nothing is compared: the read that follows reports the broker's fault.

        Raises:
            LostRowsError
        """
        from py4j.protocol import Py4JJavaError

        try:
            now = self._topic_ids(spark)
        except Py4JJavaError:
            return
        file = checkpoint / f"tridelta_topics{index or ''}"
        kept: dict[str, str] = json.loads(file.read_text("utf-8")) if file.exists() else {}
        # An upgraded broker gives the topics ids that had none.
        known = {topic: first for topic, first in kept.items() if first != _NO_ID}
        for topic, first in known.items():
            if now.get(topic, first) != first:
                raise LostRowsError(name, f'the topic "{topic}" was deleted and created again')
        if set(now) - set(known):
            put_whole(file, json.dumps({**now, **known}).encode())

    def _topic_ids(self, spark: SparkSession) -> dict[str, str]:
        """Return the ids of the topics, as a broker tells them."""
        jvm = spark._jvm
        assert jvm is not None
        settings = jvm.java.util.HashMap()
        for option, value in self._reader_options().items():
            if option.startswith("kafka."):
                settings.put(option.removeprefix("kafka."), value)
        settings.put("default.api.timeout.ms", str(_ANSWER_SECONDS * 1000))
        settings.put("request.timeout.ms", str(_ANSWER_SECONDS * 1000))
        admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
        try:
            wanted = jvm.java.util.ArrayList()
            for topic in self.topics:
                wanted.add(topic)
            answer = admin.describeTopics(wanted).allTopicNames().get()
            ids = {topic: str(answer.get(topic).topicId().toString()) for topic in self.topics}
            return {topic: id_ for topic, id_ in ids.items() if id_ != _NO_ID}
        finally:
            admin.close()

    def _refusal(self, name: str, text: str) -> SourceError:
        if "UnknownTopicOrPartition" in text:
            return SourceError(
                f'source "{name}": {self.servers} does not have all of the topics {", ".join(self.topics)}',
                hint="create the topic or correct its name",
            )
        if "Timeout" in text or "No resolvable bootstrap" in text:
            return SourceError(
                f'source "{name}": no Kafka broker answers at {self.servers} (waited {_ANSWER_SECONDS} s)',
                hint="start the broker, or correct `servers` or the security options",
            )
        reason = text.split("Exception: ")[-1].splitlines()[0]
        return SourceError(f'source "{name}": {self.servers} refuses topics {", ".join(self.topics)}: {reason}')

    # --- reading ----------------------------------------------------------------------------------------------------

    def stream(self, spark: SparkSession) -> DataFrame:
        from pyspark.sql import functions as F

        records = spark.readStream.format("kafka").options(**self._reader_options()).load()
        position = F.concat(F.lit("kafka:"), F.col("topic"), F.lit("/"), F.col("partition"))
        text = F.make_valid_utf8(F.col("value").cast("string"))
        extra = [_record_field(name) for name in self.with_fields]
        if self.value_format != JSON:
            value = (text if self.value_format == TEXT else F.col("value")).alias(parse_ddl(self.value_schema)[0][0])
            return self._with_position(records.select(value, *extra, position.alias("_position")), F.col("_position"))
        frame = records.select(
            text.alias("_text"), self._from_json(text).alias("_value"), *extra, position.alias("_position")
        )
        bad = F.coalesce(F.col(f"_value.{CORRUPT}"), F.when(F.col("_value").isNull(), F.col("_text")))
        names = [field for field, _ in parse_ddl(self.value_schema)]
        corrupt = F.coalesce(unmarked(bad), nothing_read(F.col("_text"), F.col("_value"), names))
        values = [F.col(f"_value.`{field}`").alias(field) for field in names]
        extra = [F.col(f"`{field}`") for field in self.with_fields]
        return frame.select(*values, *extra, corrupt.alias(CORRUPT), F.col("_position").alias(FILE))

    def parsed(self, text: Column) -> Column | None:
        """Parse as `Source.parsed` does: JSON without further fields, which the text of a malformed record lacks."""
        if self.value_format != JSON or self.with_fields:
            return None
        return with_any(text, self._from_json(text), self.fields)

    def _from_json(self, text: Column) -> Column:
        from pyspark.sql import functions as F

        settings = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
        return F.from_json(one_value(text, settings), f"{self.value_schema}, {CORRUPT} string", settings)

    def check_files(self) -> None:
        """Refuse files that are not for a flow's file to name, or have no end.

        Raises:
            DefinitionError
        """
        for name, value in self.options.items():
            kind, _, where = value.partition(":")
            files = [where] if kind == "file" else [value] if name.lower().endswith(".location") else []
            refused = private_among(files)
            # Who loads the flow may not look where the worker may; it looks again at its start.
            with suppress(OSError):
                refused += unordinary(files)
            if refused:
                raise DefinitionError(
                    f"{name}: {files[0]} is no file of a flow's", hint="name an ordinary file of its own"
                )

    def _resolved(self, name: str, value: str) -> str:
        text = resolved(name, value)
        of_file = self.confined and value.startswith("file:") and name.lower().endswith("sasl.jaas.config")
        if of_file and not LOGIN.match(text):
            raise SecretError(name, "the file has no login by one of Kafka's own modules")
        return text

    def _reader_options(self) -> dict[str, str]:
        if self.confined:
            self.check_files()
        options = {
            "kafka.isolation.level": "read_committed",
            **{name: self._resolved(name, value) for name, value in self.options.items()},
            "kafka.bootstrap.servers": self.servers,
            "subscribe": ",".join(self.topics),
            "failOnDataLoss": "true",
        }
        if isinstance(self.starting, datetime):
            options["startingTimestamp"] = str(round(self.starting.timestamp() * 1000))
            # A time after the last record means what comes from now on.
            options["startingOffsetsByTimestampStrategy"] = "latest"
        else:
            options["startingOffsets"] = self.starting
        if self.max_records_per_batch is not None:
            options["maxOffsetsPerTrigger"] = str(self.max_records_per_batch)
        return options

    def positions(self, checkpoint: Place, first: int, last: int, index: int = 0) -> frozenset[str]:
        """Return the partitions from which the batches took anything."""
        end = _by_partition(offset_of(checkpoint, last, index)) if first <= last else {}
        start = _by_partition(offset_of(checkpoint, first - 1, index))
        return frozenset(f"kafka:{where}" for where, offset in end.items() if start.get(where) != offset)

    def fault(self, name: str, error: BaseException) -> LostRowsError | None:
        """Recognise offsets that the broker no longer has."""
        for cause in causes(error):
            lost = re.match(r"\[KAFKA_DATA_LOSS\.(\w+)\]\s*(.*)", cause.text)
            if lost and cause.type.startswith(_SPARKS):
                return LostRowsError(name, _first_sentences(lost[2]) or lost[1].lower().replace("_", " "))
            if cause.type in _GONE:
                return LostRowsError(name, cause.text.partition("\n")[0])
        return None


def _first_sentences(text: str) -> str:
    """Return what was lost, without Spark's advice on how to hide it."""
    return re.split(r"\s*(?:Some data may have been lost|If you (?:don't )?want)", text)[0].strip()


def _by_partition(offset: Mapping[str, Mapping[str, int]] | None) -> dict[str, int]:
    return {f"{topic}/{number}": at for topic, parts in (offset or {}).items() for number, at in parts.items()}


def _record_field(name: str) -> Column:
    from pyspark.sql import functions as F

    return F.make_valid_utf8(F.col("key").cast("string")).alias("key") if name == "key" else F.col(name)


def _value_schema(schema: str | None, value_format: str) -> str:
    kinds = {TEXT: "string", BYTES: "binary"}
    if value_format == JSON:
        if schema is None:
            raise DefinitionError('Kafka: value_format "json" needs a schema')
        return schema
    if value_format not in kinds:
        raise DefinitionError(f'Kafka: value_format {value_format!r} is none of "json", "text", "bytes"')
    kind = kinds[value_format]
    if [field_type for _, field_type in parse_ddl(schema or f"value {kind}")] != [kind]:
        raise DefinitionError(f'Kafka: value_format "{value_format}" gives one field of type {kind}, not: {schema}')
    return schema or f"value {kind}"


def _starting(starting: str | datetime) -> str | datetime:
    """Return `earliest`, `latest` or a time with a zone."""
    if isinstance(starting, str) and starting in (EARLIEST, LATEST):
        return starting
    try:
        time = datetime.fromisoformat(starting) if isinstance(starting, str) else starting
        return time if time.tzinfo else time.replace(tzinfo=UTC)
    except (ValueError, AttributeError):
        raise DefinitionError(f"Kafka: starting {starting!r} is neither earliest, latest nor a time") from None
