"""A Spark session on top of ``spark_context``, for SQL and data frames."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from resnap.replay.spark.context import spark_context

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from resnap.replay.spark.settings import SparkSettings


@contextmanager
def spark_session(settings: SparkSettings, environment: Mapping[str, str]) -> Iterator[SparkSession]:
    """Start Spark, yield its session, and end its JVM afterwards; arguments and errors as in ``spark_context``."""
    with spark_context(settings, environment) as context:
        try:
            yield SparkSession(context)
        finally:
            # All else of it ends with the context.
            SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001
