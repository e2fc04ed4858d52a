"""What a pipeline file may say. The classes are the parser, the validator and the reference; names in a file are
written as ``namesrvAddr`` for ``namesrv_addr``.

A pipeline is a chain of named relations: each source and each step makes one, steps and sinks read earlier ones.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

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
KeyName = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}(\.[A-Za-z_][A-Za-z0-9_]{0,99}){0,9}$")]
Text = Annotated[str, Meta(min_length=1)]
Texts = Annotated[list[Text], Meta(min_length=1)]
Count = Annotated[int, Meta(ge=1)]
Moment = str | int
"""ISO 8601 (UTC unless it says otherwise) or milliseconds since 1970."""
Options = dict[str, str | int | float | bool]


class _Strict(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True
):
    pass


class _Cluster(_Strict, frozen=True, kw_only=True):
    """How servers are reached; empty fields fall back to those of the pipeline."""

    namesrv_addr: str = ""
    access_key: str = ""
    secret_key: str = ""
    options: Options = {}
    """Further options of the data source, by its own names (``tls.enable``, ``pullBatchSize``, ...)."""


class TopicSource(_Cluster, frozen=True, kw_only=True, tag="topic", tag_field="kind"):
    """Messages of topics; the columns are those of format ``rocketmq``."""

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
    """Only these columns are decoded; empty: all."""
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
    """Parquet files below a directory. In a stream, new files as they come (needs ``schema``), or all of them
    once with ``static``."""

    path: Text
    schema: str = ""
    static: bool = False
    options: Options = {}


Source = TopicSource | StoreSource | ParquetSource


class _Step(_Strict, frozen=True, kw_only=True):
    name: Name


class _OneInput(_Step, frozen=True, kw_only=True):
    source: str = field(name="from", default="")
    """An earlier relation; without it the one before."""


class SqlStep(_Step, frozen=True, kw_only=True, tag="sql", tag_field="kind"):
    """A query over earlier relations by their names."""

    query: Text


class PythonStep(_Step, frozen=True, kw_only=True, tag="python", tag_field="kind"):
    """``module:function``, called with one DataFrame for each name in ``from``, and ``arguments`` by keyword."""

    function: Annotated[str, Meta(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
    source: str | Texts = field(name="from", default="")
    arguments: dict[str, Any] = {}


class DebeziumOptions(_Strict, frozen=True, kw_only=True):
    """How change events are read where they leave it open."""

    table: str = ""
    """Only events of this table, as ``table`` or ``schema.table``; without it of all."""
    key_column: str = "keys"
    """The column with the key of a message, which a tombstone needs."""
    units: dict[str, Literal["days", "s", "ms", "us", "ns"]] = {}
    """Of columns of times that are sent as integers without a schema."""
    decimals: Literal["string", "base64"] = "string"
    """Decimals without a schema; ``base64``: with the scale of their column."""
    binary: Literal["base64", "hex"] = "base64"
    placeholder: str = "__debezium_unavailable_value"
    """``unavailable.value.placeholder``."""
    order_by: list[Text] = []
    """Flattened records: the fields that order them; without it those that ``add.fields`` put there."""
    unknown_fields: Literal["fail", "ignore"] = "fail"


class DecodeStep(_OneInput, frozen=True, kw_only=True, tag="decode", tag_field="kind"):
    """Adds the content of a binary column as typed columns, and ``decode_error`` (null where all went well)."""

    format: Literal["json", "avro", "protobuf", "registry", "debezium"]
    """``registry``: each body names its schema in Confluent's header. ``debezium``: change events as JSON."""
    debezium: DebeziumOptions | None = None
    schema: str = ""
    """JSON, Debezium: columns as in ``CREATE TABLE``. Avro: the schema as JSON."""
    schema_file: str = ""
    """The same in a file; Protobuf: a descriptor set (``protoc --descriptor_set_out --include_imports``)."""
    registry: str = ""
    """Address of a schema registry, ``http://[user:password@]host:port``."""
    subject: str = ""
    """Registry: the columns are those of its latest version."""
    message: str = ""
    """Protobuf: full name of the message."""
    framing: Literal["none", "confluent", "single-object"] = "none"
    """What stands before an Avro datum."""
    column: Name = "body"
    into: Name = "value"
    flatten: bool = False
    """Fields as columns of their own instead of one column ``into``."""
    on_error: Literal["keep", "drop", "fail"] = "keep"


