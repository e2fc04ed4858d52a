"""The slave's side of replication (Apache: DefaultHAClient).

Theory of operation
1. ``Follower`` keeps one connection to the master's replication port and reconnects when it is lost.
2. Before each connection the two logs are compared (``log_prefix``). A slave does not follow a master with another
   history.
3. Received bytes are checked, appended at the same offset as in the master's log, dispatched, and then reported. A
   transfer that does not continue our log ends the connection. A damaged record also ends it, and our log then ends
   before that record.
4. Reported bytes are written but not necessarily flushed, as in Apache. A member of a failover group whose master
   runs under SYNC_FLUSH reports only what it has flushed (``Membership.reports_flushed``). It requests a flush from
   the store's sync thread as soon as bytes arrive, and all bytes that arrive during one flush share the next.
5. Once notified of changed topics or groups, a member reports nothing new until it has copied them, so that no
   message is acknowledged before the members know its topic.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, cast

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.replication.protection import StreamProtection
from orbitmq.broker.replication.stream import TransferReader, encode_hello, encode_report
from orbitmq.errors import ConnectionLostError, CorruptionError, OrbitError, RemoteProtocolError
from orbitmq.runtime.clock import Clock
from orbitmq.runtime.tasks import TaskOwner, every
from orbitmq.store.errors import StoreError
from orbitmq.store.message_store import MessageStore
from orbitmq.transport.client import split_address
from orbitmq.wire.bodies.stats import HaClientRuntimeInfo

__all__ = ["Follower", "MasterLink", "Membership"]

logger = logging.getLogger(__name__)

_CONNECT_S: Final = 5.0
_RETRY_S: Final = 0.5
_RETRY_S_MAX: Final = 5.0
_TICK_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Membership:
    """How a member of a failover group follows the master of one epoch."""

    greeting: bytes
    """Sent before the first report."""
    on_safe: Callable[[int], None]
    """Called with the safe end, up to which the whole in-sync set has the log."""
    reports_flushed: bool = False
    """Whether reported bytes must be flushed, not only written."""


class MasterLink(asyncio.Protocol):
    """The connection to the master."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        clock: Clock,
        tables_changed: Callable[[], None],
        hello: bytes = b"",
        member: Membership | None = None,
    ) -> None:
        """``tables_changed`` is called when the master's tables have changed. ``hello`` is sent first, then the
        greeting of ``member``. With ``reports_flushed`` our log must already be flushed."""
        self._config = config
        self._store = store
        self._clock = clock
        self._greeting = hello if member is None else hello + member.greeting
        self._on_safe = None if member is None else member.on_safe
        self._reports_flushed = member is not None and member.reports_flushed
        self._flushing = False
        self._tables_due = False
        """Whether the master's tables have changed and are not copied yet."""
        self._is_connected = member is None
        self._tables_changed = tables_changed
        self._reader = TransferReader(for_member=member is not None)
        self._transport: asyncio.Transport | None = None
        self._reported = -1
        self._read_at = self._written_at = asyncio.get_running_loop().time()
        self.last_read_ms = self.last_write_ms = 0
        self.second_bytes = 0
        self._bytes_now = 0
        self._second = 0.0
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Completed with the reason when the connection has ended."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The cast is needed because uvloop's transports are not subclasses.
        self._transport = transport = cast(asyncio.Transport, transport)
        bound = transport.get_extra_info("socket")
        if bound is not None:
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._greeting:
            transport.write(self._greeting)
        self._report(self._reportable_end)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._ended(str(error) if error is not None else "closed by the master")

    def data_received(self, data: bytes) -> None:
        self._read_at = asyncio.get_running_loop().time()
        self.last_read_ms = self._clock.now_ms()
        self._bytes_now += len(data)
        if self.closed.done():
            return
        try:
            self._take_all(data)
        except (RemoteProtocolError, StoreError) as error:
            self.close(str(error))
            return
        except CorruptionError as error:
            logger.error("the master sent invalid log data reason=%s", error)
            self.close(str(error))
            return
        # The first bytes show that the master has registered this link and will notify it of changes.
        if self._reader.take_news() or not self._is_connected:
            self._is_connected = True
            self._tables_due = True
            self._tables_changed()
        self._report_progress()
        if self._on_safe is not None and self._reader.safe_end >= 0:
            self._on_safe(self._reader.safe_end)

    def _take_all(self, data: bytes) -> None:
        """Append all transfers of one read together, because the store handles a few large pieces faster than many of
        32 KiB."""
        pieces: list[memoryview] = []
        start = end = self._store.max_log_offset
        for log_offset, body in self._reader.feed(data):
            if end == 0 and not pieces:
                start = end = log_offset  # the log of a new slave begins at the master's offset
            if log_offset != end:
                raise RemoteProtocolError(f"a transfer at log offset {log_offset}, our log ends at {end}")
            if body:
                pieces.append(body)
                end += len(body)
        if pieces:
            self._append(start, pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def _append(self, log_offset: int, body: bytes | memoryview) -> None:
        try:
            self._store.append_raw(log_offset, body)
        except CorruptionError:
            self._store.truncate(self._store.whole_log_offset)
            raise

    @property
    def _reportable_end(self) -> int:
        return self._store.flushed_offset if self._reports_flushed else self._store.max_log_offset

    def _report_progress(self) -> None:
        """Report new progress, and request a flush if bytes must be flushed before they can be reported."""
        if self._reportable_end > self._reported and not self._tables_due:
            self._report(self._reportable_end)
        end = self._store.max_log_offset
        if self._reports_flushed and not self._flushing and end > self._store.flushed_offset:
            self._flushing = True
            self._store.when_flushed(end, self._flushed)

    def _flushed(self, done: bool) -> None:
        """Called after a flush. A failed flush is retried at the next transfer or tick; until then the new bytes stay
        unreported."""
        self._flushing = False
        if done and not self.closed.done():
            self._report_progress()

    def tables_copied(self) -> None:
        """Resume reporting: our tables match the master's as of its last notification."""
        self._tables_due = False
        self._report_progress()

    def _report(self, log_end: int) -> None:
        if self._transport is not None:
            self._reported = log_end
            self._transport.write(encode_report(self._reported))
            self._written_at = asyncio.get_running_loop().time()
            self.last_write_ms = self._clock.now_ms()

    def tick(self) -> None:
        """Send a heartbeat on an idle link, and disconnect from a silent master."""
        now = asyncio.get_running_loop().time()
        if now - self._second >= 1.0:
            self.second_bytes, self._bytes_now, self._second = self._bytes_now, 0, now
        if now - self._read_at > self._config.replication_silence_ms / 1000:
            self.close("the master is silent")
            return
        self._report_progress()
        if now - self._written_at > self._config.replication_heartbeat_ms / 1000:
            self._report(self._reported)

    def close(self, reason: str) -> None:
        self._ended(reason)
        if self._transport is not None:
            self._transport.abort()

    def _ended(self, reason: str) -> None:
        if not self.closed.done():
            self.closed.set_result(reason)


class Follower:
    """Follows a master while this broker is a slave."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        clock: Clock,
        agree: Callable[[str], Awaitable[Membership | None]],
        events: BrokerEvents,
        protection: StreamProtection,
    ) -> None:
        """``agree`` ensures that our log is a prefix of the log of the master with the given request address (empty
        if unknown). It returns how a member of a failover group follows, and raises ``OrbitError`` if that master
        cannot be followed."""
        self._config = config
        self._store = store
        self._clock = clock
        self._agree = agree
        self._tasks: TaskOwner | None = None
        self._changed = asyncio.Event()
        self.link: MasterLink | None = None
        self.master_address = ""
        """The master's request address."""
        self.ha_address = ""
        """The master's replication address."""
        self._protection = protection
        self._lost = events.master_lost
        self._tables_changed = events.master_tables_changed
        events.tables_copied.append(self._tables_copied)

    def master_announced(self, master_address: str, ha_address: str) -> None:
        """Set the master's current addresses. A fixed address in the config takes precedence."""
        fixed = self._config.fixed_ha_address
        ha_address = fixed or ha_address
        if (master_address, ha_address) == (self.master_address, self.ha_address):
            return
        logger.info("master found address=%s ha_address=%s", master_address, ha_address)
        self.master_address = master_address
        if ha_address != self.ha_address:
            self.ha_address = ha_address
            if self.link is not None:
                self.link.close("the master moved")
        self._changed.set()

    def _tables_copied(self) -> None:
        if self.link is not None:
            self.link.tables_copied()

    def start(self) -> None:
        if self._tasks is None:
            self.ha_address = self._config.fixed_ha_address
            self._tasks = TaskOwner("follower")
            self._tasks.start(self._run(), "stream")
            self._tasks.start(every(_TICK_S, self._tick), "heartbeat")

    async def stop(self) -> None:
        """Stop following and drop a partial record."""
        if self._tasks is None:
            return
        tasks, self._tasks = self._tasks, None
        if self.link is not None:
            self.link.close("this broker follows no more")
        await tasks.close()
        self.master_address = self.ha_address = ""
        self._store.end_replication()
        # One turn of the loop lets the aborted transport report that it has closed.
        await asyncio.sleep(0)

    def _tick(self) -> None:
        if self.link is not None:
            self.link.tick()

    async def _run(self) -> None:
        failures = 0
        while True:
            pause_s = _RETRY_S_MAX
            if self.ha_address:
                reason, lived = await self._follow()
                self._lost()
                failures = 0 if lived else failures + 1
                pause_s = min(_RETRY_S_MAX, _RETRY_S * 2 ** min(failures, 10))
                # Warn once per outage, because a master may be down for days.
                level = logging.WARNING if failures <= 1 else logging.DEBUG
                logger.log(level, "not following ha_address=%s reason=%s", self.ha_address, reason)
            try:
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()

    async def _follow(self) -> tuple[str, bool]:
        """Run one connection until it ends. Returns why it ended, and whether it transferred anything useful."""
        try:
            # The master resumes at our log end, so our log must end with a whole record that the master has too.
            self._store.end_replication()
            member = await self._agree(self.master_address)
            link = await self._connect(member)
        except (OrbitError, OSError, TimeoutError) as error:
            return str(error) or "timed out", False
        self.link = link
        self._tables_changed()
        loop = asyncio.get_running_loop()
        began, start = loop.time(), self._store.max_log_offset
        logger.info("following ha_address=%s from=%d", self.ha_address, start)
        try:
            reason = await link.closed
        finally:
            self.link = None
            link.close("left")
        return reason, self._store.max_log_offset > start or loop.time() - began > _RETRY_S_MAX

    async def _connect(self, member: Membership | None) -> MasterLink:
        host, port = split_address(self.ha_address)
        loop = asyncio.get_running_loop()
        hello = self._protection.hello()
        first = b"" if hello is None else encode_hello(hello)
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, link = await loop.create_connection(
                    lambda: MasterLink(
                        self._config, self._store, self._clock, self._tables_changed, first, member
                    ),
                    host,
                    port,
                    ssl=self._protection.client,
                )
        except ValueError as error:  # a host name no resolver can take
            raise ConnectionLostError(f"cannot connect to {self.ha_address}: {error}") from None
        return link

    def status(self) -> HaClientRuntimeInfo:
        """Returns the state of the connection to the master, in the format of GET_BROKER_HA_STATUS."""
        link = self.link
        return HaClientRuntimeInfo(
            activated=link is not None,
            last_read_timestamp=0 if link is None else link.last_read_ms,
            last_write_timestamp=0 if link is None else link.last_write_ms,
            master_addr=self.ha_address,
            max_offset=self._store.max_log_offset,
            transferred_byte_in_second=0 if link is None else link.second_bytes,
        )
