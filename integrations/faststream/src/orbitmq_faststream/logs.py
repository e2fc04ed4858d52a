"""FastStream's log lines with topic, group and message id."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from faststream._internal.basic_types import LoggerProto
from faststream._internal.context import ContextRepo
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger

__all__ = ["make_rocket_logger_state"]


class RocketParamsStorage(DefaultLoggerStorage):
    """Columns as wide as the names of the subscribers."""

    def __init__(self) -> None:
        super().__init__()
        self._topic_width = 4
        self._group_width = 4
        self._level = logging.INFO

    def set_level(self, level: int) -> None:
        self._level = level

    def register_subscriber(self, params: dict[str, Any]) -> None:
        self._topic_width = max(self._topic_width, len(params.get("topic", "")))
        self._group_width = max(self._group_width, len(params.get("group", "")))

    def get_logger(self, *, context: ContextRepo) -> LoggerProto:
        found = self._get_logger_ref()
        if found is not None:
            return found
        made = get_broker_logger(
            name="rocketmq",
            default_context={"topic": "", "group": ""},
            message_id_ln=32,
            fmt=(
                f"%(asctime)s %(levelname)-8s - %(topic)-{self._topic_width}s | "
                f"%(group)-{self._group_width}s | %(message_id)-32s - %(message)s"
            ),
            context=context,
            log_level=self._level,
        )
        self._logger_ref.add(made)
        return made


make_rocket_logger_state = partial(make_logger_state, default_storage_cls=RocketParamsStorage)