class WatermarkStep(_OneInput, frozen=True, kw_only=True, tag="watermark", tag_field="kind"):
    """How late rows may come, for steps behind it that group by time windows."""

    column: Name = "store_timestamp"
    delay: Text


class DeduplicateStep(_OneInput, frozen=True, kw_only=True, tag="deduplicate", tag_field="kind"):
    """One row for each value of ``by``. In a stream values are remembered for ``within`` (time of ``column``)."""

    by: Texts = field(default_factory=lambda: ["msg_id"])
    column: Name = "store_timestamp"
    within: str = ""


class DeadLetter(_Cluster, frozen=True, kw_only=True):
    """Where rejected rows go; their properties say why and where they came from."""

    topic: Text


class QualityStep(_OneInput, frozen=True, kw_only=True, tag="quality", tag_field="kind"):
    """Rows that keep all rules; the others are relation ``<name>_rejected`` with a column ``failed_rules``."""

    rules: Annotated[dict[Name, Text], Meta(min_length=1)]
    """Name: SQL condition. A condition that is null is broken."""
    dead_letter: DeadLetter | None = None


Step = SqlStep | PythonStep | DecodeStep | WatermarkStep | DeduplicateStep | QualityStep
OutputMode = Literal["append", "update", "complete"]


class _Sink(_Strict, frozen=True, kw_only=True):
    name: str = ""
    """Of the query and its checkpoint directory; without it ``<from>_<kind>``."""
    source: str = field(name="from", default="")
    """A relation; without it the last one."""
    enabled: bool = True


class _Table(_Sink, frozen=True, kw_only=True):
    """What tables that are committed by us have."""

    key: KeyName | Literal[""] | Annotated[list[KeyName], Meta(min_length=1)] = ""
    """Upsert: of rows with the same values in these columns the table keeps the last. ``a.b`` is a field of ``a``."""
    scd: Literal[0, 1, 2] = 0
    """Rows are changes of a database (``format: debezium``): 1 keeps the present rows, 2 the history of each."""
    merge: Literal["auto", "driver", "executors"] = "auto"
    """Where rows are replaced by key; ``auto``: on the executors once table or batch are too large for the driver."""
    remember_deletes: str = ""
    """How long late events of deleted keys are known as such; without it 7 days."""
    missing_values: Literal["fail", "empty"] = "fail"
    """What happens when a value that did not change was not sent and is not in the table either."""
    newest_by: Name | Literal[""] = ""
    """Which of them is the last: the one with the greatest value here; without it ``store_timestamp`` or
    ``_store_timestamp`` where there is one, else the one that came last."""
    compact_every: str = ""
    """Join small files that often (``1 hour``); without it never."""
    keep_versions: str = ""
    """Let older versions of the table, and files no version names, go after that time (``7 days``), each time it is
    compacted; without it never."""


class ParquetSink(_Sink, frozen=True, kw_only=True, tag="parquet", tag_field="kind"):
    """Parquet files, each row exactly once."""

    path: Text
    partition_by: list[Name] | None = None
    """Without it ``topic`` and ``date`` where there are; ``date`` is the UTC day of ``store_timestamp``."""
    compression: Literal["zstd", "snappy", "gzip", "none"] = "zstd"
    save_mode: Literal["append", "overwrite", "error"] = "append"
    """Batch only."""
    layout: Literal["spark", "plain"] = "spark"
    """Streams: ``spark`` leaves a list of finished files that Spark alone reads; with ``plain`` only whole batches
    are ever in the directory, so that any reader sees each row once."""


