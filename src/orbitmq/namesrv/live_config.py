"""Configuration that requests may change while the server runs (Apache: Configuration).

Only options declared with ``reload`` can change; a key that needs a restart is refused, because accepting it would
have no effect. Changes are written to the properties file first, so that a restart keeps them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping

from orbitmq.errors import ConfigError, NoPermission, ServerError
from orbitmq.namesrv.config import NameServerConfig
from orbitmq.runtime.apache_options import NAME_SERVER_KEYS, refusal_of
from orbitmq.runtime.options import (
    Properties,
    escape_property,
    has_control,
    options_of,
    parse_properties,
    parse_value,
    render_value,
    unknown_option,
)
from orbitmq.runtime.safe_file import SafeFile

__all__ = ["LiveConfig"]

logger = logging.getLogger(__name__)


class LiveConfig:
    """The configuration currently in force."""

    def __init__(
        self,
        config: NameServerConfig,
        file: SafeFile | None = None,
        stored: Mapping[str, str] | None = None,
        on_change: Callable[[NameServerConfig], None] | None = None,
    ) -> None:
        self.current = config
        self._file = file
        self._stored = dict(stored or {})
        self._on_change = on_change
        self._changing = asyncio.Lock()

    async def update(self, text: str) -> None:
        """Apply properties text. If any part is refused, raises a ``BrokerError`` and changes nothing."""
        changes = parse_properties(text, "request")
        for key, value in changes.values.items():
            if has_control(key) or has_control(value):
                raise ServerError(f"option {key!r} holds a control character")
        forbidden = self.current.black_list & changes.values.keys()
        if forbidden:
            raise NoPermission(f"cannot be changed by request: {', '.join(sorted(forbidden))}")
        async with self._changing:
            config, taken, unknown = _updated(self.current, changes)
            kept = {
                key: changes.values[key] for key in unknown if self._stored.get(key) != changes.values[key]
            }
            if kept:
                logger.warning("options kept without effect keys=%s", ",".join(kept))
            if not taken and not kept:
                return
            stored = {**self._stored, **taken, **kept}
            await self._save(stored)
            self._stored = stored
            self.current = config
        if not taken:
            return
        logger.info("configuration changed %s", " ".join(f"{key}={value}" for key, value in taken.items()))
        if self._on_change is not None:
            self._on_change(config)

    async def _save(self, stored: Mapping[str, str]) -> None:
        if self._file is None:
            return
        try:
            await asyncio.to_thread(self._file.save, _properties_text(stored))
        except OSError as error:
            logger.error("configuration not written path=%s error=%s", self._file.path, error)
            raise ServerError(f"configuration cannot be written: {error.strerror or error}") from None


def _updated(
    config: NameServerConfig, changes: Properties
) -> tuple[NameServerConfig, dict[str, str], list[str]]:
    """Returns the new config, the changed keys, and Apache's keys without effect. Raises for an unknown key."""
    by_key = {declared.key: declared for declared in options_of(NameServerConfig)}
    chosen: dict[str, object] = {}
    taken: dict[str, str] = {}
    unknown: list[str] = []
    for key, text in changes.values.items():
        declared = by_key.get(key)
        if declared is None:
            if key not in NAME_SERVER_KEYS:
                raise ServerError(unknown_option(key, {*by_key, *NAME_SERVER_KEYS}))
            if reason := refusal_of(key, text):
                raise ServerError(reason)
            unknown.append(key)
            continue
        try:
            value = parse_value(declared, text, changes.source)
        except ConfigError as error:
            raise ServerError(str(error)) from None
        if value == getattr(config, declared.name):
            continue
        if not declared.reload:
            raise NoPermission(f"{key} cannot change while the server runs: set it in the file and restart")
        chosen[declared.name] = value
        taken[key] = render_value(value)
    return dataclasses.replace(config, **chosen), taken, unknown  # type: ignore[arg-type]  # checked by parse_value


def _properties_text(values: Mapping[str, str]) -> bytes:
    return "".join(
        f"{escape_property(key, is_key=True)}={escape_property(values[key])}\n" for key in sorted(values)
    ).encode()
