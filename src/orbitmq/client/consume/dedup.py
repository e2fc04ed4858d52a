"""Handles messages exactly once, provided that their effects are stored in a database.

Delivery is at least once: after a crash or a rebalance a message may be redelivered. ``once`` runs the handler and
records the message as done in one database transaction, so that a second delivery does nothing. Any DB-API 2.0
database works; SQLite needs no settings.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from orbitmq.client.message import ReceivedMessage
from orbitmq.errors import ConfigError
from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock

__all__ = ["Deduplicator", "sqlite_connections"]

logger = logging.getLogger(__name__)


def sqlite_connections(path: str) -> Callable[[], sqlite3.Connection]:
    """Returns a function that opens a connection to a SQLite file. Several threads may write through such
    connections."""

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(path, timeout=30.0)
        connection.execute("PRAGMA journal_mode=WAL")
        return connection

    return connect


def _message_id(message: ReceivedMessage) -> str:
    return message.message_id


@dataclass(frozen=True, kw_only=True)
class Deduplicator:
    """Records which messages a group has handled, in the same database as their effects.

    ``connect`` opens a connection; each thread opens one and keeps it. ``key`` returns what identifies a message: by
    default the unique key set by its sender, which every retry and redelivery keeps. ``placeholder`` is the parameter
    mark of the driver, ``%s`` for most drivers other than SQLite. ``integrity_error`` is the exception that the
    driver raises for an existing key.
    """

    connect: Callable[[], Any]
    group: str
    table: str = "orbitmq_done"
    key: Callable[[ReceivedMessage], str] = _message_id
    placeholder: str = "?"
    integrity_error: type[Exception] = sqlite3.IntegrityError
    clock: Clock = SYSTEM_CLOCK

    def __post_init__(self) -> None:
        if not self.table.replace("_", "").replace(".", "").isalnum():
            raise ConfigError(f"table name {self.table!r} has other characters than letters, digits, _ and .")
        object.__setattr__(self, "_local", threading.local())

    def create_table(self) -> None:
        """Create the table if it does not exist."""
        connection = self._connection()
        cursor = connection.cursor()
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {self.table} (consumer_group VARCHAR(255) NOT NULL, "
            "message_key VARCHAR(255) NOT NULL, done_ms BIGINT NOT NULL, PRIMARY KEY (consumer_group, message_key))"
        )
        connection.commit()

    def once(self, handler: Callable[[ReceivedMessage, Any], object]) -> Callable[[ReceivedMessage], None]:
        """Returns a listener that calls ``handler(message, connection)`` once per message.

        The handler writes through the connection and does not commit. If it raises, everything is rolled back and the
        message is redelivered. It is a plain function, which the consumer runs on a thread.
        """

        def listen(message: ReceivedMessage) -> None:
            connection = self._connection()
            try:
                if not self._claim(connection, self.key(message)):
                    connection.rollback()
                    logger.info("duplicate message skipped id=%s", message.message_id)
                    return
                handler(message, connection)
                connection.commit()
            except BaseException:
                connection.rollback()
                raise

        listen.__qualname__ = getattr(handler, "__qualname__", "once")
        return listen

    def forget_before(self, timestamp_ms: int) -> int:
        """Delete entries older than ``timestamp_ms``, and return their number. Keep entries for longer than messages
        can be redelivered."""
        connection = self._connection()
        cursor = connection.cursor()
        mark = self.placeholder
        cursor.execute(
            f"DELETE FROM {self.table} WHERE consumer_group = {mark} AND done_ms < {mark}",
            (self.group, timestamp_ms),
        )
        connection.commit()
        return int(cursor.rowcount)

    def _claim(self, connection: Any, key: str) -> bool:
        """Record the message as done. Returns False if it is already done. A second thread with the same message
        waits here."""
        mark = self.placeholder
        try:
            connection.cursor().execute(
                f"INSERT INTO {self.table} (consumer_group, message_key, done_ms) VALUES ({mark}, {mark}, {mark})",
                (self.group, key, self.clock.now_ms()),
            )
        except self.integrity_error:
            return False
        return True

    def _connection(self) -> Any:
        local: Any = self._local  # type: ignore[attr-defined]  # set when files are opened per thread
        connection = getattr(local, "connection", None)
        if connection is None:
            connection = local.connection = self.connect()
        return connection
