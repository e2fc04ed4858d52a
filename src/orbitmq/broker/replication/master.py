"""The master's side of replication (Apache: DefaultHAService, DefaultHAConnection).

Theory of operation
1. Every broker listens on its replication port. A slave connects, reports its log end, and from then on receives
   every byte after it. The transfers never cross a segment and are sent straight from the mapped log.
2. Nothing blocks: an append wakes the links, and a link writes until its socket has ``_UNSENT_BYTES`` unsent, then
   resumes when the socket has room. So a slow slave uses a bounded amount of memory and does not delay the others.
3. A report advances the link's acknowledged end and answers waiting sends (``acks``). It must not exceed what was
   sent on this link. A slave that has more than its master has another history, so it is disconnected and an error is
   logged. Apache would continue and silently let the two logs diverge.
4. An idle link carries heartbeats; a slave that is silent for too long is disconnected.
5. Members of a failover group receive the safe end, with the next transfer or a tenth of a second later, and do not
   let consumers read past it. Before the next transfer they are also notified when topics or groups have changed; a
   member reports nothing after that until it has copied them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import dataclass
from typing import Final, cast

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.failover.mastership import Mastership
from orbitmq.broker.replication.acks import AckWaiters, InSync
from orbitmq.broker.replication.protection import StreamProtection
from orbitmq.broker.replication.stream import (
    ReportReader,
    encode_news,
    encode_safe_end,
    encode_transfer_head,
)
from orbitmq.errors import RemoteProtocolError
from orbitmq.runtime.tasks import TaskOwner, every
from orbitmq.store.message_store import MessageStore
from orbitmq.wire.bodies.stats import HaConnectionRuntimeInfo

__all__ = ["ReplicaGroup", "ReplicaServer", "SlaveLink"]

logger = logging.getLogger(__name__)

_UNSENT_BYTES: Final = 1 << 20
_TURN_BYTES: Final = 1 << 20
"""Bytes that one link writes before other work is served."""
_TICK_S: Final = 0.1
_LINKS_MAX: Final = 64
_HANDSHAKE_S: Final = 5.0


class SlaveLink(asyncio.Protocol):
    """The connection of one slave."""

    def __init__(self, server: ReplicaServer) -> None:
        self._server = server
        self._reader = ReportReader()
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._again = False
        self.has_news = False
        """Whether tables have changed and the slave has not been notified yet."""
        self.address = self._host = ""
        self.member = 0
        """The slave's number in its failover group; 0 for a slave outside a group."""
        self.acknowledged = -1
        """The slave's log end; -1 before its first report."""
        self.next_offset = -1
        """Next offset to send; -1 before the first report."""
        self.second_bytes = 0
        """Bytes sent in the previous second."""
        self._bytes_now = 0
        self._second = 0.0
        self._announced_safe_end = -1
        self.last_read = self.last_write = self._opened = asyncio.get_running_loop().time()

    # -- protocol --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The cast is needed because uvloop's transports are not subclasses.
        self._transport = transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if peer else "unknown"
        self._host = str(peer[0]) if peer else ""
        transport.set_write_buffer_limits(high=_UNSENT_BYTES)
        bound = transport.get_extra_info("socket")
        if bound is not None:
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._server.link_opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._server.link_closed(self)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.pump()

    def data_received(self, data: bytes) -> None:
        self.last_read = asyncio.get_running_loop().time()
        try:
            log_end = self._reader.feed(data)
        except RemoteProtocolError as error:
            self.refuse(str(error))
            return
        if log_end is not None:
            self._reported(log_end)

    # -- sending ---------------------------------------------------------------------------------------

    def _reported(self, log_end: int) -> None:
        store = self._server.store
        if self.next_offset < 0:
            refusal = self._server.protection.refusal(self._reader.hello, self._host)
            refusal = refusal or self._server.peer_refusal(self._reader.greeting)
            if refusal:
                self.refuse(refusal)
                return
            self.member = self._reader.greeting[0] if self._reader.greeting else 0
            self.next_offset = self._server.first_offset(log_end)
            logger.info(
                "slave requests the log slave=%s its_end=%d from=%d our_end=%d",
                self.address,
                log_end,
                self.next_offset,
                store.max_log_offset,
            )
            if log_end > store.max_log_offset:
                self.refuse(f"its log ends at {log_end}, ours at {store.max_log_offset}")
                return
            if self.next_offset < store.min_log_offset:
                self.refuse(f"its log ends at {log_end}, ours begins at {store.min_log_offset}")
                return
        elif log_end > self.next_offset:
            self.refuse(f"it reports {log_end}, but was sent the log up to {self.next_offset} only")
            return
        self.acknowledged = log_end
        self._server.acks.reported()
        self.pump()

    def refuse(self, reason: str) -> None:
        """Disconnect the slave; it reconnects after a few seconds."""
        logger.warning("slave refused slave=%s reason=%s", self.address, reason)
        self.close()

    def close(self) -> None:
        self._paused = True
        if self._transport is not None:
            self._transport.abort()

    def pump(self) -> None:
        """Send the bytes that the slave does not have, as far as its socket has room."""
        transport = self._transport
        if transport is None or self.next_offset < 0:
            return
        store = self._server.store
        batch_bytes = self._server.config.transfer_bytes_max
        left = _TURN_BYTES
        self._tell_news(transport)
        if self.next_offset < store.max_log_offset:
            self._tell_safe(transport)
        while self.next_offset < store.max_log_offset and not self._paused:
            if left <= 0:
                self._later()
                return
            size = min(batch_bytes, self._allowance())
            body = store.log_range(self.next_offset, size)
            if not body:
                if size > 0:
                    self.refuse(f"log offset {self.next_offset} is not in our log any more")
                return
            transport.write(encode_transfer_head(self.next_offset, len(body)))
            transport.write(body)
            self.next_offset += len(body)
            self._bytes_now += len(body)
            left -= len(body)
            self.last_write = self._server.now()

    def _tell_safe(self, transport: asyncio.Transport) -> None:
        if not self.member or self._paused:
            return
        safe = self._server.store.confirm_offset
        if safe > self._announced_safe_end:
            transport.write(encode_safe_end(safe))
            self._announced_safe_end = safe

    def _tell_news(self, transport: asyncio.Transport) -> None:
        if self.has_news and self.member and not self._paused:
            self.has_news = False
            transport.write(encode_news())

    def _later(self) -> None:
        if not self._again:
            self._again = True
            asyncio.get_running_loop().call_soon(self._pump_again)

    def _pump_again(self) -> None:
        self._again = False
        self.pump()

    def _allowance(self) -> int:
        """Returns how many more bytes flow control allows to be sent this second."""
        config = self._server.config
        if not config.replication_flow_control:
            return config.transfer_bytes_max
        return max(0, config.replication_bytes_per_second - self._bytes_now)

    def tick(self, now: float) -> None:
        """Send heartbeats, disconnect a silent slave and reset flow control each second. Called ten times a
        second."""
        config = self._server.config
        if now - self._second >= 1.0:
            self.second_bytes, self._bytes_now, self._second = self._bytes_now, 0, now
        silence_s = config.replication_silence_ms / 1000
        if now - self.last_read > silence_s:
            self.refuse("it is silent")
            return
        if self.next_offset < 0 and now - self._opened > _HANDSHAKE_S:
            self.refuse("it does not report its log")
            return
        self.pump()
        if self._transport is None or self.next_offset < 0 or self._paused:
            return
        self._tell_safe(self._transport)
        if now - self.last_write > config.replication_heartbeat_ms / 1000:
            self._transport.write(encode_transfer_head(self.next_offset, 0))
            self.last_write = now


