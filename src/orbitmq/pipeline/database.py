"""Writes database tables through Spark's JDBC, each micro-batch exactly once.

Spark writes a JDBC table in one transaction per task, so a failure leaves part of a batch behind. Here tasks fill a
staging table instead. Then one connection of the driver moves the rows to the table and records the batch number, in
one transaction.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final

from orbitmq.pipeline.sources import option_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from orbitmq.pipeline.lake import BatchKey
    from orbitmq.pipeline.spec import JdbcSink

__all__ = ["PROGRESS_TABLE", "DatabaseWriter"]

PROGRESS_TABLE: Final = "orbitmq_progress"
_LOGIN_TIMEOUT_S: Final = 30


class DatabaseWriter:
    """Writes the batches of one sink into one table. ``name`` distinguishes the sink from other sinks of this
    database."""

    def __init__(self, session: SparkSession, sink: JdbcSink, name: str) -> None:
        self._session = session
        self._sink = sink
        schema = sink.table.rpartition(".")[0]
        stage = f"orbitmq_stage_{zlib.crc32(f'{name} {sink.table}'.encode()):08x}"
        self._stage = f"{schema}.{stage}" if schema else stage
        self._progress = f"{schema}.{PROGRESS_TABLE}" if schema else PROGRESS_TABLE

    @property
    def _options(self) -> dict[str, str]:
        sink = self._sink
        given = {"driver": sink.driver, "user": sink.user, "password": sink.password}
        options = {key: value for key, value in given.items() if value}
        return {"url": sink.url, **options, **{key: option_text(v) for key, v in sink.options.items()}}

    def write(self, frame: DataFrame, batch: BatchKey | None) -> None:
        """Commits a batch unless it has already been committed. If ``batch`` is None, as outside of streams, always
        commits."""
        connection = self._connect()
        try:
            if batch is not None:
                self._make_progress_table(connection)
                if self._last_batch(connection, batch.query) >= batch.number:
                    return
            frame.write.format("jdbc").options(dbtable=self._stage, **self._options).mode("overwrite").save()
            if not self._exists(connection, self._sink.table):
                # Spark maps these columns to the types of this database.
                empty = frame.sparkSession.createDataFrame([], frame.schema)
                empty.write.format("jdbc").options(dbtable=self._sink.table, **self._options).mode(
                    "append"
                ).save()
            self._move(connection, frame.columns, batch)
        finally:
            connection.close()

    def _connect(self) -> Any:
        jvm: Any = self._session._jvm  # the only way to a JDBC connection of the driver
        options = self._options
        if self._sink.driver:
            jvm.org.apache.spark.sql.execution.datasources.jdbc.DriverRegistry.register(self._sink.driver)
        properties = jvm.java.util.Properties()
        for key in ("user", "password"):
            if key in options:
                properties.setProperty(key, options[key])
        jvm.java.sql.DriverManager.setLoginTimeout(_LOGIN_TIMEOUT_S)
        return jvm.java.sql.DriverManager.getConnection(self._sink.url, properties)

    def _exists(self, connection: Any, table: str) -> bool:
        return self._columns(connection, table) is not None

    def _columns(self, connection: Any, table: str) -> list[str] | None:
        """Returns the column names of a table, or None if the table does not exist."""
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has none

        statement = connection.createStatement()
        try:
            found = statement.executeQuery(f"SELECT * FROM {table} WHERE 1 = 0").getMetaData()
            return [found.getColumnLabel(number) for number in range(1, found.getColumnCount() + 1)]
        except Py4JJavaError:
            return None
        finally:
            statement.close()

    def _make_progress_table(self, connection: Any) -> None:
        if self._exists(connection, self._progress):
            return
        self._execute(
            connection,
            f"CREATE TABLE {self._progress} (query_id VARCHAR(100) NOT NULL PRIMARY KEY, batch_id BIGINT NOT NULL)",
        )

    def _last_batch(self, connection: Any, query: str) -> int:
        statement = connection.prepareStatement(f"SELECT batch_id FROM {self._progress} WHERE query_id = ?")
        try:
            statement.setString(1, query)
            found = statement.executeQuery()
            return int(found.getLong(1)) if found.next() else -1
        finally:
            statement.close()

    def _move(self, connection: Any, columns: list[str], batch: BatchKey | None) -> None:
        jvm: Any = self._session._jvm
        dialect = jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(self._sink.url)
        present = {name.lower(): name for name in self._columns(connection, self._sink.table) or []}
        into = ", ".join(dialect.quoteIdentifier(present.get(name.lower(), name)) for name in columns)
        staged = ", ".join(dialect.quoteIdentifier(name) for name in columns)
        connection.setAutoCommit(False)
        try:
            if self._sink.output_mode == "complete":
                self._execute(connection, f"DELETE FROM {self._sink.table}")
            self._execute(
                connection, f"INSERT INTO {self._sink.table} ({into}) SELECT {staged} FROM {self._stage}"
            )
            if batch is not None:
                self._note(connection, batch)
            connection.commit()
        except BaseException:
            connection.rollback()
            raise
        connection.setAutoCommit(True)
        self._execute(connection, f"DROP TABLE {self._stage}")

    def _note(self, connection: Any, batch: BatchKey) -> None:
        for text in (
            f"UPDATE {self._progress} SET batch_id = ? WHERE query_id = ?",
            f"INSERT INTO {self._progress} (batch_id, query_id) VALUES (?, ?)",
        ):
            statement = connection.prepareStatement(text)
            try:
                statement.setLong(1, batch.number)
                statement.setString(2, batch.query)
                if statement.executeUpdate():
                    return
            finally:
                statement.close()

    def _execute(self, connection: Any, text: str) -> None:
        statement = connection.createStatement()
        try:
            statement.executeUpdate(text)
        finally:
            statement.close()
