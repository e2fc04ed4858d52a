"""Sets up logging for a server process. Called once by ``cli``; libraries and tests never call it."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

__all__ = ["LOG_FORMATS", "LOG_LEVELS", "JsonFormatter", "OneLineFormatter", "configure_logging"]

LOG_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
LOG_FORMATS: Final = ("text", "json")

_FORMAT: Final = "%(asctime)s %(levelname)-7s %(name)s %(message)s"
_FILE_BYTES: Final = 64 * 1024 * 1024
_FILE_COUNT: Final = 10


_CONTROL: Final = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)
}
"""Characters that a terminal or a log reader may take for control characters, mapped to visible escapes."""


class OneLineFormatter(logging.Formatter):
    """Formats each event as one line. Control characters in names, keys and remarks sent by peers are escaped, so
    that no input can add a line to the log. Tracebacks follow the event and keep their lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the name is logging's
        return super().formatMessage(record).translate(_CONTROL)


class JsonFormatter(logging.Formatter):
    """Formats each event as a JSON object on one line, with ``time`` (UTC), ``level``, ``logger``, ``message`` and
    ``exception``."""

    def format(self, record: logging.LogRecord) -> str:
        event = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return json.dumps(event)


def configure_logging(level: str = "INFO", file: str | None = None, form: str = "text") -> None:
    """Log to ``file``, which is rotated so that at most 11 x 64 MiB remain, or to standard error.

    Raises ``OSError`` if the file cannot be opened.
    """
    handler: logging.Handler
    if file is None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        # Imported on demand: it loads sockets and queues, a tenth of a server's start time.
        from logging.handlers import RotatingFileHandler

        handler = RotatingFileHandler(file, maxBytes=_FILE_BYTES, backupCount=_FILE_COUNT, encoding="utf-8")
    handler.setFormatter(JsonFormatter() if form == "json" else OneLineFormatter(_FORMAT))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # After a full disk or a closed pipe, tracebacks of the logging itself must not hide the real ones.
    logging.raiseExceptions = False
