"""The driver's side of ``mode=transactional``: commits or rolls back half messages.

Tasks store rows as half messages, which consumers do not see. When all tasks of a micro-batch have finished, the
driver records its decision (``prepared.py``), commits every half message, and records completion. If a driver dies
before the decision, its half messages are not committed, and the next attempt sends the rows again. If it dies after
the decision, its successor continues the commits.

Rules
1. Only a decision leads to commits, and only the driver commits. A broker that checks a half message rolls
   it back once its micro-batch is over (brokers may check a copy of a committed one). Before that the outcome is
   UNKNOWN.
2. A commit without an answer may have happened, and a broker that receives a commit twice may store the message
   twice. So before a commit is retried, the queues are read from where they ended at the time of the decision, and
   rows found there are skipped. Requests of a dead driver are first given some seconds to arrive.
3. A half message without a check stays as it is. A broker eventually stops checking it, but a commit still
   finds it for as long as the log is retained.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from orbitmq.client.callables import UserCalls
from orbitmq.client.message import ReceivedMessage, TransactionState
from orbitmq.client.options import ProducerOptions
from orbitmq.client.produce.transactions import Transactions
from orbitmq.client.settings import ClientSettings
from orbitmq.client.sync import PullConsumer
from orbitmq.codes import ResponseCode
from orbitmq.errors import OrbitError, RequestTimeoutError, SystemBusy, error_for_code
from orbitmq.model.route import MessageQueue
from orbitmq.requests import RequestCode
from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock
from orbitmq.spark.connections import DEFAULT_GROUP
from orbitmq.spark.options import Access
from orbitmq.spark.sink.bulk import Ask, ask_brokers
from orbitmq.spark.sink.prepared import Decision, Half
from orbitmq.spark.sink.send import SinkClient
from orbitmq.transport.router import RawRoute, Route
from orbitmq.wire.frame import encode_binary_fields
from orbitmq.wire.headers import CheckTransactionStateRequest, EndTransactionRequest

__all__ = ["BATCH_PROPERTY", "Committer", "batch_mark", "end_all", "roll_back"]

logger = logging.getLogger(__name__)

BATCH_PROPERTY: Final = "SPARK_BATCH"
"""Property of a half message that names its query and micro-batch."""
SETTLE_S: Final = 3.0
"""How long requests of a dead driver may take to be executed."""
_BUSY_PAUSE_S: Final = 0.1
CALL_TIMEOUT_S: Final = 10.0
_PULL_COUNT: Final = 1000
_PART: Final = 10_000
"""The maximum number of half messages to commit or roll back together. It limits the memory of their requests."""


def batch_mark(query: str, batch: int) -> str:
    """Returns the value of ``BATCH_PROPERTY`` for a micro-batch."""
    return f"{query}/{batch}"


class Committer(SinkClient):
    """Commits or rolls back half messages on the driver, and answers brokers that check their outcome."""

    def __init__(
        self, group: str, access: Access, options: ProducerOptions, settings: ClientSettings
    ) -> None:
        self._settings = settings
        self._over: dict[str, int] = {}
        """The last finished micro-batch of each query."""
        self._reader: PullConsumer | None = None
        self._lock = threading.Lock()
        super().__init__(group, access, options)

    async def _open(self) -> None:
        await super()._open()
        calls = UserCalls(1, "orbitmq-spark-checks")
        self._transactions = Transactions(self.instance, self.sender, self._judge, calls)

    def _routes(self) -> list[Route | RawRoute]:
        return [
            Route(
                RequestCode.CHECK_TRANSACTION_STATE,
                lambda call: self._transactions.asked(call),
                CheckTransactionStateRequest,
            )
        ]

    def close(self) -> None:
        with self._lock:
            reader, self._reader = self._reader, None
        try:
            if reader is not None:
                reader.stop()
        finally:
            super().close()

    async def _judge(self, message: ReceivedMessage) -> TransactionState:
        query, _, batch = (message.get(BATCH_PROPERTY) or "").rpartition("/")
        over = batch.isdecimal() and int(batch) <= self._over.get(query, -1)
        return TransactionState.ROLLBACK if over else TransactionState.UNKNOWN

    def note_over(self, query: str, batch: int) -> None:
        """Answers checks of half messages of this and earlier micro-batches with a rollback from now on."""
        self._over[query] = max(batch, self._over.get(query, -1))

    def greet(self, topics: Iterable[str]) -> None:
        """Registers with the brokers of some topics, so that they know the client to send checks to."""

        async def known() -> None:
            for topic in topics:
                await self.sender.pick(topic)
            await self.instance.ensure_known()

        self.loop.run(known())

    # -- queue ends ------------------------------------------------------------------------------------

    def _pulls(self) -> PullConsumer:
        with self._lock:
            if self._reader is None:
                self._reader = PullConsumer(DEFAULT_GROUP, self.access.name_servers, **self._settings)
                self._reader.start()
            return self._reader

    def ends(self, halves: Sequence[Half]) -> dict[MessageQueue, int]:
        """Returns the current end offset of the queues of some half messages. Raises ``OrbitError``."""
        queues = sorted({(half.topic, half.broker, half.queue_id) for half in halves})
        pulls = self._pulls()
        found = {}
        for topic, broker, queue_id in queues:
            queue = MessageQueue(topic=topic, broker_name=broker, queue_id=queue_id)
            found[queue] = pulls.max_offset(queue)
        return found

    def committed(self, starts: Mapping[MessageQueue, int], keys: frozenset[str]) -> Counter[str]:
        """Counts how often each of the keys occurs in the queues from their start offsets on. Raises
        ``OrbitError``."""
        pulls = self._pulls()
        found: Counter[str] = Counter()
        for queue, start in starts.items():
            offset, end = max(start, pulls.min_offset(queue)), pulls.max_offset(queue)
            while offset < end:
                result = pulls.pull(queue, offset, _PULL_COUNT)
                found.update(one.message_id for one in result.messages if one.message_id in keys)
                if result.next_offset <= offset:
                    break
                offset = result.next_offset
        return found

    # -- ending a micro-batch --------------------------------------------------------------------------

    def finish(
        self, decision: Decision, timeout_s: float, *, resumed: bool, clock: Clock = SYSTEM_CLOCK
    ) -> int:
        """Commits every half message of a decision once. Returns the number that this call committed.

        Set ``resumed`` if another driver may have started the commits. Raises ``RequestTimeoutError`` if brokers do
        not answer in time; the same decision can then be finished later.
        """
        deadline = clock.monotonic() + timeout_s
        missing: Sequence[Half] = decision.halves
        total = 0
        doubtful = resumed
        while True:
            try:
                if doubtful:
                    threading.Event().wait(SETTLE_S)
                    missing = self._not_committed(decision, missing)
                failed = end_all(self, missing, TransactionState.COMMIT)
            except OrbitError as error:  # the queues could not be read
                failed = [(half, error) for half in missing]
            total += len(missing) - len(failed)
            if not failed:
                return total
            if clock.monotonic() >= deadline:
                half, reason = failed[0]
                raise RequestTimeoutError(
                    f"{len(failed)} of {len(decision.halves)} rows were not committed within {timeout_s:g} s "
                    f"(sendTimeoutMs), as the one for {half.topic}/{half.broker}/{half.queue_id}: {reason}. "
                    f"They are decided: the query commits them when it starts again"
                )
            logger.warning("commits failed count=%d error=%s", len(failed), failed[0][1])
            missing = [half for half, _ in failed]
            # A busy broker has refused the commit, so it cannot have happened.
            doubtful = not all(isinstance(error, SystemBusy) for _, error in failed)
            if not doubtful:
                threading.Event().wait(_BUSY_PAUSE_S)

    def _not_committed(self, decision: Decision, halves: Sequence[Half]) -> list[Half]:
        found = self.committed(decision.starts, frozenset(half.key for half in halves))
        missing = []
        for half in halves:
            if found[half.key] > 0:
                found[half.key] -= 1
            else:
                missing.append(half)
        return missing


def roll_back(client: SinkClient, halves: Sequence[Half]) -> None:
    """Rolls back half messages. A broker that does not receive this discards them later."""
    try:
        failed = end_all(client, halves, TransactionState.ROLLBACK)
    except OrbitError as error:
        failed = [(half, error) for half in halves]
    if failed:
        logger.info("half messages not rolled back count=%d error=%s", len(failed), failed[0][1])


def end_all(
    client: SinkClient, halves: Sequence[Half], state: TransactionState
) -> list[tuple[Half, OrbitError]]:
    """Commits or rolls back half messages, and returns those that failed, each with its error.

    Rows with a chosen queue are committed one at a time, in order, up to the first that fails.
    """
    ends = _Ends(client, state)
    lanes: dict[MessageQueue, list[Half]] = defaultdict(list)
    free: list[Half] = []
    for half in halves:
        if half.placed and state is TransactionState.COMMIT:
            lanes[half.queue].append(half)
        else:
            free.append(half)
    topics = {half.topic for half in halves}
    for topic in topics:
        client.queues(topic)  # finds the route
    for start in range(0, len(free), _PART):
        ends.send(free[start : start + _PART])
    for lane in lanes.values():
        lane.sort(key=lambda half: (half.partition, half.row), reverse=True)
    while lanes:
        stopped = {half.queue: error for half, error in ends.send([lane.pop() for lane in lanes.values()])}
        for queue, error in stopped.items():
            ends.failed += [(half, error) for half in lanes[queue]]
        lanes = defaultdict(list, {q: lane for q, lane in lanes.items() if lane and q not in stopped})
    for topic in {half.topic for half, _ in ends.failed}:
        try:
            client.loop.run(client.instance.book.refresh(topic))
        except OrbitError as error:
            logger.info("route not refreshed topic=%s error=%s", topic, error)
    return ends.failed


class _Ends:
    """Sends commits or rollbacks of half messages. Once a broker has not answered, nothing more is sent to it."""

    def __init__(self, client: SinkClient, state: TransactionState) -> None:
        self._client = client
        self._state = state
        self._down: dict[str, OrbitError] = {}
        self.failed: list[tuple[Half, OrbitError]] = []

    def send(self, halves: Sequence[Half]) -> list[tuple[Half, OrbitError]]:
        """Sends the requests and returns the half messages that failed, which are also added to ``failed``."""
        failed: list[tuple[Half, OrbitError]] = []
        sent: list[Half] = []
        asks: list[Ask] = []
        for half in halves:
            try:
                if half.broker in self._down:
                    raise self._down[half.broker]
                asks.append(self._ask(half))
                sent.append(half)
            except OrbitError as error:
                failed.append((half, error))
        for half, outcome in zip(sent, ask_brokers(asks, self._client.access, CALL_TIMEOUT_S), strict=True):
            if isinstance(outcome, OrbitError):
                self._down[half.broker] = outcome
                failed.append((half, outcome))
            elif outcome.code != ResponseCode.SUCCESS:
                failed.append((half, error_for_code(outcome.code, outcome.remark)))
        self.failed += failed
        return failed

    def _ask(self, half: Half) -> Ask:
        header = EndTransactionRequest(
            producer_group=self._client.group,
            tran_state_table_offset=half.half_offset,
            commit_log_offset=half.log_offset,
            commit_or_rollback=self._state.value,
            msg_id=half.key,
            transaction_id=half.key,
            topic=half.topic,
            broker_name=half.broker,
        )
        instance = self._client.instance
        fields = encode_binary_fields(instance.fields(header))
        return Ask(instance.master(half.broker), RequestCode.END_TRANSACTION, fields)
