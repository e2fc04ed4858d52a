"""Half messages: ending them, and checking back with producers (Apache: ClusterTransactionService).

A broker answers a half message with its position, but a client ends it by transaction id alone. The proxy keeps the
positions of the last half minute, and learns others when a broker checks back. A broker that checks has stored the
half message again. If it were ended at an older position, the new one would remain open, and a second answer would
commit the message twice. So only the most recently checked position is kept.

A half message is unknown to this proxy if the proxy restarted or another proxy sent the message. It is then looked up
by id in the brokers' indexes. A transaction that this proxy has ended is not looked up again, because an Apache
broker commits a half message as often as it is requested to.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

import msgspec

from orbitmq.codes import SysFlag
from orbitmq.errors import OrbitError, RecordError
from orbitmq.model.names import HALF_TOPIC
from orbitmq.proxy.brokers import Brokers
from orbitmq.proxy.clients import Client, Clients
from orbitmq.proxy.config import ProxyConfig
from orbitmq.proxy.messages import delivered
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb
from orbitmq.proxy.statuses import Refused
from orbitmq.record.codec import decode_record, decode_records
from orbitmq.requests import RequestCode
from orbitmq.runtime.clock import Clock
from orbitmq.runtime.tasks import TaskOwner
from orbitmq.transport.router import Call
from orbitmq.wire.bodies import HeartbeatData, ProducerData
from orbitmq.wire.headers import (
    CheckTransactionStateRequest,
    EndTransactionRequest,
    HeartBeatRequest,
    QueryMessageRequest,
)

__all__ = ["HalfMessage", "Transactions"]

logger = logging.getLogger(__name__)

_REAL_TOPIC: Final = b"REAL_TOPIC"
CLIENT_ID: Final = "rmq-proxy-producer-client"
_PLACES_PER_ID: Final = 15
_IDS_MAX: Final = 200_000
_TOPICS_MAX: Final = 10_000
_FOUND_MAX: Final = 32
_LOOK_BACK_MS: Final = 2 * 3_600_000
"""How far back a half message is searched for. A producer has an hour to end a transaction
(maxTransactionRecoverySecond); after that the broker checks back for a while.
"""
_RESOLUTIONS: Final[dict[int, int]] = {
    pb.COMMIT: int(SysFlag.TRANSACTION_COMMIT),
    pb.ROLLBACK: int(SysFlag.TRANSACTION_ROLLBACK),
}


class HalfMessage(msgspec.Struct, frozen=True, gc=False):
    """The position of a half message."""

    address: str
    queue_offset: int
    log_offset: int
    expires_ms: int


class Transactions:
    """Ends half messages for clients and forwards brokers' checks to producers."""

    def __init__(
        self,
        config: ProxyConfig,
        clients: Clients,
        brokers: Brokers,
        *,
        clock: Clock,
        tasks: TaskOwner,
        may_publish: Callable[[Client, str], bool],
    ) -> None:
        """``may_publish`` returns whether a producer's user may currently send to a topic."""
        self._config = config
        self._brokers = brokers
        self._may_publish = may_publish
        brokers.checks.append(self._check)
        self._clients = clients
        self._clock = clock
        self._tasks = tasks
        self._half: OrderedDict[tuple[str, str], deque[HalfMessage]] = OrderedDict()
        self._ended: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Transactions whose outcome this proxy forwarded, oldest first."""
        self._topics: set[str] = set()
        self._announced: set[tuple[str, str]] = set()

    def note(self, topic: str, transaction_id: str, address: str, queue_offset: int, log_offset: int) -> None:
        """Record the position of a stored half message."""
        key = (topic, transaction_id)
        self._ended.pop(key, None)
        places = self._half.get(key)
        if places is None:
            while len(self._half) >= _IDS_MAX:
                self._half.popitem(last=False)
            places = self._half[key] = deque(maxlen=_PLACES_PER_ID)
        else:
            self._half.move_to_end(key)
        expires_ms = self._clock.now_ms() + self._config.transaction_data_ms
        places.append(HalfMessage(address, queue_offset, log_offset, expires_ms))

    def note_asked(
        self, topic: str, transaction_id: str, address: str, queue_offset: int, log_offset: int
    ) -> None:
        """Record the position that a broker checks. Earlier positions become invalid."""
        self._half.pop((topic, transaction_id), None)
        self.note(topic, transaction_id, address, queue_offset, log_offset)

    async def end(self, request: pb.EndTransactionRequest) -> None:
        """Forward the outcome of a transaction to its broker. Raises ``Refused`` or ``OrbitError``."""
        topic = request.topic.name
        key = (topic, request.transaction_id)
        places = self._half.get(key)
        now_ms = self._clock.now_ms()
        while places and places[0].expires_ms <= now_ms:
            places.popleft()
        if places:
            half = places.pop()
        else:
            found = await self._find(topic, request.transaction_id) if key not in self._ended else None
            if found is None:
                self._half.pop(key, None)
                raise Refused(pb.INTERNAL_SERVER_ERROR, "cannot found transaction data")
            half = found
        if not self._half.get(key):
            self._half.pop(key, None)
        self._note_ended(key)
        header = EndTransactionRequest(
            producer_group=topic,
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=half.log_offset,
            commit_or_rollback=_RESOLUTIONS.get(request.resolution, 0),
            msg_id=request.message_id,
            from_transaction_check=request.source == pb.SOURCE_SERVER_CHECK,
            transaction_id=request.transaction_id,
            topic=topic,
        )
        await self._brokers.tell(half.address, RequestCode.END_TRANSACTION, header)

    def _note_ended(self, key: tuple[str, str]) -> None:
        self._ended[key] = None
        self._ended.move_to_end(key)
        if len(self._ended) > _IDS_MAX:
            self._ended.popitem(last=False)

    async def _find(self, topic: str, transaction_id: str) -> HalfMessage | None:
        """Returns the newest half message with this id in the indexes of all brokers, or None if there is none."""
        now_ms = self._clock.now_ms()
        header = QueryMessageRequest(
            topic=HALF_TOPIC,
            key=transaction_id,
            max_num=_FOUND_MAX,
            begin_timestamp=now_ms - _LOOK_BACK_MS,
            end_timestamp=now_ms + _LOOK_BACK_MS,
            unique_key_query=True,
            index_type="U",
        )
        addresses = sorted(await self._brokers.find_brokers())
        found = await asyncio.gather(*(self._find_at(address, header, topic) for address in addresses))
        places = [place for places in found for place in places]
        return max(places, key=lambda place: place.log_offset, default=None)

    async def _find_at(self, address: str, header: QueryMessageRequest, topic: str) -> list[HalfMessage]:
        try:
            answer = await self._brokers.ask(address, RequestCode.QUERY_MESSAGE, header)
            records = decode_records(answer.body, check_crc=False)
        except OrbitError as error:
            logger.debug("half message not found broker=%s id=%s error=%s", address, header.key, error)
            return []
        return [
            HalfMessage(address, record.queue_offset, record.log_offset, 0)
            for record in records
            if record.unique_key == header.key
            and record.topic == HALF_TOPIC
            and record.find(_REAL_TOPIC) == topic.encode()
        ]

    def expire(self) -> None:
        """Drop expired positions. They are ordered oldest first, so this stops early."""
        now_ms = self._clock.now_ms()
        while self._half:
            key, places = next(iter(self._half.items()))
            if places and places[-1].expires_ms > now_ms:
                return
            del self._half[key]

    # -- announcing our topics to brokers --------------------------------------------------------------

    def serve(self, topic: str) -> None:
        """Accept brokers' checks for transactions of this topic from now on."""
        if topic not in self._topics and len(self._topics) < _TOPICS_MAX:
            self._topics.add(topic)
            self._tasks.start(self.heartbeat(), "transaction-heartbeat")

    async def heartbeat(self) -> None:
        """Announce to all brokers the topics whose transactions this proxy checks."""
        if not self._topics:
            return
        body = HeartbeatData(
            client_id=CLIENT_ID,
            producer_data_set=[ProducerData(group_name=topic) for topic in sorted(self._topics)],
        ).encode()
        addresses = await self._brokers.find_brokers()
        await asyncio.gather(*(self._heartbeat_to(address, body) for address in addresses))

    async def _heartbeat_to(self, address: str, body: bytes) -> None:
        try:
            await self._brokers.ask(address, RequestCode.HEART_BEAT, HeartBeatRequest(), body)
        except OrbitError as error:
            logger.info("heartbeat failed broker=%s error=%s", address, error)

    def _check(self, call: Call[CheckTransactionStateRequest]) -> None:
        """Forward a broker's check of a half message to one of the topic's producers."""
        header = call.header
        try:
            record = decode_record(call.body)
        except RecordError as error:
            logger.warning("transaction check cannot be read peer=%s error=%s", call.peer.remote_text, error)
            return
        topic = record.topic
        transaction_id = header.transaction_id or record.unique_key or ""
        producers = [one for one in self._clients.producers(topic) if self._may_publish(one, topic)]
        if not producers:
            logger.info("no producer to check topic=%s transaction=%s", topic, transaction_id)
            return
        self.note_asked(
            topic,
            transaction_id,
            call.peer.remote_text,
            header.tran_state_table_offset,
            header.commit_log_offset,
        )
        command = pb.TelemetryCommand()
        recover = command.recover_orphaned_transaction_command
        recover.transaction_id = transaction_id
        recover.message.CopyFrom(delivered(record, topic, handle=None))
        random.choice(producers).send(command)
