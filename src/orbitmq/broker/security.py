"""Assembles a broker's access control from options and files: the guard of its ports, and the signatures of its
requests.

If all access control is disabled, there is neither a guard nor a signature, so requests cost nothing extra.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orbitmq.auth.acl_files import AclFiles
from orbitmq.auth.config import AuthConfig
from orbitmq.auth.control import AccessControl
from orbitmq.auth.model import Action, Decision, Entry, Policies, Resource, User, UserType
from orbitmq.auth.needs import topic_need
from orbitmq.auth.signature import ACCESS_KEY, sign_fields
from orbitmq.auth.stored import BrokerFacts, Place, place_of
from orbitmq.auth.table import AuthTable
from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.delivery.revocation import Revocation
from orbitmq.broker.handlers.acl import AclHandlers
from orbitmq.broker.handlers.auth import AuthHandlers
from orbitmq.broker.quotas import LimitsConfig
from orbitmq.broker.replication.protection import SlaveHosts, StreamProtection
from orbitmq.broker.tables.clients import ClientChannel
from orbitmq.errors import NoPermission, RecordError
from orbitmq.record.codec import decode_record
from orbitmq.runtime.clock import Clock
from orbitmq.runtime.filesystem import FileSystem
from orbitmq.runtime.machine import environment
from orbitmq.runtime.network import bare_host
from orbitmq.runtime.safe_file import SafeFile
from orbitmq.store.message_store import MessageStore
from orbitmq.transport.client import Signer
from orbitmq.transport.connection import Connection
from orbitmq.transport.router import Call, Route
from orbitmq.transport.tls import ServerTls, TlsConfig
from orbitmq.wire.frame import Frame

__all__ = ["MoreOptions", "Security", "Seen", "is_loopback"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MoreOptions:
    """The settings of a broker for access control, TLS and limits, and the Apache options that are only kept."""

    auth: AuthConfig = field(default_factory=AuthConfig)
    tls: TlsConfig = field(default_factory=TlsConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    kept: Mapping[str, str] = field(default_factory=dict)
    """Apache options without effect here."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Looks up the records and retry topics that requests refer to. Used by the permission checks."""

    store: MessageStore
    groups: Container[str]
    topics: Container[str]

    def place_at(self, log_offset: int) -> Place | None:
        """Returns the topic and queue of the record at a log offset, or None if there is no record. Raises
        ``NoPermission`` if they cannot be determined."""
        raw = self.store.record_at(log_offset)
        if raw is None:
            return None
        try:
            record = decode_record(bytes(raw))
        except RecordError as error:
            raise NoPermission(f"the right to the record is unknown: {error}") from None
        # The body of a message may look like a record, even one that extends into the following messages.
        units = self.store.units(record.topic, record.queue_id, record.queue_offset, 1)
        if not units or units[0][:2] != (log_offset, len(raw)):
            raise NoPermission(f"no message of a queue starts at offset {log_offset} of the log")
        return place_of(record)


