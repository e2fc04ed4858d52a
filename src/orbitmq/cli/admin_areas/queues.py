"""Commands that read messages from queues and send messages to them."""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Final

import click

from orbitmq.admin import Admin, Result, messages, reading, sending
from orbitmq.cli.admin_kit.declare import Args, Command, Flag, group_flag, topic_flag
from orbitmq.cli.admin_kit.output import Lines, Part, flat, java_map, table
from orbitmq.cli.admin_kit.times import parse_time
from orbitmq.model.route import MessageQueue

__all__ = ["COMMANDS"]

_CHARSET: Final = Flag(names=("-c", "--charsetName"), help="Encoding of the bodies [UTF-8].")
_EXPRESSION: Final = Flag(names=("-s", "--subExpression"), help="Only these tags: TagA || TagB.")
_BEGIN: Final = Flag(
    names=("-b", "--beginTimestamp"), help="Stored at or after: milliseconds or yyyy-MM-dd#HH:mm:ss:SSS."
)
_END: Final = Flag(
    names=("-e", "--endTimestamp"), help="Stored before: milliseconds or yyyy-MM-dd#HH:mm:ss:SSS."
)
_QUEUE: Final = Flag(names=("-i", "--queueId"), help="Queue.", kind=int)


class TagCount(Result, kw_only=True):
    tag: str
    count: int


class TagCounts(Result, kw_only=True):
    tags: list[TagCount]


# -- reading -----------------------------------------------------------------------------------------------


def _plan(admin: Admin, args: Args, **more: Any) -> reading.ReadPlan:
    if (encoding := args.get("charsetName")) is not None:
        try:
            codecs.lookup(encoding)
        except LookupError:
            raise click.UsageError(f"{encoding!r} is not a known encoding; try UTF-8 or GBK") from None
    now_ms = admin.clock.now_ms()
    begin, end = args["beginTimestamp"], args["endTimestamp"]
    return reading.ReadPlan(
        topic=args["topic"],
        expression=args.get("subExpression") or "*",
        begin_ms=None if begin is None else parse_time(begin, now_ms),
        end_ms=None if end is None else parse_time(end, now_ms),
        **more,
    )


def _message_line(message: messages.MessageView, body: str) -> str:
    fields = {
        "brokerName": message.broker_name,
        "queueId": message.queue_id,
        "storeSize": message.store_size,
        "queueOffset": message.queue_offset,
        "sysFlag": message.sys_flag,
        "bornTimestamp": message.born_timestamp,
        "bornHost": message.born_host,
        "storeTimestamp": message.store_timestamp,
        "storeHost": message.store_host,
        "msgId": message.offset_msg_id,
        "commitLogOffset": message.commit_log_offset,
        "bodyCRC": message.body_crc,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "topic": message.topic,
        "flag": message.flag,
        "properties": java_map(message.properties),
    }
    told = ", ".join(f"{key}={flat(value)}" for key, value in fields.items())
    return f"MSGID: {message.message_id} [{told}] BODY: {body}"


def _slice_view(part: reading.QueueSlice | TagCounts, args: Args) -> list[Part]:
    if isinstance(part, TagCounts):
        return [Lines([f"Tag: {row.tag:<30} Count: {row.count}" for row in part.tags])]
    if not part.messages:
        place = f"topic={part.topic}, brokerName={part.broker_name}, queueId={part.queue_id}"
        return [Lines([f"minOffset={part.min_offset}, maxOffset={part.max_offset}, {place}"])]
    if args.get("printMsg", True) is not True:
        return []
    encoding = args.get("charsetName") or "UTF-8"
    shown = args.get("printBody") is not False
    return [
        Lines(
            [
                _message_line(one, messages.body_bytes(one).decode(encoding, "replace") if shown else "-")
                for one in part.messages
            ]
        )
    ]


def _print_all(admin: Admin, args: Args) -> AsyncIterator[Result]:
    return reading.read_topic(admin, _plan(admin, args, route_topic=args["lmqParentTopic"] or ""))


