"""The class-data archive: Spark's and Delta's classes, parsed and verified once, mapped into every later JVM.

A training run opens a session and does in small what a flow does; the JVM writes the classes it loaded when it ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from pipelines.errors import TrideltaError
from pipelines.spark.jars import cache_folder
from pipelines.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The training run takes half a minute, a few times that on a busy machine; past this it hangs.
TRAINING_SECONDS = 600


def make_archive(cache: Path | None = None) -> bool:
    """Make the archive for this Java, Spark and Delta; return False if it exists already."""
    from pipelines.spark.session import archive_path

    cache = cache or cache_folder()
    archive = archive_path(find_java(), cache)
    with FileLock(cache / "class-data.lock"):
        if archive.is_file():
            return False
        with tempfile.TemporaryDirectory(dir=cache, prefix="training-") as work:
            _train(Path(work), archive)
        for old in cache.glob("spark-*.jsa"):
            if old != archive:
                old.unlink()
    return True


def _train(work: Path, archive: Path) -> None:
    """Run the training in a process of its own and put what its JVM wrote in place."""
    fresh = work / "fresh.jsa"
    command = [sys.executable, "-P", "-m", "pipelines.spark.class_data", str(fresh)]
    project = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=TRAINING_SECONDS, check=False)
    if done.returncode != 0 or not fresh.is_file():
        log = archive.parent / "class-data.log"
        log.write_text(done.stdout + done.stderr)
        raise TrideltaError(
            f"Spark's class-data archive could not be made (the training run's output is in {log})",
            hint="everything works without it, but each start of Spark takes about twice as long",
        )
    fresh.replace(archive)


def train(archive: Path) -> None:
    """Run the training: end the JVM so that it writes its classes into `archive`."""
    from pyspark import SparkContext

    from pipelines.spark.session import spark_session

    # The first compiler only: what is archived are classes, not compiled code, and the training ends in half the time.
    options = f"-XX:TieredStopAtLevel=1 -XX:ArchiveClassesAtExit={archive}"
    spark = spark_session("training", master="local[2]", conf={"spark.driver.extraJavaOptions": options})
    _work(spark, archive.parent)
    process = SparkContext._gateway.proc  # type: ignore[union-attr]
    spark.stop()
    # The JVM ends, and writes, when its input closes; killing it would leave no archive.
    process.stdin.close()
    process.wait(timeout=TRAINING_SECONDS)


def _work(spark: SparkSession, folder: Path) -> None:
    """Do what flows do: files in, rows split, grouped and counted, commits with transaction ids, MERGE, reads, state."""
    arriving, rows, state, merged = (folder / name for name in ("arriving", "rows", "state", "merged"))
    arriving.mkdir()
    for day in range(2):
        lines = [json.dumps({"day": f"2013-01-0{day + 1}", "words": "the man the dog", "delay": n}) for n in range(20)]
        (arriving / f"{day}.json").write_text("\n".join([*lines, "{torn"]))

    def commit(batch: DataFrame, txid: int) -> None:
        _commit(batch, txid, rows, state, merged)

    stream = spark.readStream.schema("day string, words string, delay long, _corrupt_record string").json(str(arriving))
    started = stream.writeStream.foreachBatch(commit).option("checkpointLocation", str(folder / "checkpoint"))
    started.trigger(availableNow=True).start().awaitTermination()
    counted = stream.groupBy("day").count().writeStream.format("noop").outputMode("update")
    counted.option("checkpointLocation", str(folder / "counted")).trigger(availableNow=True).start().awaitTermination()
    table = f"delta.`{state}`"
    spark.sql(f"SELECT word, sum(value) FROM {table} GROUP BY word").collect()
    spark.sql(f"SELECT * FROM {table} VERSION AS OF 0 WHERE word = 'the'").toPandas()
    spark.sql(f"DESCRIBE HISTORY {table}").collect()
    spark.sql(f"OPTIMIZE {table}").collect()


def _commit(batch: DataFrame, txid: int, rows: Path, state: Path, merged: Path) -> None:
    """Commit one batch of the training: observed, appended, folded into a partitioned table, replaced, merged."""
    from delta.tables import DeltaTable
    from pyspark.sql import Observation, functions

    spark = batch.sparkSession
    received = Observation()
    kept = batch.observe(
        received, functions.count("*").alias("n"), functions.expr("bit_xor(xxhash64(*)) AS x")
    ).persist()
    kept.filter("_corrupt_record IS NULL").write.format("delta").mode("append").save(str(rows))
    words = kept.select("day", "delay", functions.explode(functions.split("words", " ")).alias("word"))
    counts = words.groupBy("word", "day").agg(functions.count("*").alias("value"), functions.avg("delay").alias("mean"))
    slices = counts.withColumn("_gen", functions.lit(txid // 64))
    known = {"txnAppId": "training", "txnVersion": str(txid), "userMetadata": json.dumps({"txid": txid})}
    slices.write.format("delta").mode("append").partitionBy("day", "_gen").options(**known).save(str(state))
    replace = slices.filter("day = '2013-01-01'").write.format("delta").mode("overwrite")
    replace.option("replaceWhere", "day = '2013-01-01'").save(str(state))
    if txid == 0:
        counts.write.format("delta").save(str(merged))
    else:
        target = DeltaTable.forPath(spark, str(merged)).alias("t")
        joined = target.merge(counts.alias("s"), "t.word = s.word AND t.day = s.day")
        joined.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
    kept.mapInArrow(lambda batches: batches, kept.schema).write.format("noop").mode("overwrite").save()
    kept.unpersist()


def main() -> int:
    """Run `python -m pipelines.spark.class_data`: make the archive if it is missing. With a path: the training run."""
    if len(sys.argv) > 1:
        train(Path(sys.argv[1]))
        return 0
    try:
        made = make_archive()
    except TrideltaError as error:
        print(error, file=sys.stderr)
        return 1
    if made:
        print(f"Spark's class-data archive is in {cache_folder()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
