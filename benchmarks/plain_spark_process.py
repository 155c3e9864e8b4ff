"""A word count by hand, as a process of its own: `python -m benchmarks.plain_spark_process FOLDER WORK COUNTS`.

What a careful engineer writes with Spark and Delta alone, with the settings of Delta's own guide. Prints a line as
`benchmarks.word_count_process` does.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def main(folder: str, work: str, counts: str) -> None:
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    # No other import before the session: by the engine's package this process would begin as ours does.
    jars = sorted(str(jar) for jar in Path(__file__).parent.parent.joinpath(".cache", "jars").glob("io.delta_*.jar"))
    builder = SparkSession.builder.appName("word count").config("spark.jars", ",".join(jars))
    builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    builder = builder.config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    table = f"{work}/table"

    def batch(frame: DataFrame, batch_id: int) -> None:
        words = frame.select(F.explode(F.filter(F.split("sentence", " "), lambda word: word != "")).alias("word"))
        counted = words.groupBy("word").agg(F.count(F.lit(1)).alias("count")).withColumn("txid", F.lit(batch_id))
        write = counted.write.format("delta").mode("append").option("txnAppId", "hand").option("txnVersion", batch_id)
        write.save(table)

    stream = spark.readStream.schema("sentence string").json(folder)
    writer = stream.writeStream.foreachBatch(batch).option("checkpointLocation", f"{work}/checkpoint")
    started = time.time()
    writer.trigger(availableNow=True).start().awaitTermination()
    committed = max(log.stat().st_mtime for log in Path(table, "_delta_log").glob("*.json"))
    rows = spark.read.format("delta").load(table).groupBy("word").agg(F.sum("count").alias("count")).collect()
    Path(counts).write_text("".join(f"{row['word']}\t{row['count']}\n" for row in rows))
    print("RESULT", json.dumps({"pass_seconds": [committed - started], "first_committed": committed}))


if __name__ == "__main__":
    main(*sys.argv[1:])
