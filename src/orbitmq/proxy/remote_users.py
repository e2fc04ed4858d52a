"""A cluster's users and policies, read from its brokers, for a proxy in front of it (Apache: ClusterMetadataService).

The proxy queries with its own credentials. Results are cached for ``userCacheRefreshSeconds`` and then refreshed in
the background, so a change takes effect after that time at the latest. A broker that does not answer changes nothing;
an unknown user is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import msgspec

from orbitmq.auth.control import AccessControl
from orbitmq.auth.infos import REPLICA, parse_acl, parse_user
from orbitmq.auth.model import Policies, User
from orbitmq.auth.stored import BrokerFacts
from orbitmq.auth.table import AuthTable
from orbitmq.errors import ConnectionLostError, NoPermission, OrbitError, ServerError
from orbitmq.proxy.brokers import Brokers
from orbitmq.proxy.cache import Cache
from orbitmq.proxy.config import ProxyConfig
from orbitmq.requests import Request, RequestCode
from orbitmq.runtime.clock import Clock
from orbitmq.runtime.tasks import TaskOwner
from orbitmq.wire.bodies.auth import AclInfo, UserInfo

__all__ = ["RemoteUsers"]

logger = logging.getLogger(__name__)

_NAME_MAX: Final = 256
"""Limit in characters. Longer names are not looked up."""


class _Known(msgspec.Struct, frozen=True):
    user: User | None
    policies: Policies | None


class RemoteUsers:
    """Loads users for ``control``, which checks only users that ``learn`` has loaded."""

    def __init__(
        self,
        config: ProxyConfig,
        brokers: Brokers,
        *,
        clock: Clock,
        tasks: TaskOwner,
    ) -> None:
        self._brokers = brokers
        self._table = AuthTable()
        self.control = AccessControl(
            self._table, BrokerFacts(config.cluster_name), authorize=config.authorization
        )
        self._known: Cache[_Known] = Cache(
            self._load,
            tasks=tasks,
            clock=clock,
            refresh_s=float(config.user_refresh_s),
            expiry_s=float(config.user_expiry_s),
            entries_max=config.user_entries,
        )

    def expire(self) -> None:
        self._known.expire()

    async def learn(self, name: str) -> None:
        """Load a user into the table if a broker has it. Raises ``OrbitError`` if no broker answers."""
        if name and len(name) <= _NAME_MAX and self._known.known(name) is None:
            await self._known.get(name)

    async def _load(self, name: str) -> _Known:
        failure: OrbitError = ConnectionLostError("no broker is known to ask for users")
        for address in sorted(await self._brokers.find_brokers()):
            try:
                known = await self._ask(address, name)
            except OrbitError as error:
                logger.warning("user not loaded name=%r broker=%s error=%s", name, address, error)
                failure = error
                continue
            self._note(name, known)
            return known
        raise failure

    async def _ask(self, address: str, name: str) -> _Known:
        answer = await self._request(address, RequestCode.AUTH_GET_USER, {"username": name})
        if not answer:
            return _Known(None, None)
        info = UserInfo.decode(answer)
        if not info.password:
            raise ServerError(
                "the broker does not reveal passwords: the proxy's innerClientAuthenticationCredentials must be"
                " those of the broker, or the broker must have authCompatibility=apache"
            )
        answer = await self._request(address, RequestCode.AUTH_GET_ACL, {"subject": f"User:{name}"})
        return _Known(parse_user(name, info), _policies(answer))

    async def _request(self, address: str, code: Request, fields: Mapping[str, str]) -> bytes:
        return (await self._brokers.ask_fields(address, code, {**fields, REPLICA: "true"})).body

    def _note(self, name: str, known: _Known) -> None:
        table = self._table
        if known.user is None:
            table.delete_user(name)
            return
        if table.users.get(name) != known.user:
            table.store_user(known.user)
        if table.policies.get(name) != known.policies:
            table.store_policies(name, known.policies)


def _policies(answer: bytes) -> Policies | None:
    """Parse a user's policies. Returns None if there are none, which allows nothing.

    Raises ``ServerError`` for policies that cannot be parsed.
    """
    info = AclInfo.decode(answer) if answer else AclInfo()
    if not any(policy.entries for policy in info.policies or ()):
        return None
    try:
        return parse_acl(info)
    except NoPermission as error:
        raise ServerError(f"policies of a broker cannot be read: {error.remark}") from None
