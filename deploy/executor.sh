#!/bin/bash
# The image's entry: a command, or with `executor` an executor of Spark on Kubernetes, as Spark's own entrypoint.sh starts it.
set -euo pipefail
if [[ ${1:-} != executor ]]; then exec "$@"; fi
spark=$(python -c 'import pyspark; print(pyspark.__path__[0])')
# The driver hands options over as SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1 and so on.
readarray -t options < <(env | grep '^SPARK_JAVA_OPT_' | sort -t_ -k4 -n | sed 's/[^=]*=//')
exec java "${options[@]}" -Xms"$SPARK_EXECUTOR_MEMORY" -Xmx"$SPARK_EXECUTOR_MEMORY" -cp "$spark/jars/*:/opt/tridelta/.cache/jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