async def _print_queue(admin: Admin, args: Args) -> AsyncIterator[Result]:
    counts: Counter[str] = Counter()
    plan = _plan(admin, args, broker_name=args["brokerName"], queue_id=args["queueId"])
    async for part in reading.read_topic(admin, plan):
        counts.update(message.tags for message in part.messages if message.tags)
        if args["printMsg"]:
            yield part
    if args["calculate"]:
        yield TagCounts(tags=[TagCount(tag=tag, count=count) for tag, count in counts.most_common()])


def _consume(admin: Admin, args: Args) -> AsyncIterator[Result]:
    if args["queueId"] is not None and args["brokerName"] is None:
        raise click.UsageError("a queue (-i) needs its broker (-b)")
    if args["offset"] is not None and args["queueId"] is None:
        raise click.UsageError("an offset (-o) needs its queue (-i)")
    plan = _plan(
        admin,
        args,
        broker_name=args["brokerName"],
        queue_id=args["queueId"],
        start_offset=args["offset"] or 0,
        count_max=args["MessageNumber"] or 128,
        group=args["consumerGroup"] or reading.TOOLS_GROUP,
    )
    return reading.read_topic(admin, plan)


def _cq_view(result: reading.QueueData, args: Args) -> list[Part]:
    lines = []
    if result.subscription is not None:
        told = " ".join(f"{key}={flat(value)}" for key, value in result.subscription.items())
        lines += [f"Subscription data: {told}", f"Filter data: {result.filter_data}"]
    lines.append(f"Queue data: max: {result.max_queue_index}, min: {result.min_queue_index}")
    columns = {
        "idx": "index",
        "physicOffset": "physic_offset",
        "physicSize": "physic_size",
        "tagsCode": "tags_code",
        "extendDataJson": "extend_data_json",
        "bitMap": "bit_map",
        "eval": "eval",
        "msg": "msg",
    }
    return [Lines(lines), table(result.units, columns)]


# -- sending -----------------------------------------------------------------------------------------------


def _send(admin: Admin, args: Args) -> Awaitable[Result]:
    queue = None
    if args["qid"] is not None:
        if args["broker"] is None:
            raise click.UsageError("a queue (-i) needs its broker (-b)")
        queue = MessageQueue(topic=args["topic"], broker_name=args["broker"], queue_id=args["qid"])
    return sending.send_message(
        admin,
        args["topic"],
        args["body"].encode(),
        keys=args["key"] or "",
        tags=args["tags"] or "",
        queue=queue,
        trace=bool(args["msgTraceEnable"]),
    )


_SENT: Final = {
    "Broker Name": "broker_name",
    "QID": "queue_id",
    "Send Result": "send_status",
    "MsgId": "message_id",
}


def _rt_view(result: sending.SendRows, args: Args) -> list[Part]:
    columns: dict[str, Any] = {
        "Broker Name": "broker_name",
        "QID": "queue_id",
        "Send Result": "success",
        "RT": lambda r: f"{r.rt_ms:.0f}",
    }
    failures = sorted({row.error for row in result.sends if row.error})
    return [table(result.sends, columns), Lines([f"Avg RT: {result.average_rt_ms:.2f}", *failures])]


def _send_status_view(result: sending.SendRows, args: Args) -> list[Part]:
    columns: dict[str, Any] = {
        **_SENT,
        "OffsetMsgId": "offset_msg_id",
        "Offset": "queue_offset",
        "RT": lambda r: f"{r.rt_ms:.0f}",
    }
    failures = sorted({row.error for row in result.sends if row.error})
    return [table(result.sends, columns), Lines([f"Avg RT: {result.average_rt_ms:.2f}", *failures])]