class Security:
    """The users and policies of a broker, and the checks based on them."""

    def __init__(
        self,
        config: AuthConfig,
        facts: BrokerFacts,
        *,
        users_file: SafeFile,
        policies_file: SafeFile,
        files: AclFiles,
    ) -> None:
        """``files`` are the access lists of 4.x. They are used only if the options enable them."""
        self.config = config
        self._files = files
        self.table = AuthTable(users_file, policies_file)
        self.control: AccessControl | None = None
        self._slave_hosts: SlaveHosts | None = None
        self.revocation = Revocation(self._check_again)
        """Rechecks requests on hold when users or policies have changed."""
        files.changed.append(self.revocation.changed)
        if config.authentication_enabled:
            self.control = AccessControl(
                self.table,
                facts,
                authorize=config.authorization_enabled,
                apache_rows=config.compatibility == "apache",
                authentication_whitelist=_codes(config.authentication_whitelist),
                authorization_whitelist=_codes(config.authorization_whitelist),
            )
            self.control.changed.append(self.revocation.changed)

    @classmethod
    def of(
        cls, auth: AuthConfig, config: BrokerConfig, seen: Seen, *, fs: FileSystem, clock: Clock
    ) -> Security:
        """Returns an instance that uses a broker's usual file paths. Logs one line if the broker has no access
        control."""
        is_strict = auth.compatibility != "apache"
        path, root = seen.store.config.path, seen.store.config.root
        facts = BrokerFacts(
            config.cluster_name,
            seen.place_at,
            seen.groups,
            seen.topics,
            lambda: config.reads_pop_retry_v1,
            is_strict,
        )
        made = cls(
            auth,
            facts,
            users_file=SafeFile(fs, path("config", "users.json"), private=True),
            policies_file=SafeFile(fs, path("config", "acls.json"), private=True),
            files=AclFiles(fs, acl_home(auth, root), facts, clock=clock, apache_rows=not is_strict),
        )
        made.warn_if_open(config.bind_host)
        return made

    @property
    def acl_files(self) -> AclFiles | None:
        """The access lists of 4.x, or None if they are disabled."""
        return self._files if self.config.acl_enabled else None

    def load(self) -> None:
        """Load the files, and create the users named in the options. Called before a port opens. Raises
        ``CorruptionError`` and ``ConfigError``."""
        self.table.load()
        if self.config.acl_enabled:
            self._files.load()
        if self.config.migrate_from_files:
            self._files.load()
            migrate(self._files, self.table)
        for wanted in (self.config.first_user, self.config.inner_user):
            if wanted is not None and wanted.name not in self.table.users:
                self.table.store_user(User(wanted.name, wanted.secret, UserType.SUPER))
                logger.info("user created from the configuration name=%s type=Super", wanted.name)
        if self.control is not None and not self.table.users:
            logger.warning("authentication is on and there is no user: set initAuthenticationUser")

    @property
    def guard(self) -> Callable[[Frame, Connection], None] | None:
        """The check that runs before every request, or None if nothing is checked."""
        checker = self.control or self.acl_files
        if checker is None:
            return None
        check = checker.check

        def guard(frame: Frame, connection: Connection) -> None:
            check(frame, connection.remote[0])

        return guard

    @property
    def copies_from_master(self) -> bool:
        """Whether a slave copies its master's users and policies."""
        return self.control is not None and self.config.inner_user is not None

    @property
    def signer(self) -> Signer | None:
        """The function that signs this broker's requests to others, or None if they are not signed."""
        inner = self.config.inner_user
        if inner is None:
            return None
        return lambda fields, body: sign_fields(fields, body, inner.name, inner.secret)

    def _check_again(self, frame: Frame, connection: Connection) -> None:
        if self.guard is not None:
            self.guard(frame, connection)

    def signer_of(self, frame: Frame) -> str:
        """Returns the name of the user who signed a request that passed the guard; empty if no signature was
        required."""
        if self.control is not None:
            return self.control.signer(frame)
        return frame.ext_fields.get(ACCESS_KEY, "") if self.acl_files is not None else ""

    def stream_protection(
        self, config: BrokerConfig, tls: TlsConfig, server: ServerTls, clock: Clock
    ) -> StreamProtection:
        """Returns the protection of the replication stream: who may receive it, and whether it uses TLS. Raises
        ``ConfigError``."""
        if config.replication_tls:
            return StreamProtection.of(tls, server, self.config, self.control)
        if self.guard is not None:
            self._slave_hosts = SlaveHosts(config.slave_addresses, clock.monotonic)
        return StreamProtection(hosts=self._slave_hosts)

    def slave_asked(self, call: Call[Any]) -> None:
        """Record the host of a peer that sends a slave's requests, if a Super user signed them."""
        if self._slave_hosts is not None and self._is_super(self.signer_of(call.frame)):
            self._slave_hosts.signed_in(call.peer.remote[0])

    def _is_super(self, name: str) -> bool:
        if self.control is not None:
            user = self.table.users.get(name)
            return user is not None and user.is_super
        account = self._files.accounts.get(name)
        return account is not None and account.admin

    def may_publish(self, producer: ClientChannel, topic: str) -> bool:
        """Whether the user who signed a producer's heartbeat may currently send to a topic."""
        checker = self.control or self.acl_files
        need = topic_need(topic, Action.PUB)
        return checker is None or checker.allows(producer.user, need, producer.connection.remote[0])

    def routes(self, config: BrokerConfig, address: str) -> list[Route]:
        """Returns the routes of requests 3001 to 3010 and, with access lists of 4.x, of requests 50 to 54."""
        routes = self.handlers().routes()
        if self.acl_files is not None:
            shown = self.config.compatibility == "apache"
            handlers = AclHandlers(
                files=self.acl_files, config=config, address=address, answers_secrets=shown
            )
            routes += handlers.routes()
        return routes

    def handlers(self) -> AuthHandlers:
        """Returns the handlers of requests 3001 to 3010."""
        inner = self.config.inner_user
        return AuthHandlers(
            table=self.table,
            checked=self.control is not None,
            signer_of=self.signer_of,
            answers_passwords=self.config.compatibility == "apache",
            inner_user="" if inner is None else inner.name,
            on_change=lambda: None,
        )

    def warn_if_open(self, bind_host: str) -> None:
        """Log a warning if the broker can be reached from the network without access control."""
        if not self.config.enabled and not is_loopback(bind_host):
            logger.warning(
                "access control is off and bindAddress=%s is reachable from the network: every client there may "
                "read, write and delete. See docs/how-to/secure.md, or bind to 127.0.0.1",
                bind_host,
            )


