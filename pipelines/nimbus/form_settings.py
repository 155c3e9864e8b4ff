"""What a form or a file may ask of Spark. The full set is for the command line and Python: there is who may run code anyway."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pipelines.nimbus.errors import FormSettingError
from pipelines.spark.spark_settings import SPARK_SETTINGS

_VALUE = re.compile(r"-?[0-9][0-9.]{0,18}[A-Za-z]{0,2}|true|false", re.IGNORECASE)
_MASTER = re.compile(r"local(\[(\*|[0-9]{1,4})\])?")


def check_form(flow: str, settings: Mapping[str, Any]) -> None:
    """Refuse what would run code or lead elsewhere: `spark.plugins`, `spark.jars.packages`, another master.

    Args:
        flow: The flow, for the error.
        settings: As a form has given them, not checked yet.

    Raises:
        FormSettingError
    """
    master = settings.get("master")
    if master is not None and not (isinstance(master, str) and _MASTER.fullmatch(master)):
        raise FormSettingError(flow, "master")
    spark = settings.get("spark")
    # What is no mapping is refused by the check of the settings' kinds.
    for name, value in spark.items() if isinstance(spark, Mapping) else ():
        if name not in SPARK_SETTINGS or not _VALUE.fullmatch(str(value)):
            raise FormSettingError(flow, str(name)[:100])
