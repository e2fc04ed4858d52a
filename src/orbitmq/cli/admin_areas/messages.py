"""Commands that look up messages."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

import click

from orbitmq.admin import Admin, Result, messages, reading, sending, trace
from orbitmq.cli.admin_kit.declare import BROKER_NAME, Args, Command, Flag, group_flag, topic_flag
from orbitmq.cli.admin_kit.output import Lines, Part, flat, java_map, moment, second, table
from orbitmq.model.names import TRACE_TOPIC
from orbitmq.model.route import MessageQueue

__all__ = ["COMMANDS"]

_ROUTE: Final = Flag(names=("-c", "--cluster"), help="Topic or cluster whose route finds the brokers.")
_FORMAT: Final = Flag(names=("-f", "--bodyFormat"), help="Show the body, in this encoding (UTF-8).")
_CLIENT: Final = Flag(
    names=("-d", "--clientId"), help="Have this member of the group (-g) consume the message now."
)
_FOR_GROUP: Final = group_flag("--consumerGroup", "Group of the member to consume it (-d).", required=False)
_BEGIN: Final = Flag(names=("-b", "--beginTimestamp"), help="Stored at or after, in milliseconds.", kind=int)
_END: Final = Flag(names=("-e", "--endTimestamp"), help="Stored before, in milliseconds.", kind=int)
_LATEST_MS: Final = 2**63 - 1


def _message_lines(message: messages.MessageView, args: Args, *, with_offset_id: bool) -> list[str]:
    values: dict[str, object] = {"OffsetID": message.offset_msg_id} if with_offset_id else {}
    values |= {
        "Topic": message.topic,
        "Tags": f"[{message.tags or 'null'}]",
        "Keys": f"[{message.keys or 'null'}]",
        "Queue ID": message.queue_id,
        "Queue Offset": message.queue_offset,
        "CommitLog Offset": message.commit_log_offset,
        "Reconsume Times": message.reconsume_times,
        "Born Timestamp": moment(message.born_timestamp),
        "Store Timestamp": moment(message.store_timestamp),
        "Born Host": message.born_host,
        "Store Host": message.store_host,
        "System Flag": message.sys_flag,
        "Properties": java_map(message.properties),
        "Message Body Size": len(messages.body_bytes(message)),
    }
    if (encoding := args.get("bodyFormat")) is not None:
        values["Message Body"] = messages.body_bytes(message).decode(encoding, "replace")
    return [f"{key + ':':<20} {flat(value)}" for key, value in values.items()]


def _details_view(result: messages.MessageDetails | Result, args: Args) -> list[Part]:
    if isinstance(result, messages.DirectConsumption):
        fields = {
            "consumeResult": result.consume_result,
            "order": result.order,
            "autoCommit": result.auto_commit,
            "remark": result.remark,
            "spentTimeMills": result.spent_time_millis,
        }
        return [Lines([" ".join(f"{key}={flat(value)}" for key, value in fields.items())])]
    if isinstance(result, sending.SentMessage):
        return [_sent(result)]
    assert isinstance(result, messages.MessageDetails), "the three kinds there are"
    parts: list[Part] = []
    columns = {"Consumer Group": "consumer_group", "Track Type": "track_type", "Error": "error"}
    for one in result.messages:
        lines = _message_lines(one.message, args, with_offset_id="showAll" not in args)
        parts += [Lines(lines), table(one.tracks, columns)]
    return parts


def _sent(sent: sending.SentMessage) -> Part:
    columns = {
        "Broker Name": "broker_name",
        "QID": "queue_id",
        "Send Result": "send_status",
        "MsgId": "message_id",
    }
    return table([sent], columns)


def _check_encoding(args: Args) -> None:
    if (encoding := args.get("bodyFormat")) is not None:
        try:
            codecs.lookup(encoding)
        except LookupError:
            raise click.UsageError(f"{encoding!r} is not a known encoding; try UTF-8 or GBK") from None


async def _with_tracks(admin: Admin, found: Iterable[messages.MessageView]) -> messages.MessageDetails:
    return messages.MessageDetails(messages=[await messages.detail(admin, one) for one in found])


async def _by_id(admin: Admin, args: Args) -> Result:
    _check_encoding(args)
    topic, route = args["topic"], args["cluster"] or ""
    ids = [one.strip() for one in args["msgId"].split(",") if one.strip()]
    found = [await messages.by_id(admin, topic, one, route_topic=route) for one in ids]
    if args["consumerGroup"] is not None and args["clientId"] is not None:
        outcome: Result | None = None
        for message in found:
            outcome = await messages.consume_directly(admin, message, args["consumerGroup"], args["clientId"])
        assert outcome is not None, "an id is required"
        return outcome
    if args["sendMessage"]:
        sent: Result | None = None
        for message in found:
            body = messages.body_bytes(message)
            sent = await sending.resend(admin, message.topic, body, keys=message.keys, tags=message.tags)
        assert sent is not None, "an id is required"
        return sent
    return await _with_tracks(admin, found)


async def _by_unique_key(admin: Admin, args: Args) -> Result:
    found = await messages.by_unique_key(
        admin, args["topic"], args["msgId"], route_topic=args["cluster"] or ""
    )
    if args["consumerGroup"] is not None and args["clientId"] is not None:
        return await messages.consume_directly(admin, found[0], args["consumerGroup"], args["clientId"])
    return await _with_tracks(admin, found if args["showAll"] else found[:1])


async def _by_offset(admin: Admin, args: Args) -> Result:
    _check_encoding(args)
    queue = MessageQueue(topic=args["topic"], broker_name=args["brokerName"], queue_id=args["queueId"])
    found = await reading.by_offset(admin, queue, args["offset"], route_topic=args["routeTopic"] or "")
    return await _with_tracks(admin, [found])


def _query(args: Args) -> messages.KeyQuery:
    return messages.KeyQuery(
        topic=args["topic"],
        key=args["msgKey"],
        count_max=args["maxNum"] or 64,
        begin_ms=args["beginTimestamp"] or 0,
        end_ms=_LATEST_MS if args["endTimestamp"] is None else args["endTimestamp"],
        key_type=args["keyType"] or "",
        last_key=args["lastKey"],
        route_topic=args["cluster"] or "",
    )


def _found_view(result: messages.FoundMessages, args: Args) -> list[Part]:
    def index_key(row: messages.FoundMessage) -> str:
        stored = datetime.fromtimestamp(row.store_timestamp // 1000).astimezone()
        hour_ms = int(stored.replace(minute=0, second=0).timestamp()) * 1000
        parts = (hour_ms, result.topic, result.key_type, result.key, row.message_id, row.commit_log_offset)
        return "@".join(map(str, parts))

    columns: dict[str, Any] = {
        "Message ID": "message_id",
        "QID": "queue_id",
        "Offset": "queue_offset",
        "IndexKey": index_key,
    }
    return [table(result.messages, columns)]


def _trace_view(result: trace.Traces, args: Args) -> list[Part]:
    def columns(group: str, time: str) -> dict[str, Any]:
        return {
            "Type": "type",
            group: "group",
            "ClientHost": "client_host",
            time: lambda r: second(r.timestamp),
            "CostTimes": lambda r: f"{r.cost_ms}ms",
            "Status": lambda r: "success" if r.success else "failed",
        }

    parts: list[Part] = []
    if result.produced:
        parts.append(table(result.produced, columns("ProducerGroup", "SendTime")))
    if result.consumed:
        parts.append(table(result.consumed, columns("ConsumerGroup", "ConsumerTime")))
    return parts


COMMANDS: Final = (
    Command(
        name="queryMsgById",
        help="A message by its offset id or its unique key, and who consumed it.",
        flags=(
            topic_flag(),
            Flag(names=("-i", "--msgId"), help="Message ids, joined by commas.", required=True),
            _FOR_GROUP,
            _CLIENT,
            Flag(names=("-s", "--sendMessage"), help="Send it once more, as a new message.", kind=bool),
            _FORMAT,
            _ROUTE,
            Flag(names=("-u", "--unitName"), help="Accepted for compatibility; ignored."),
        ),
        call=_by_id,
        view=_details_view,
        results=(messages.MessageDetails, messages.DirectConsumption, sending.SentMessage),
    ),
    Command(
        name="queryMsgByKey",
        help="Messages with a key.",
        flags=(
            topic_flag(),
            Flag(names=("-k", "--msgKey"), help="Key.", required=True),
            _BEGIN,
            _END,
            Flag(names=("-m", "--maxNum"), help="Maximum number of messages [64].", kind=int),
            Flag(names=("-p", "--keyType"), help="K: a key, T: a tag (5.5).", choices=("K", "T")),
            Flag(names=("-l", "--lastKey"), help="Continue after this index key (5.5)."),
            _ROUTE,
        ),
        call=lambda admin, a: messages.by_key(admin, _query(a)),
        view=_found_view,
        results=(messages.FoundMessages,),
    ),
    Command(
        name="queryMsgByUniqueKey",
        help="A message by the id its producer gave it, and who consumed it.",
        flags=(
            topic_flag(),
            Flag(names=("-i", "--msgId"), help="Unique key.", required=True),
            _FOR_GROUP,
            _CLIENT,
            Flag(names=("-a", "--showAll"), help="All copies that were stored, up to 32.", switch=True),
            _ROUTE,
        ),
        call=_by_unique_key,
        view=_details_view,
        results=(messages.MessageDetails, messages.DirectConsumption),
    ),
    Command(
        name="queryMsgByOffset",
        help="The message at a queue offset, and who consumed it.",
        flags=(
            topic_flag(),
            BROKER_NAME,
            Flag(names=("-i", "--queueId"), help="Queue.", kind=int, required=True),
            Flag(names=("-o", "--offset"), help="Offset in the queue.", kind=int, required=True),
            _FORMAT,
            Flag(names=("-r", "--routeTopic"), help="Topic whose route finds the broker."),
        ),
        call=_by_offset,
        view=_details_view,
        results=(messages.MessageDetails,),
    ),
    Command(
        name="queryMsgTraceById",
        help="Who sent a message and who consumed it, from the trace topic.",
        flags=(
            Flag(names=("-i", "--msgId"), help="Unique key.", required=True),
            topic_flag(f"Trace topic [{TRACE_TOPIC}].", required=False, name="--traceTopic"),
            _BEGIN,
            _END,
            Flag(names=("-c", "--maxNum"), help="Maximum number of trace messages [64].", kind=int),
        ),
        call=lambda admin, a: trace.message_trace(
            admin,
            a["msgId"],
            trace_topic=a["traceTopic"] or TRACE_TOPIC,
            between_ms=(
                a["beginTimestamp"] or 0,
                _LATEST_MS if a["endTimestamp"] is None else a["endTimestamp"],
            ),
            count_max=a["maxNum"] or 64,
        ),
        view=_trace_view,
        results=(trace.Traces,),
    ),
)