class DeltaSink(_Table, frozen=True, kw_only=True, tag="delta", tag_field="kind"):
    """A Delta table, each micro-batch committed exactly once. Needs ``orbitmq[lake]``."""

    path: Text
    partition_by: list[Name] | None = None
    output_mode: Literal["append", "complete"] = "append"
    options: dict[str, str] = {}
    """Storage options of ``deltalake``."""


class IcebergSink(_Table, frozen=True, kw_only=True, tag="iceberg", tag_field="kind"):
    """An Iceberg table, each micro-batch committed exactly once. Needs ``orbitmq[lake]``."""

    table: Annotated[str, Meta(pattern=r"^[^.\s]+(\.[^.\s]+)+$")]
    """``namespace.table``; made if it is not there."""
    catalog: str = "default"
    properties: dict[str, str] = {}
    """Of the catalog, as ``pyiceberg`` names them (``type``, ``uri``, ``warehouse``)."""
    location: str = ""
    """Directory of a table that is made; without it where the catalog puts it."""
    partition_by: list[Name] | None = None
    """Of a table that is made; without it none."""
    output_mode: Literal["append", "complete"] = "append"


class JdbcSink(_Sink, frozen=True, kw_only=True, tag="jdbc", tag_field="kind"):
    """A table of a database. A micro-batch is staged and moved over in one transaction together with its number."""

    url: Annotated[str, Meta(pattern=r"^jdbc:")]
    table: Annotated[str, Meta(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*){0,2}$")]
    driver: str = ""
    user: str = ""
    password: str = ""
    output_mode: Literal["append", "complete"] = "append"
    options: Options = {}


class TopicSink(_Cluster, frozen=True, kw_only=True, tag="topic", tag_field="kind"):
    """Messages, with unique keys that a repeated task repeats."""

    name: str = ""
    source: str = field(name="from", default="")
    enabled: bool = True
    topic: str = ""
    """Without it the relation has a column ``topic``."""
    mode: Literal["dedup", "transactional"] = "dedup"
    """``dedup``: at least once. ``transactional``: exactly once, all messages of a micro-batch visible or none."""
    keep_ids: bool = False
    """The unique key of a message is that of the row (column ``msg_id``), so a repeated run repeats it."""
    keep_queue: bool = False
    """Columns ``broker`` and ``queue_id`` choose the queue."""
    output_mode: Literal["append", "complete"] = "append"


class ConsoleSink(_Sink, frozen=True, kw_only=True, tag="console", tag_field="kind"):
    """A table on the terminal, one for each batch that has rows."""

    rows: Count = 20
    title: str = ""
    output_mode: OutputMode = "append"


Sink = ParquetSink | DeltaSink | IcebergSink | JdbcSink | TopicSink | ConsoleSink


class Pipeline(_Strict, frozen=True, kw_only=True):
    """The whole file."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,99}$")]
    mode: Literal["stream", "batch"] = "stream"
    namesrv_addr: str = ""
    access_key: str = ""
    secret_key: str = ""
    checkpoint: str = ""
    """Directory of the progress of a stream; required there."""
    trigger: str = ""
    """Pause between micro-batches (``10 seconds``); without it they follow each other."""
    one_read: bool = False
    """Streams: sinks of one relation are written by one query, which reads and decodes each message once, and not by
    one each; a sink that fails stops the others of its relation. Not for topics and ``outputMode: complete``, which
    keep queries of their own. Plain files have ``layout: plain``."""
    parameters: dict[str, str | int | float | bool] = {}
    """Defaults for ``${name}`` anywhere in the file; ``--set name=value`` and the environment come first."""
    spark: Options = {}
    """Configuration of Spark."""
    sources: Annotated[dict[Name, Source], Meta(min_length=1)]
    steps: list[Step] = []
    sinks: Annotated[list[Sink], Meta(min_length=1)]
