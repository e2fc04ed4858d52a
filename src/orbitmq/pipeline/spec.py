"""The format of a pipeline file. The classes serve as parser, validator and reference. In a file, names are written
like ``namesrvAddr`` for ``namesrv_addr``.

A pipeline is a chain of named relations. Each source and each step creates one. Steps and sinks read earlier ones.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, field

__all__ = [
    "ConsoleSink",
    "DeadLetter",
    "DebeziumOptions",
    "DecodeStep",
    "DeduplicateStep",
    "DeltaSink",
    "IcebergSink",
    "JdbcSink",
    "ParquetSink",
    "ParquetSource",
    "Pipeline",
    "PythonStep",
    "QualityStep",
    "Sink",
    "Source",
    "SqlStep",
    "Step",
    "StoreSource",
    "TopicSink",
    "TopicSource",
    "WatermarkStep",
]

Name = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")]
KEY_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}(\.[A-Za-z_][A-Za-z0-9_]{0,99}){0,9}")
Text = Annotated[str, Meta(min_length=1)]
Texts = Annotated[list[Text], Meta(min_length=1)]
Count = Annotated[int, Meta(ge=1)]
Moment = str | int
"""ISO 8601 (UTC by default) or milliseconds since 1970."""
Options = dict[str, str | int | float | bool]


class _Strict(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True
):
    pass


class _Cluster(_Strict, frozen=True, kw_only=True):
    """The address of the servers and the keys to use. Empty fields default to those of the pipeline."""

    namesrv_addr: str = ""
    access_key: str = ""
    secret_key: str = ""
    options: Options = {}
    """Further options of the data source, under its own names (``tls.enable``, ``pullBatchSize``, ...)."""


class TopicSource(_Cluster, frozen=True, kw_only=True, tag="topic", tag_field="kind"):
    """Messages of topics, with the columns of format ``rocketmq``."""

    topic: str | Texts = ""
    topic_pattern: str = ""
    starting_offsets: str | dict[str, Any] = ""
    ending_offsets: str | dict[str, Any] = ""
    starting_timestamp: Moment = ""
    ending_timestamp: Moment = ""
    tags: str = ""
    sql: str = ""
    group: str = ""
    max_offsets_per_trigger: Count | None = None
    min_partitions: Count | None = None
    fail_on_data_loss: bool = True
    columns: list[Text] = []
    """Columns to decode; empty means all."""
    static: bool = False
    """In a stream: read once at the start, to be joined with."""


class StoreSource(_Strict, frozen=True, kw_only=True, tag="store", tag_field="kind"):
    """Messages of a raw store directory, without a broker. Always static."""

    path: Text
    topic: str | Texts = ""
    starting_timestamp: Moment = ""
    ending_timestamp: Moment = ""
    columns: list[Text] = []
    options: Options = {}


class ParquetSource(_Strict, frozen=True, kw_only=True, tag="parquet", tag_field="kind"):
    """Parquet files below a directory. A stream reads new files as they arrive, which needs ``schema``, or with
    ``static`` reads all files once."""

    path: Text
    schema: str = ""
    static: bool = False
    options: Options = {}


Source = TopicSource | StoreSource | ParquetSource


class _Step(_Strict, frozen=True, kw_only=True):
    name: Name


class _OneInput(_Step, frozen=True, kw_only=True):
    source: str = field(name="from", default="")
    """An earlier relation; by default the previous one."""


class SqlStep(_Step, frozen=True, kw_only=True, tag="sql", tag_field="kind"):
    """A query that reads earlier relations by name."""

    query: Text


class PythonStep(_Step, frozen=True, kw_only=True, tag="python", tag_field="kind"):
    """A function ``module:function``, called with one DataFrame per name in ``from``, and with ``arguments`` as
    keyword arguments."""

    function: Annotated[str, Meta(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
    source: str | Texts = field(name="from", default="")
    arguments: dict[str, Any] = {}


class DebeziumOptions(_Strict, frozen=True, kw_only=True):
    """Options for reading change events that are ambiguous."""

    table: str = ""
    """Only events of this table, as ``table`` or ``schema.table``; all tables by default."""
    key_column: str = "keys"
    """The column with the key of a message, which is required for tombstones."""
    units: dict[str, Literal["days", "s", "ms", "us", "ns"]] = {}
    """Units of time columns that are sent as integers without a schema."""
    decimals: Literal["string", "base64"] = "string"
    """Encoding of decimals without a schema; ``base64`` uses the scale of the column."""
    binary: Literal["base64", "hex"] = "base64"
    placeholder: str = "__debezium_unavailable_value"
    """``unavailable.value.placeholder``."""
    order_by: list[Text] = []
    """Fields that order flattened records; by default those added by ``add.fields``."""
    unknown_fields: Literal["fail", "ignore"] = "fail"


class DecodeStep(_OneInput, frozen=True, kw_only=True, tag="decode", tag_field="kind"):
    """Adds the decoded fields of a binary column as typed columns, and ``decode_error``, which is null on success."""

    format: Literal["json", "avro", "protobuf", "registry", "debezium"]
    """``registry``: each body names its schema in Confluent's header. ``debezium``: change events."""
    debezium: DebeziumOptions | None = None
    schema: str = ""
    """JSON, Debezium: columns as in ``CREATE TABLE``. Avro: the schema as JSON."""
    schema_file: str = ""
    """The same in a file; for Protobuf a descriptor set (``protoc --descriptor_set_out --include_imports``)."""
    registry: str = ""
    """Address of a schema registry, ``http://[user:password@]host:port``. With ``debezium``: events are Avro."""
    subject: str = ""
    """Registry: the subject whose latest version determines the columns."""
    message: str = ""
    """Protobuf: full name of the message."""
    framing: Literal["none", "confluent", "single-object"] = "none"
    """Framing before an Avro datum."""
    column: Name = "body"
    into: Name = "value"
    flatten: bool = False
    """Add the fields as separate columns instead of one column ``into``."""
    on_error: Literal["keep", "drop", "fail"] = "keep"


