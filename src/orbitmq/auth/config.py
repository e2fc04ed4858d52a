"""Options of access control, with Apache's keys and defaults (``AuthConfig`` of 5.x, ``aclEnable`` of 4.x)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from orbitmq.errors import ConfigError
from orbitmq.runtime.options import option

__all__ = ["AuthConfig", "Credentials", "read_credentials"]

_CACHE_DOC: Final = "Size or age of a cache of users and policies."
_NO_CACHE: Final = "users and policies are in memory, and a change takes effect immediately"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A name and its signing secret."""

    name: str
    secret: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthConfig:
    """Access control of a server. Everything is off by default, like in Apache."""

    authentication_enabled: bool = option(
        False,
        apache="authenticationEnabled",
        doc="Every request must be signed by a known, enabled user.",
    )
    authorization_enabled: bool = option(
        False,
        apache="authorizationEnabled",
        doc="Normal users need a policy for what they do. Needs authenticationEnabled.",
    )
    compatibility: str = option(
        "strict",
        apache="authCompatibility",
        choices=("strict", "apache"),
        doc="strict: every request needs a right. apache: what Apache 5.5.0 leaves open to every signed user is open "
        "here too, and passwords are answered. Not an Apache key.",
    )
    init_user: str = option(
        "",
        apache="initAuthenticationUser",
        secret=True,
        doc='{"username":"u","password":"p"}: created as Super at start if there is no such user.',
    )
    inner_credentials: str = option(
        "",
        apache="innerClientAuthenticationCredentials",
        secret=True,
        doc='{"accessKey":"u","secretKey":"p"}: signs what this broker sends to others; created here as Super if '
        "missing.",
    )
    authentication_whitelist: str = option(
        "",
        apache="authenticationWhitelist",
        doc="Request codes, separated by commas, that need no signature.",
    )
    authorization_whitelist: str = option(
        "", apache="authorizationWhitelist", doc="Request codes, separated by commas, that need no right."
    )
    authentication_provider: str = option(
        "", apache="authenticationProvider", doc="Empty or Apache's default class; others are refused."
    )
    authorization_provider: str = option(
        "", apache="authorizationProvider", doc="Empty or Apache's default class; others are refused."
    )
    authentication_metadata_provider: str = option(
        "",
        apache="authenticationMetadataProvider",
        doc="Empty or Apache's local class: users are in config/users.json either way.",
    )
    authorization_metadata_provider: str = option(
        "",
        apache="authorizationMetadataProvider",
        doc="Empty or Apache's local class: policies are in config/acls.json either way.",
    )
    authentication_strategy: str = option(
        "",
        apache="authenticationStrategy",
        doc="Empty or one of Apache's two classes; every request is checked by itself with each of them.",
    )
    authorization_strategy: str = option(
        "",
        apache="authorizationStrategy",
        doc="Empty or one of Apache's two classes; every request is checked by itself with each of them.",
    )
    migrate_from_files: bool = option(
        False,
        apache="migrateAuthFromV1Enabled",
        doc="At start, accounts of plain_acl.yml that are not users yet become users with policies.",
    )
    acl_enabled: bool = option(
        False,
        apache="aclEnable",
        doc="Access lists of 4.x: conf/plain_acl.yml and conf/acl/ below rocketmqHome.",
    )
    home: str = option(
        "",
        apache="rocketmqHome",
        doc="Where conf/plain_acl.yml is looked for; empty means the variable ROCKETMQ_HOME, else storePathRootDir.",
    )
    user_cache_max: int = option(
        1000,
        apache="userCacheMaxNum",
        doc=_CACHE_DOC,
        without_effect=_NO_CACHE,
    )
    user_cache_expired_s: int = option(
        600,
        apache="userCacheExpiredSecond",
        doc=_CACHE_DOC,
        without_effect=_NO_CACHE,
    )
    user_cache_refresh_s: int = option(
        60,
        apache="userCacheRefreshSecond",
        doc=_CACHE_DOC,
        without_effect=_NO_CACHE,
    )
    acl_cache_max: int = option(
        1000,
        apache="aclCacheMaxNum",
        doc=_CACHE_DOC,
        without_effect=_NO_CACHE,
    )
    acl_cache_expired_s: int = option(
        600,
        apache="aclCacheExpiredSecond",
        doc=_CACHE_DOC,
        without_effect=_NO_CACHE,
    )
    acl_cache_refresh_s: int = option(
        60,
        apache="aclCacheRefreshSecond",
        doc=_CACHE_DOC,
        without_effect=_NO_CACHE,
    )
    stateful_authentication_max: int = option(
        10_000,
        apache="statefulAuthenticationCacheMaxNum",
        doc=_CACHE_DOC,
        without_effect=_NO_CACHE,
    )
    stateful_authentication_s: int = option(
        60,
        apache="statefulAuthenticationCacheExpiredSecond",
        doc=_CACHE_DOC,
        without_effect=_NO_CACHE,
    )
    stateful_authorization_max: int = option(
        10_000,
        apache="statefulAuthorizationCacheMaxNum",
        doc=_CACHE_DOC,
        without_effect=_NO_CACHE,
    )
    stateful_authorization_s: int = option(
        60,
        apache="statefulAuthorizationCacheExpiredSecond",
        doc=_CACHE_DOC,
        without_effect=_NO_CACHE,
    )

    def __post_init__(self) -> None:
        if self.authorization_enabled and not self.authentication_enabled:
            raise ConfigError(
                "authorizationEnabled=true needs authenticationEnabled=true: without it a client may claim any name"
            )
        if self.acl_enabled and self.authentication_enabled:
            raise ConfigError(
                "aclEnable=true and authenticationEnabled=true are mutually exclusive; enable one of them"
            )
        for key, given, accepted in (
            ("authenticationProvider", self.authentication_provider, ("DefaultAuthenticationProvider",)),
            ("authorizationProvider", self.authorization_provider, ("DefaultAuthorizationProvider",)),
            (
                "authenticationMetadataProvider",
                self.authentication_metadata_provider,
                ("LocalAuthenticationMetadataProvider",),
            ),
            (
                "authorizationMetadataProvider",
                self.authorization_metadata_provider,
                ("LocalAuthorizationMetadataProvider",),
            ),
            (
                "authenticationStrategy",
                self.authentication_strategy,
                ("StatelessAuthenticationStrategy", "StatefulAuthenticationStrategy"),
            ),
            (
                "authorizationStrategy",
                self.authorization_strategy,
                ("StatelessAuthorizationStrategy", "StatefulAuthorizationStrategy"),
            ),
        ):
            if given.strip() and given.strip().rpartition(".")[2] not in accepted:
                raise ConfigError(
                    f"{key}={given} is not supported; leave it empty or use {' or '.join(accepted)}"
                )
        _ = self.first_user, self.inner_user  # a bad one stops the start

    @property
    def enabled(self) -> bool:
        """Whether requests are checked at all."""
        return self.authentication_enabled or self.acl_enabled

    @property
    def first_user(self) -> Credentials | None:
        return read_credentials("initAuthenticationUser", self.init_user, "username", "password")

    @property
    def inner_user(self) -> Credentials | None:
        return read_credentials(
            "innerClientAuthenticationCredentials", self.inner_credentials, "accessKey", "secretKey"
        )


def read_credentials(
    key: str, text: str, name_member: str = "accessKey", secret_member: str = "secretKey"
) -> Credentials | None:
    """Parse a JSON object with a name and a secret. Returns None for an empty text. Raises ``ConfigError``, whose
    text does not contain the secret."""
    if not text.strip():
        return None
    try:
        value = json.loads(text)
        name, secret = value[name_member], value[secret_member]
        if not (isinstance(name, str) and isinstance(secret, str) and name and secret):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        # Without the value, which contains a secret.
        raise ConfigError(
            f'{key} is not of the form {{"{name_member}":"...","{secret_member}":"..."}}'
        ) from None
    return Credentials(name, secret)
