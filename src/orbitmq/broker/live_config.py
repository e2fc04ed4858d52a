"""Reads and changes options by request while the broker runs (Apache: Configuration).

Requests see the options of the broker and of its store as one text. Only options declared with ``reload`` can change.
A change of any other option is refused, because it would take effect only after a restart. An Apache option that this
broker does not act on is kept and shown below a comment that says so. An unknown key is refused, and so is any value
with a control character. A change is first written to the configuration file, if the broker was started with one: its
line is replaced or added, and the rest of the file stays unchanged.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from orbitmq.broker.config import MASTER_ID, BrokerConfig, BrokerRole, change_option
from orbitmq.broker.events import BrokerEvents
from orbitmq.errors import ConfigError, NoPermission, ServerError
from orbitmq.model.data_version import DataVersion
from orbitmq.runtime.apache_options import BROKER_KEYS, WITHOUT_EFFECT_HEADING, refusal_of
from orbitmq.runtime.clock import Clock
from orbitmq.runtime.options import (
    Option,
    decode_properties,
    edit_properties,
    escape_property,
    given_without_effect,
    has_control,
    options_of,
    parse_properties,
    parse_value,
    render_value,
    unknown_option,
)
from orbitmq.runtime.safe_file import SafeFile

__all__ = ["HIDDEN", "LiveConfig", "shown"]

logger = logging.getLogger(__name__)

_ROLE: Final = "brokerRole"
_ID: Final = "brokerId"
_ACCEPT_LOSS: Final = "acceptLoss"
"""A key sent with a role, which is not an option. With failover it elects this broker even if its log may lack
messages."""
HIDDEN: Final = "******"
"""Shown instead of a secret."""
_ALWAYS_BLACK_LISTED: Final = frozenset({"brokerConfigPath", "rocketmqHome", "configBlackList"})


class LiveConfig:
    """The options in force, and their changes by request."""

    def __init__(
        self,
        config: BrokerConfig,
        others: Sequence[Any] = (),
        *,
        clock: Clock,
        file: SafeFile | None = None,
        effective: Mapping[str, str] | None = None,
        events: BrokerEvents,
        change_role: Callable[[BrokerRole, int, bool], Awaitable[None]] | None = None,
    ) -> None:
        """``others`` are further config objects, such as the store's. ``effective`` maps the options whose value the
        broker chooses to their actual values. ``change_role`` changes the broker's role in its group (role, number,
        whether loss is accepted); without it the role cannot change."""
        self._config = config
        self._objects: tuple[Any, ...] = (config, *others)
        self._clock = clock
        self._file = file
        self._effective = dict(effective or {})
        self.kept: dict[str, str] = {}
        """Apache options that are set but have no effect here."""
        self._changed = events.options_changed
        self._change_role = change_role
        self._changing = asyncio.Lock()
        self.version = DataVersion(timestamp_ms=clock.now_ms())

    def text(self) -> str:
        """Returns all options as properties text, sorted by key, followed by those without effect. Secrets are
        hidden."""
        values = {
            declared.key: shown(declared, getattr(config, declared.name))
            for config in self._objects
            for declared in options_of(type(config))
        }
        values.update((key, value) for key, value in self._effective.items() if not values.get(key))
        idle = dict(self.kept)
        for config in self._objects:
            idle |= given_without_effect(config)
        text = _lines({key: value for key, value in values.items() if key not in idle})
        if idle:
            text += f"{WITHOUT_EFFECT_HEADING}\n" + _lines(idle)
        return text

    async def update(self, text: str) -> frozenset[str]:
        """Apply properties text, all or nothing. Returns the keys of the options that changed.

        Raises ``NoPermission`` for options that requests must not change, and ``ServerError`` for unknown keys and
        invalid values.
        """
        wanted = parse_properties(text, "request").values
        for key, value in wanted.items():
            if has_control(key) or has_control(value):
                raise ServerError(f"option {key!r} holds a control character")
        black_list = _ALWAYS_BLACK_LISTED | set(self._config.config_black_list.split(";"))
        forbidden = sorted(black_list & wanted.keys())
        if forbidden:
            raise NoPermission(f"cannot be changed by request: {', '.join(forbidden)}")
        async with self._changing:
            role = self._role(wanted)
            accept_loss = bool(role) and wanted.get(_ACCEPT_LOSS) == "true"
            skipped = {*role, _ACCEPT_LOSS} if role else set()
            taken, kept = self._changes({key: value for key, value in wanted.items() if key not in skipped})
            if not taken and not role and not kept:
                return frozenset()
            # With failover the role comes from an election, not from the configuration file.
            written = {} if self._config.failover_enabled else role
            await self._save(written | kept | {key: value for key, value, _ in taken})
            self.kept |= kept
            for key, value, config in taken:
                change_option(config, key, value)
            if role and self._change_role is not None:
                await self._change_role(BrokerRole(role[_ROLE]), int(role[_ID]), accept_loss)
            self.version = self.version.next(self._clock.now_ms())
        changed = role | {key: value for key, value, _ in taken}
        keys = frozenset(changed)
        if kept:
            logger.warning("options kept without effect keys=%s", ",".join(sorted(kept)))
        if not keys:
            return keys
        logger.info("options changed %s", " ".join(f"{key}={value}" for key, value in changed.items()))
        self._changed(keys)
        return keys

    def _role(self, wanted: Mapping[str, str]) -> dict[str, str]:
        """Returns the keys and values of both role options if the request changes the role, otherwise an empty dict.
        If the request has only one of them, the other is derived from it where possible."""
        if self._change_role is None or (_ROLE not in wanted and _ID not in wanted):
            return {}
        config = self._config
        role_text = wanted.get(_ROLE, config.role.value).strip()
        id_text = wanted.get(_ID, "").strip()
        if role_text not in BrokerRole.__members__:
            raise ServerError(f"{_ROLE}={role_text} is none of {', '.join(BrokerRole.__members__)}")
        if id_text and not (id_text.isascii() and id_text.isdigit() and len(id_text) <= 18):
            raise ServerError(f"{_ID}={id_text} is not a number")
        is_slave = role_text == BrokerRole.SLAVE.value
        if id_text and is_slave == (int(id_text) == MASTER_ID):
            raise ServerError(
                f"{_ROLE}={role_text} cannot be combined with {_ID}={id_text}; 0 is the master, other ids are slaves"
            )
        broker_id = int(id_text) if id_text else (max(1, config.broker_id) if is_slave else MASTER_ID)
        if (role_text, broker_id) == (config.role.value, config.broker_id):
            return {}
        return {_ROLE: role_text, _ID: str(broker_id)}

    def _changes(self, wanted: Mapping[str, str]) -> tuple[list[tuple[str, str, Any]], dict[str, str]]:
        """Returns the changed reloadable options as (key, value, owner), and the options without effect, which are
        only kept."""
        declared_by_key: dict[str, tuple[Option, Any]] = {
            declared.key: (declared, config)
            for config in self._objects
            for declared in options_of(type(config))
        }
        taken: list[tuple[str, str, Any]] = []
        kept: dict[str, str] = {}
        values: dict[int, tuple[Any, dict[str, Any]]] = {}
        for key, text in wanted.items():
            if key not in declared_by_key:
                if key not in BROKER_KEYS:
                    raise ServerError(unknown_option(key, {*declared_by_key, *BROKER_KEYS}))
                if reason := refusal_of(key, text):
                    raise ServerError(reason)
                if self.kept.get(key) != text:
                    kept[key] = text
                continue
            declared, config = declared_by_key[key]
            try:
                value = parse_value(declared, text, "request")
            except ConfigError as error:
                raise ServerError(str(error)) from None
            if value == getattr(config, declared.name):
                continue
            if not declared.reload:
                raise NoPermission(
                    f"{key} cannot change while the broker runs: set it in the file and restart"
                )
            taken.append((key, text.strip(), config))
            values.setdefault(id(config), (config, {}))[1][declared.name] = value
        try:
            for config, changes in values.values():
                # Check as at start, except the broker's own config, because its role may have been elected since.
                if config is not self._config:
                    dataclasses.replace(config, **changes)
        except ConfigError as error:
            raise ServerError(str(error)) from None
        return taken, kept

    async def _save(self, changes: Mapping[str, str]) -> None:
        file = self._file
        if file is None:
            return

        def save() -> None:
            before = file.load(decode_properties) or ""
            file.save(edit_properties(before, changes).encode())

        try:
            await asyncio.to_thread(save)
        except OSError as error:
            logger.error("options not written path=%s error=%s", file.path, error)
            raise ServerError(f"the file of options cannot be written: {error.strerror or error}") from None


def shown(declared: Option, value: Any) -> str:
    """Returns the text of a value as requests may see it. Secrets are hidden."""
    return HIDDEN if declared.secret and value else render_value(value)


def _lines(values: Mapping[str, str]) -> str:
    # One line per option, but readable: the readers are not Java and may not expect escapes.
    return "".join(f"{key}={escape_property(values[key], ascii_only=False)}\n" for key in sorted(values))