class WatermarkStep(_OneInput, frozen=True, kw_only=True, tag="watermark", tag_field="kind"):
    """Sets how late rows may arrive, for later steps that group by time windows."""

    column: Name = "store_timestamp"
    delay: Text


class DeduplicateStep(_OneInput, frozen=True, kw_only=True, tag="deduplicate", tag_field="kind"):
    """Keeps one row per value of ``by``. In a stream, values are remembered for ``within``, measured by the time in
    ``column``."""

    by: Texts = field(default_factory=lambda: ["msg_id"])
    column: Name = "store_timestamp"
    within: str = ""


class DeadLetter(_Cluster, frozen=True, kw_only=True):
    """The topic to which rejected rows are sent. Message properties say why a row was rejected and where it came
    from."""

    topic: Text


class QualityStep(_OneInput, frozen=True, kw_only=True, tag="quality", tag_field="kind"):
    """Keeps the rows that satisfy all rules. The other rows form the relation ``<name>_rejected``, which has the
    additional column ``failed_rules``."""

    rules: Annotated[dict[Name, Text], Meta(min_length=1)]
    """SQL conditions by name. A null condition counts as violated."""
    dead_letter: DeadLetter | None = None


Step = SqlStep | PythonStep | DecodeStep | WatermarkStep | DeduplicateStep | QualityStep
OutputMode = Literal["append", "update", "complete"]


class _Sink(_Strict, frozen=True, kw_only=True):
    name: str = ""
    """Name of the query and its checkpoint directory; by default ``<from>_<kind>``."""
    source: str = field(name="from", default="")
    """A relation; by default the last one."""
    enabled: bool = True


class _Table(_Sink, frozen=True, kw_only=True):
    """Options shared by tables to which this package commits itself."""

    # Checked with the plan: a process that has used a union of a list and a text with a pattern may crash in msgspec
    # 0.22 when it ends.
    key: str | list[str] = ""
    """Upsert: the table keeps only the last of the rows with the same values in these columns. ``a.b`` is a field of
    ``a``."""
    scd: Literal[0, 1, 2] = 0
    """Rows are changes of a database (``format: debezium``): 1 keeps the current rows, 2 the history of each."""
    merge: Literal["auto", "driver", "executors"] = "auto"
    """Where rows are replaced by key; ``auto`` switches to the executors once table or batch are too large for the
    driver."""
    remember_deletes: str = ""
    """How long late events of deleted keys are recognized; 7 days by default."""
    missing_values: Literal["fail", "empty"] = "fail"
    """What to do when an unchanged value was not sent and is not in the table either."""
    newest_by: Name | Literal[""] = ""
    """The column whose greatest value marks the last row. The default is ``store_timestamp`` or ``_store_timestamp``
    if present, else arrival order."""
    compact_every: str = ""
    """How often to join small files (``1 hour``); never by default."""
    keep_versions: str = ""
    """Age after which older versions of the table, and files that belong to no version, are deleted (``7 days``)
    during compaction; never by default."""


