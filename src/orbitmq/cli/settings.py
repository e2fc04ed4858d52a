"""Reads a server's configuration from a properties file and ``KEY=VALUE`` texts.

Does not need the packages of the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from orbitmq.errors import ConfigError
from orbitmq.runtime.options import (
    Properties,
    config_from_properties,
    decode_properties,
    given_without_effect,
    kept_without_effect,
    options_of,
    parse_properties,
    parse_value,
)

if TYPE_CHECKING:
    from orbitmq.broker.config import BrokerConfig
    from orbitmq.broker.security import MoreOptions
    from orbitmq.store.config import StoreConfig

__all__ = ["BrokerSettings", "read_broker_settings", "read_config"]

C = TypeVar("C")


def read_config(
    config_type: type[C], config_file: str | None, overrides: Sequence[str]
) -> tuple[C, Properties, list[str]]:
    """Returns a config, the properties it was read from, and the unknown keys. Raises ``ConfigError``."""
    source, values, lines = "--set" if overrides else "defaults", dict[str, str](), dict[str, int]()
    if config_file is not None:
        try:
            text = decode_properties(Path(config_file).read_bytes())
        except OSError as error:
            raise ConfigError(f"{config_file} cannot be read: {error}") from None
        properties = parse_properties(text, config_file)
        source, values, lines = config_file, dict(properties.values), dict(properties.lines)
    declared = {option.key: option for option in options_of(config_type)}
    overridden: set[str] = set()
    for number, override in enumerate(overrides, 1):
        key, separator, value = override.partition("=")
        key = key.strip()
        if not separator or not key:
            raise ConfigError(f"--set {override!r} is not of the form KEY=VALUE")
        # Parsed separately first, so that a bad value is not reported as a line of the file. Dependencies between
        # options, such as a slave and its id, are checked once all are known.
        if key in declared:
            parse_value(declared[key], value, f"--set:{number}")
        values[key], lines[key] = value, number
        overridden.add(key)
    properties = Properties(source, values, lines, frozenset(overridden))
    config, unknown = config_from_properties(config_type, properties)
    return config, properties, unknown


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """A broker's startup settings."""

    config: BrokerConfig
    store_config: StoreConfig
    more: MoreOptions

    @property
    def without_effect(self) -> dict[str, str]:
        """The given options that have no effect in this broker."""
        found = dict(self.more.kept)
        for part in (self.config, self.store_config, self.more.auth, self.more.tls, self.more.limits):
            found |= given_without_effect(part)
        return found


def read_broker_settings(config_file: str | None, overrides: Sequence[str]) -> BrokerSettings:
    """Returns the options of a broker and its store from one file. Raises ``ConfigError``, also for unknown keys."""
    from orbitmq.auth.config import AuthConfig
    from orbitmq.broker.config import BrokerConfig
    from orbitmq.broker.quotas import LimitsConfig
    from orbitmq.broker.security import MoreOptions
    from orbitmq.runtime.apache_options import BROKER_KEYS
    from orbitmq.store.config import StoreConfig
    from orbitmq.transport.tls import TlsConfig

    parts: list[Any] = []
    unknown: list[str] | None = None
    kinds: tuple[type[Any], ...] = (BrokerConfig, StoreConfig, AuthConfig, TlsConfig, LimitsConfig)
    for kind in kinds:
        part, properties, unknown_here = read_config(kind, config_file, overrides)
        parts.append(part)
        unknown = [key for key in unknown_here if unknown is None or key in unknown]
    declared = [option.key for kind in kinds for option in options_of(kind)]
    kept = kept_without_effect(properties, unknown or [], declared, BROKER_KEYS)
    config, store_config, auth, tls, limits = parts
    return BrokerSettings(config, store_config, MoreOptions(auth, tls, limits, kept))