@dataclass(frozen=True, slots=True)
class ReplicaGroup:
    """What a member of a failover group knows about its slaves."""

    links: list[SlaveLink]
    """The connected slaves, shared with ``in_sync``."""
    in_sync: InSync
    mastership: Mastership


class ReplicaServer:
    """The replication port and the slaves connected to it."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        events: BrokerEvents,
        protection: StreamProtection,
        group: ReplicaGroup | None = None,
    ) -> None:
        """``group`` is given only with failover."""
        self.config = config
        self.store = store
        self.protection = protection
        self.links: list[SlaveLink] = [] if group is None else group.links
        self._mastership = None if group is None else group.mastership
        self.acks = AckWaiters(
            config,
            lambda: [link.acknowledged for link in self.links if link.acknowledged >= 0],
            # The next turn of the loop would serve other senders first, which takes a millisecond or more.
            send_now=self._pump,
            in_sync=None if group is None else group.in_sync,
        )
        self._arrived = events.arrived
        events.tables_changed.append(self._tables_changed)
        self._server: asyncio.Server | None = None
        self._tasks: TaskOwner | None = None
        self._woken = False
        self._accepting = True
        self.tables_copied: set[int] = set()
        """Members of the failover group that have copied topics and groups since their last change."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def start(self, bound: socket.socket) -> None:
        """Listen on a bound socket. Raises ``OSError`` and ``ConfigError``."""
        tls = await self.protection.accepts()
        self._server = await asyncio.get_running_loop().create_server(
            lambda: SlaveLink(self),
            sock=bound,
            ssl=tls,
            ssl_handshake_timeout=_HANDSHAKE_S if tls is not None else None,
        )
        self._tasks = TaskOwner("replication")
        self._tasks.start(every(_TICK_S, self._tick), "links")

    async def stop(self) -> None:
        """Close the port and all links, and answer waiting sends."""
        self._accepting = False
        if self._server is not None:
            self._server.close()
            self._server = None
        self.drop_links()
        if self._tasks is not None:
            await self._tasks.close()
            self._tasks = None
        # One turn of the loop lets the aborted transports report that they have closed.
        await asyncio.sleep(0)

    def drop_links(self) -> None:
        """Disconnect every slave and answer the sends that wait for slaves. The slaves then look for their master
        again."""
        for link in list(self.links):
            link.close()
        self.acks.release_all()

    def _new_bytes(self, _topic: str, _queue_id: int) -> None:
        self._wake()

    def _wake(self) -> None:
        """Send the log's new bytes in the next turn of the loop."""
        if self.links and not self._woken:
            self._woken = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _tables_changed(self) -> None:
        """Notify the members of a failover group in the next turn of the loop, once for many changes in one turn."""
        self.tables_copied.clear()
        for link in self.links:
            link.has_news = True
        self._wake()

    def copied_tables(self, member: int) -> None:
        """Record that a member has the current topics and groups."""
        if any(link.member == member for link in self.links):
            self.tables_copied.add(member)

    def _pump(self) -> None:
        self._woken = False
        for link in list(self.links):
            link.pump()

    def _tick(self) -> None:
        now = self.now()
        for link in list(self.links):
            link.tick(now)

    def peer_refusal(self, greeting: tuple[int, int] | None) -> str:
        """Returns why a slave with that greeting is refused; empty if it is served. With failover only a master
        serves slaves, because a slave that followed another broker would receive bytes that may be truncated
        later."""
        if self._mastership is None:
            return ""
        epoch = self._mastership.epoch
        if not epoch:
            return "this broker is not the master"
        if greeting is not None and greeting[1] != epoch:
            return f"it expects the master of epoch {greeting[1]}, this is the one of {epoch}"
        return ""

    def first_offset(self, log_end: int) -> int:
        """Returns the first log offset to send to a slave whose log ends at ``log_end``. An empty slave gets the
        newest segment, like in Apache, or the whole log if it need not start at the last file or may become
        master."""
        if log_end > 0:
            return log_end
        end = self.store.max_log_offset
        start = end - end % self.store.config.segment_bytes
        if self._mastership is not None or not self.config.new_slave_from_last_file:
            start = self.store.min_log_offset
        return max(start, self.store.min_log_offset)

    def link_opened(self, link: SlaveLink) -> None:
        if not self._accepting:
            link.refuse("the broker stops")
            return
        if len(self.links) >= _LINKS_MAX:
            # Drop a peer that has not reported yet, so that silent connections cannot keep slaves out.
            silent = next((one for one in self.links if one.next_offset < 0), None)
            if silent is None:
                link.refuse(f"there are {_LINKS_MAX} slaves")
                return
            self.links.remove(silent)
            silent.refuse(f"it has not reported, and there are {_LINKS_MAX} connections")
        if self._new_bytes not in self._arrived:
            # First: the slaves are woken before the readers. Without slaves an append costs nothing here.
            self._arrived.insert(0, self._new_bytes)
        self.links.append(link)
        logger.info("slave connected slave=%s count=%d", link.address, len(self.links))

    def link_closed(self, link: SlaveLink) -> None:
        if link in self.links:
            self.links.remove(link)
            if not self.links:
                self._arrived.remove(self._new_bytes)
            logger.info("slave disconnected slave=%s count=%d", link.address, len(self.links))

    # -- status ----------------------------------------------------------------------------------------

    def in_sync(self, link: SlaveLink) -> bool:
        """Whether a slave is close enough to the log end to count, or, with failover, is a member of the in-sync
        set."""
        if self.acks.in_sync is not None:
            return link.member in self.acks.in_sync.members
        gap = self.store.max_log_offset - link.acknowledged
        return link.acknowledged >= 0 and gap < self.config.slave_gap_bytes_max

    def status(self) -> list[HaConnectionRuntimeInfo]:
        """Returns the connected slaves, in the format of GET_BROKER_HA_STATUS."""
        end = self.store.max_log_offset
        return [
            HaConnectionRuntimeInfo(
                addr=link.address,
                diff=end - max(0, link.acknowledged),
                in_sync=self.in_sync(link),
                slave_ack_offset=link.acknowledged,
                transfer_from_where=link.next_offset,
                transferred_byte_in_second=link.second_bytes,
            )
            for link in self.links
        ]