class ParquetSink(_Sink, frozen=True, kw_only=True, tag="parquet", tag_field="kind"):
    """Parquet files that contain each row exactly once."""

    path: Text
    partition_by: list[Name] | None = None
    """By default ``topic`` and ``date`` if present; ``date`` is the UTC day of ``store_timestamp``."""
    compression: Literal["zstd", "snappy", "gzip", "none"] = "zstd"
    save_mode: Literal["append", "overwrite", "error"] = "append"
    """Only for batches."""
    layout: Literal["spark", "plain"] = "spark"
    """Streams: ``spark`` writes a list of finished files that only Spark reads. With ``plain``, the directory
    contains only complete batches, so that any reader sees each row once."""


class DeltaSink(_Table, frozen=True, kw_only=True, tag="delta", tag_field="kind"):
    """A Delta table to which each micro-batch is committed exactly once. Needs ``orbitmq[lake]``."""

    path: Text
    partition_by: list[Name] | None = None
    output_mode: Literal["append", "complete"] = "append"
    options: dict[str, str] = {}
    """Storage options of ``deltalake``."""


class IcebergSink(_Table, frozen=True, kw_only=True, tag="iceberg", tag_field="kind"):
    """An Iceberg table to which each micro-batch is committed exactly once. Needs ``orbitmq[lake]``."""

    table: Annotated[str, Meta(pattern=r"^[^.\s]+(\.[^.\s]+)+$")]
    """``namespace.table``; created if missing."""
    catalog: str = "default"
    properties: dict[str, str] = {}
    """Properties of the catalog, with ``pyiceberg``'s names (``type``, ``uri``, ``warehouse``)."""
    location: str = ""
    """Directory for a new table; by default the catalog chooses it."""
    partition_by: list[Name] | None = None
    """Partition columns for a new table; none by default."""
    output_mode: Literal["append", "complete"] = "append"


class JdbcSink(_Sink, frozen=True, kw_only=True, tag="jdbc", tag_field="kind"):
    """A database table. A micro-batch is staged, then moved to the table in one transaction together with its
    number."""

    url: Annotated[str, Meta(pattern=r"^jdbc:")]
    table: Annotated[str, Meta(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*){0,2}$")]
    driver: str = ""
    user: str = ""
    password: str = ""
    output_mode: Literal["append", "complete"] = "append"
    options: Options = {}


class TopicSink(_Cluster, frozen=True, kw_only=True, tag="topic", tag_field="kind"):
    """Messages in a topic. Their unique keys stay the same when a task is repeated."""

    name: str = ""
    source: str = field(name="from", default="")
    enabled: bool = True
    topic: str = ""
    """By default the column ``topic`` of the relation."""
    mode: Literal["dedup", "transactional"] = "dedup"
    """``dedup``: at least once. ``transactional``: exactly once; either all messages of a micro-batch become visible
    or none."""
    keep_ids: bool = False
    """Use the row's unique key (column ``msg_id``) for the message, so that it stays the same in a repeated run."""
    keep_queue: bool = False
    """Let the columns ``broker`` and ``queue_id`` choose the queue."""
    output_mode: Literal["append", "complete"] = "append"


class ConsoleSink(_Sink, frozen=True, kw_only=True, tag="console", tag_field="kind"):
    """A table on the terminal for each batch that has rows."""

    rows: Count = 20
    title: str = ""
    output_mode: OutputMode = "append"


Sink = ParquetSink | DeltaSink | IcebergSink | JdbcSink | TopicSink | ConsoleSink


class Pipeline(_Strict, frozen=True, kw_only=True):
    """The content of a whole pipeline file."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,99}$")]
    mode: Literal["stream", "batch"] = "stream"
    namesrv_addr: str = ""
    access_key: str = ""
    secret_key: str = ""
    checkpoint: str = ""
    """Directory for a stream's progress. Required for streams."""
    trigger: str = ""
    """Interval between micro-batches (``10 seconds``); by default they run back to back."""
    one_read: bool = False
    """Streams: one query writes all sinks of a relation, so it reads and decodes each message once instead of once
    per sink. A failing sink stops the others of its relation. Topics and ``outputMode: complete`` keep queries of
    their own, and plain files need ``layout: plain``."""
    parameters: dict[str, str | int | float | bool] = {}
    """Defaults for ``${name}`` anywhere in the file; ``--set name=value`` and the environment override them."""
    spark: Options = {}
    """Spark configuration."""
    sources: Annotated[dict[Name, Source], Meta(min_length=1)]
    steps: list[Step] = []
    sinks: Annotated[list[Sink], Meta(min_length=1)]