def migrate(files: AclFiles, table: AuthTable) -> None:
    """Convert the accounts of 4.x that are not users yet into users, and their permissions into policies."""
    kinds = {
        0: ((Action.ALL,), Decision.DENY),
        1: ((Action.PUB,), Decision.ALLOW),
        2: ((Action.SUB,), Decision.ALLOW),
        3: ((Action.PUB, Action.SUB), Decision.ALLOW),
    }
    for account in files.accounts.values():
        if account.access_key in table.users:
            continue
        kind = UserType.SUPER if account.admin else UserType.NORMAL
        table.store_user(User(account.access_key, account.secret_key, kind))
        named = [("Topic", name, perm) for name, perm in account.topics.items()]
        named += [("Group", name, perm) for name, perm in account.groups.items()]
        defaults = [("Topic", "*", account.default_topic), ("Group", "*", account.default_group)]
        policies = Policies(_entries(named, kinds), _entries(defaults, kinds))
        table.store_policies(account.access_key, policies)
        logger.info("account of plain_acl.yml became a user name=%s type=%s", account.access_key, kind.text)


def _entries(
    perms: Iterable[tuple[str, str, int]], kinds: Mapping[int, tuple[tuple[Action, ...], Decision]]
) -> tuple[Entry, ...]:
    entries = []
    for kind, name, perm in perms:
        resource = Resource.parse(f"{kind}:{name}")
        assert resource is not None, (kind, name)
        entries.append(Entry(resource, *kinds[perm]))
    return tuple(entries)


def acl_home(config: AuthConfig, store_root: str) -> str:
    """Returns the directory whose file ``conf/plain_acl.yml`` contains the access lists of 4.x."""
    return config.home or environment("ROCKETMQ_HOME") or store_root


def _codes(text: str) -> frozenset[str]:
    return frozenset(part.strip() for part in text.split(",") if part.strip())


def is_loopback(host: str) -> bool:
    """Whether a port bound to ``host`` is reachable only from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(bare_host(host)).is_loopback
    except ValueError:
        return False
