"""Selects the writer of ``write.format("rocketmq")`` from its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from orbitmq.errors import ConfigError
from orbitmq.spark.sink.plan import BatchWriter, StreamWriter, plan_sink
from orbitmq.spark.sink.transactional import TransactionalBatchWriter, TransactionalStreamWriter

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["batch_writer", "stream_writer"]


def batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> BatchWriter | TransactionalBatchWriter:
    """Returns the writer of ``df.write``. Raises ``ConfigError`` for invalid options or columns."""
    if overwrite:
        raise ConfigError("a topic cannot be overwritten; use .mode('append')")
    plan = plan_sink(options, schema, streaming=False)
    return TransactionalBatchWriter(plan) if plan.transactional else BatchWriter(plan)


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> StreamWriter | TransactionalStreamWriter:
    """Returns the writer of ``df.writeStream``. In output mode ``complete``, every micro-batch sends the whole result
    again."""
    del overwrite
    plan = plan_sink(options, schema, streaming=True)
    return TransactionalStreamWriter(plan) if plan.transactional else StreamWriter(plan)