COMMANDS: Final = (
    Command(
        name="queryCq",
        help="Units of a consume queue, and which of them match a group's filter.",
        flags=(
            topic_flag(),
            Flag(names=("-q", "--queue"), help="Queue.", kind=int, required=True),
            Flag(names=("-i", "--index"), help="First offset.", kind=int, required=True),
            Flag(names=("-c", "--count"), help="Number of units [10].", kind=int),
            Flag(names=("-b", "--broker"), help="Broker, as host:port or by its name.", completes="broker"),
            group_flag("--consumer", "Group whose filter is tried.", required=False),
        ),
        call=lambda admin, a: reading.query_queue(
            admin,
            a["topic"],
            a["queue"],
            a["index"],
            count=a["count"] or 10,
            broker=a["broker"],
            group=a["consumer"],
        ),
        view=_cq_view,
        results=(reading.QueueData,),
    ),
    Command(
        name="printMsg",
        help="All messages of a topic, queue by queue.",
        flags=(
            topic_flag(),
            _CHARSET,
            _EXPRESSION,
            _BEGIN,
            _END,
            Flag(names=("-d", "--printBody"), help="With the bodies [true].", kind=bool),
            Flag(names=("-l", "--lmqParentTopic"), help="Topic whose route finds the brokers."),
        ),
        call=_print_all,
        view=_slice_view,
        results=(reading.QueueSlice,),
        streams=True,
    ),
    Command(
        name="printMsgByQueue",
        help="The messages of one queue, or how many of each tag it has.",
        flags=(
            topic_flag(),
            Flag(names=("-a", "--brokerName"), help="Broker name.", required=True, completes="name"),
            Flag(names=("-i", "--queueId"), help="Queue.", kind=int, required=True),
            _CHARSET,
            _EXPRESSION,
            _BEGIN,
            _END,
            Flag(names=("-p", "--printMsg"), help="Print the messages [false].", kind=bool),
            Flag(names=("-d", "--printBody"), help="With the bodies [false].", kind=bool),
            Flag(names=("-f", "--calculate"), help="Count them by tag [false].", kind=bool),
        ),
        call=_print_queue,
        view=_slice_view,
        results=(reading.QueueSlice, TagCounts),
        streams=True,
    ),
    Command(
        name="consumeMessage",
        help="Some messages of a topic or a queue; no offset is stored.",
        flags=(
            topic_flag(),
            Flag(names=("-b", "--brokerName"), help="Only of this broker.", completes="name"),
            _QUEUE,
            Flag(names=("-o", "--offset"), help="From this offset on.", kind=int),
            group_flag("--consumerGroup", "Read as this group.", required=False),
            Flag(
                names=("-s", "--beginTimestamp"),
                help="Stored at or after: milliseconds or yyyy-MM-dd#HH:mm:ss:SSS.",
            ),
            _END,
            Flag(names=("-c", "--MessageNumber"), help="Most messages [128].", kind=int),
        ),
        call=_consume,
        view=_slice_view,
        results=(reading.QueueSlice,),
        streams=True,
    ),
    Command(
        name="sendMessage",
        help="Send a message.",
        flags=(
            topic_flag(),
            Flag(names=("-p", "--body"), help="Body, sent as UTF-8.", required=True),
            Flag(names=("-k", "--key"), help="Keys, joined by blanks."),
            Flag(names=("-c", "--tags"), help="Tag."),
            Flag(names=("-b", "--broker"), help="To this broker name; with -i.", completes="name"),
            Flag(names=("-i", "--qid"), help="To this queue; with -b.", kind=int),
            Flag(names=("-m", "--msgTraceEnable"), help="Leave a trace of it [false].", kind=bool),
        ),
        call=_send,
        view=lambda result, a: [table([result], _SENT)],
        results=(sending.SentMessage,),
    ),
    Command(
        name="checkMsgSendRT",
        help="How long sends to the queues of a topic take.",
        flags=(
            topic_flag(),
            Flag(names=("-a", "--amount"), help="Messages [100].", kind=int),
            Flag(names=("-s", "--size"), help="Bytes of a message [128].", kind=int),
        ),
        call=lambda admin, a: sending.send_rt(
            admin, a["topic"], amount=a["amount"] or 100, size=a["size"] or 128
        ),
        view=_rt_view,
        results=(sending.SendRows,),
    ),
    Command(
        name="sendMsgStatus",
        help="Send to a broker and show what became of it.",
        flags=(
            Flag(
                names=("-b", "--brokerName"),
                help="Broker name: a topic every broker has.",
                required=True,
                completes="name",
            ),
            Flag(names=("-s", "--messageSize"), help="Bytes of a message [128].", kind=int),
            Flag(names=("-c", "--count"), help="Messages [50].", kind=int),
        ),
        call=lambda admin, a: sending.send_status(
            admin, a["brokerName"], count=a["count"] or 50, size=a["messageSize"] or 128
        ),
        view=_send_status_view,
        results=(sending.SendRows,),
    ),
)
