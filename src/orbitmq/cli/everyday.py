"""``orbitmq topic``, ``group``, ``message`` and ``top``: short names for everyday tasks.

They are declared like the commands of ``orbitmq admin`` and run by the same code. A command that mqadmin also has is
the same declaration with another name and fewer flags (``_short``).
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Final

import click
import msgspec

from orbitmq.admin import Admin, everyday, topics
from orbitmq.admin.base import Changed
from orbitmq.admin.moves import OffsetTarget
from orbitmq.cli.admin import declarations
from orbitmq.cli.admin_kit.declare import BROKER, CLUSTER, Args, Command, Flag
from orbitmq.cli.admin_kit.output import Lines, Part, Table, changed, flat, moment, second, table
from orbitmq.cli.admin_kit.run import build
from orbitmq.cli.admin_kit.times import parse_time
from orbitmq.model.topic import parse_attribute_changes
from orbitmq.runtime.words import counted

__all__ = ["COMMANDS", "group_commands", "message_commands", "top_command", "topic_commands"]

_PERMISSIONS: Final = {"write": 2, "read": 4, "both": 6}
_PERMISSION_NAMES: Final = {0: "none", **{value: name for name, value in _PERMISSIONS.items()}}


def _place(name: str, text: str, completes: str = "") -> Flag:
    """Declares a required positional argument. ``completes`` is the kind of names that shell completion suggests."""
    return Flag(names=(name,), help=text, required=True, by_place=True, completes=completes)


_TOPIC: Final = _place("topic", "Topic.", "topic")
_GROUP: Final = _place("group", "Consumer group.", "group")
_WHERE: Final = (
    CLUSTER,
    dataclasses.replace(BROKER, help="Only this broker, as host:port or by its name."),
)


def _short(
    area: str, base: str, name: str, text: str, flags: tuple[Flag, ...], keys: dict[str, str] | None = None
) -> Command:
    """Returns the ``orbitmq admin`` command ``base`` with another name and these flags.

    ``keys`` maps the new flags to the flags of ``base`` that they set. Flags of ``base`` that are omitted have their
    defaults.
    """
    command = next(one for one in declarations(area) if one.name == base)
    renamed = keys or {}

    def given(args: Args) -> Args:
        defaults: dict[str, Any] = {
            flag.key: False if flag.switch else flag.default for flag in command.flags
        }
        return defaults | {renamed.get(key, key): value for key, value in args.items()}

    return dataclasses.replace(
        command,
        name=name,
        help=text,
        flags=flags,
        one_of=(),
        call=lambda admin, args: command.call(admin, given(args)),
        view=lambda result, args: command.view(result, given(args)),
    )


def _of(area: str, base: str, key: str, **changes: Any) -> Flag:
    """Returns a flag of an ``orbitmq admin`` command with some changes."""
    command = next(one for one in declarations(area) if one.name == base)
    return dataclasses.replace(next(flag for flag in command.flags if flag.key == key), **changes)


# -- topics ------------------------------------------------------------------------------------------------


_SETTINGS: Final = (
    Flag(names=("-q", "--queues"), help="Queues per broker.", kind=int),
    Flag(names=("--read-queues",), help="Queues to read, if they differ.", kind=int),
    Flag(names=("--write-queues",), help="Queues to write, if they differ.", kind=int),
    Flag(names=("-p", "--permission"), help="What clients may do.", choices=tuple(_PERMISSIONS)),
    Flag(names=("-o", "--order"), help="Keep its queues in order over all brokers.", kind=bool),
    Flag(names=("-a", "--attributes"), help="Changes to attributes: +message.type=FIFO,-name."),
)


def _create(admin: Admin, args: Args) -> Awaitable[Changed]:
    config = topics.new_topic(
        args["topic"],
        read=args["queues"] if args["read-queues"] is None else args["read-queues"],
        write=args["queues"] if args["write-queues"] is None else args["write-queues"],
        perm=_PERMISSIONS.get(args["permission"]),
    )
    config = msgspec.structs.replace(config, order=bool(args["order"]))
    return everyday.create_topic(
        admin,
        config,
        parse_attribute_changes(args["attributes"]),
        broker=args["brokerAddr"],
        cluster=args["clusterName"],
    )


def _alter(admin: Admin, args: Args) -> Awaitable[Changed]:
    change = everyday.TopicChange(
        read_queue_nums=args["queues"] if args["read-queues"] is None else args["read-queues"],
        write_queue_nums=args["queues"] if args["write-queues"] is None else args["write-queues"],
        perm=_PERMISSIONS.get(args["permission"]),
        order=args["order"],
        attributes=parse_attribute_changes(args["attributes"]),
    )
    return everyday.alter_topic(
        admin, args["topic"], change, broker=args["brokerAddr"], cluster=args["clusterName"]
    )


async def _delete(admin: Admin, args: Args) -> Changed:
    cluster = await everyday.only_cluster(admin, None, args["clusterName"])
    assert cluster is not None, "only_cluster returns one where no broker is named"
    return await topics.delete_topic(admin, args["topic"], cluster)


def _topic_view(result: everyday.TopicDescription, args: Args) -> list[Part]:
    settings: dict[str, Any] = {
        "Broker": "broker_name",
        "Address": "address",
        "Read Queues": lambda r: r.config.read_queue_nums,
        "Write Queues": lambda r: r.config.write_queue_nums,
        "Permission": lambda r: _PERMISSION_NAMES.get(r.config.perm, r.config.perm),
        "Order": lambda r: r.config.order,
        "Attributes": lambda r: " ".join(f"{k}={v}" for k, v in (r.config.attributes or {}).items()),
    }
    queues: dict[str, Any] = {
        "Broker": "broker_name",
        "Queue": "queue_id",
        "First": "min_offset",
        "Next": "max_offset",
        "Messages": lambda r: r.max_offset - r.min_offset,
        "Last Stored": lambda r: moment(r.last_update_timestamp),
    }
    last = [
        "",
        f"{counted(result.message_count, 'message')}, {result.topic_put_tps:.1f} a second",
        f"Groups: {', '.join(result.groups) or 'none'}",
    ]
    return [table(result.brokers, settings), table(result.queues, queues), Lines(last)]


_TOPIC_COMMANDS: Final = (
    Command(
        name="list",
        help="Topics registered with the name server, without system, retry and dead-letter topics.",
        flags=(Flag(names=("-a", "--all"), help="List these topics as well.", switch=True),),
        call=lambda admin, args: topics.listed_topics(admin),
        view=lambda result, args: [
            Lines([one for one in result.topics if args["all"] or one not in result.system])
        ],
        results=(topics.TopicNames,),
    ),
    Command(
        name="create",
        help="Create a topic on all masters of the cluster.\n\nBy default: 8 queues per broker, read and write.",
        flags=(_TOPIC, *_SETTINGS, *_WHERE),
        call=_create,
        view=changed,
        results=(Changed,),
    ),
    Command(
        name="describe",
        help="Settings, queues and groups of a topic.",
        flags=(_TOPIC,),
        call=lambda admin, args: everyday.describe_topic(admin, args["topic"]),
        view=_topic_view,
        results=(everyday.TopicDescription,),
    ),
    Command(
        name="delete",
        help="Delete a topic with its messages from the cluster and from the name servers.",
        flags=(_TOPIC, CLUSTER),
        call=_delete,
        view=changed,
        results=(Changed,),
    ),
    Command(
        name="alter",
        help="Change settings of a topic. Settings that are not named stay unchanged.",
        flags=(_TOPIC, *_SETTINGS, *_WHERE),
        call=_alter,
        view=changed,
        results=(Changed,),
    ),
)


# -- groups ------------------------------------------------------------------------------------------------


def _group_view(result: everyday.GroupDescription, args: Args) -> list[Part]:
    settings: dict[str, Any] = {
        "Cluster": "cluster",
        "Broker": "broker_name",
        "May Consume": lambda r: r.config.consume_enable,
        "Ordered": lambda r: r.config.consume_message_orderly,
        "Deliveries": lambda r: r.config.retry_max_times,
    }
    parts: list[Part] = [table(result.configs, settings)]
    connection = result.connection
    if connection is None:
        parts.append(Lines(["", "No member is online."]))
    else:
        columns = {
            "Member": "client_id",
            "Address": "client_addr",
            "Language": "language",
            "Version": "version",
        }
        parts.append(table(connection.connections, columns))
        parts.append(table(connection.subscriptions, {"Topic": "topic", "Expression": "sub_expression"}))
        parts.append(
            Lines(
                [
                    "",
                    f"{connection.consume_type} {connection.message_model}, a queue without an offset starts at "
                    f"{connection.consume_from_where}",
                ]
            )
        )
    lag = "no offset is stored" if result.progress is None else counted(result.progress.lag_total, "message")
    parts.append(Lines([f"Lag: {lag} (`orbitmq group lag {result.group}`)"]))
    return parts


def _reset(admin: Admin, args: Args) -> Awaitable[everyday.OffsetMoves]:
    given = [name for name in ("to", "offset", "shift") if args[name] is not None]
    if len(given) != 1:
        raise click.UsageError("give the new position with one of --to, --offset and --shift")
    words = {"earliest": "first", "first": "first", "latest": "last", "last": "last"}
    if args["offset"] is not None:
        target = OffsetTarget(kind="offset", offset=args["offset"])
    elif args["shift"] is not None:
        target = OffsetTarget(kind="shift", shift=args["shift"])
    elif args["to"] in words:
        target = OffsetTarget(kind=words[args["to"]])
    else:
        target = OffsetTarget(kind="time", time_ms=parse_time(args["to"], admin.clock.now_ms()))
    return everyday.reset_offsets(
        admin, args["group"], args["topic"], target, queue=args["queue"] or "", dry_run=args["dry-run"]
    )


def _reset_view(result: everyday.OffsetMoves, args: Args) -> list[Part]:
    columns: dict[str, Any] = {
        "Broker": "broker_name",
        "Queue": "queue_id",
        "Now" if result.dry_run else "Before": "now",
        "Then" if result.dry_run else "Now": "then",
        "Change": lambda r: f"{r.then - r.now:+}",
        "The Queue Holds": lambda r: f"{r.min_offset} to {r.max_offset}",
    }
    verb = "would be" if result.dry_run else "are"
    lines = [""]
    if result.skipped:
        lines.append(f"{counted(result.skipped, 'message')} {verb} skipped")
    if result.again:
        lines.append(f"{counted(result.again, 'message')} {verb} delivered again")
    if not result.skipped and not result.again:
        lines.append("No offset changes")
    if result.dry_run:
        lines.append("Nothing was changed (--dry-run)")
    return [table(result.queues, columns), Lines(lines)]


_GROUP_COMMANDS: Final = (
    _short("groups", "consumerProgress", "list", "Consumer groups with members, speed and lag.", ()),
    Command(
        name="describe",
        help="Settings, members, subscriptions and lag of a group.",
        flags=(_GROUP,),
        call=lambda admin, args: everyday.describe_group(admin, args["group"]),
        view=_group_view,
        results=(everyday.GroupDescription,),
    ),
    _short(
        "groups",
        "consumerProgress",
        "lag",
        "Progress of a group in every queue.",
        (
            _GROUP,
            Flag(names=("-t", "--topic"), help="Only this topic.", completes="topic"),
            Flag(names=("-m", "--members"), help="Show the owner of each queue.", switch=True),
        ),
        {"group": "groupName", "topic": "topicName", "members": "showClientIP"},
    ),
    Command(
        name="reset",
        help="Move the offsets of a group; members that are online follow without a restart.",
        flags=(
            _GROUP,
            Flag(names=("-t", "--topic"), help="Topic.", required=True, completes="topic"),
            Flag(
                names=("--to",),
                help="earliest, latest, -15m (a time ago), ISO time, milliseconds since 1970.",
            ),
            Flag(names=("--offset",), help="To this offset in each queue.", kind=int),
            Flag(names=("--shift",), help="Move by this many messages: -100 redelivers 100.", kind=int),
            Flag(names=("-q", "--queue"), help="Only this queue, as broker-name:number."),
            Flag(names=("--dry-run",), help="Show the moves and change nothing.", switch=True),
        ),
        call=_reset,
        view=_reset_view,
        results=(everyday.OffsetMoves,),
    ),
)


# -- messages ----------------------------------------------------------------------------------------------


def _found_view(result: Any, args: Args) -> list[Part]:
    columns: dict[str, Any] = {
        "Message ID": "message_id",
        "Queue": "queue_id",
        "Offset": "queue_offset",
        "Stored": lambda r: moment(r.store_timestamp),
    }
    return [
        table(result.messages, columns),
        Lines(["", f"`orbitmq message get {result.topic} ID` shows one"]),
    ]


_FIND: Final = _short(
    "messages",
    "queryMsgByKey",
    "find",
    "Messages with a key.",
    (
        _TOPIC,
        Flag(names=("-k", "--key"), help="Key.", required=True),
        Flag(names=("-c", "--count"), help="At most this many.", kind=int, default=64),
    ),
    {"key": "msgKey", "count": "maxNum"},
)
_MESSAGE_COMMANDS: Final = (
    _short(
        "messages",
        "queryMsgById",
        "get",
        "A message with its body, and which groups consumed it.",
        (
            _TOPIC,
            _place("id", "Message id: the one that `send` returned, or the offset id."),
            Flag(names=("-e", "--encoding"), help="Encoding of the body.", default="UTF-8"),
        ),
        {"id": "msgId", "encoding": "bodyFormat"},
    ),
    dataclasses.replace(_FIND, view=_found_view),
)


# -- overview ----------------------------------------------------------------------------------------------


def _age(milliseconds: int | None) -> str:
    """Formats a duration for people."""
    if milliseconds is None:
        return ""
    seconds = max(0, milliseconds) // 1000
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _overview_view(result: everyday.Overview, args: Args) -> list[Part]:
    brokers: dict[str, Any] = {
        "Broker": "broker_name",
        "Role": lambda r: "master" if r.broker_id == 0 else f"slave {r.broker_id}",
        "In/s": lambda r: f"{r.in_tps:.1f}",
        "Out/s": lambda r: f"{r.out_tps:.1f}",
        "Disk": lambda r: f"{r.disk_ratio:.0%}",
        "Error": "error",
    }
    groups: dict[str, Any] = {
        "Group": "group",
        "Lag": "lag",
        "Oldest": lambda r: _age(r.oldest_ms),
        "Finished/s": lambda r: "" if r.finished_per_s is None else f"{r.finished_per_s:.1f}",
    }
    shown = table(result.brokers, brokers)
    if not any(row.error for row in result.brokers):
        shown = Table(shown.titles[:-1], [row[:-1] for row in shown.rows])
    more = result.group_count - len(result.groups)
    rest = [f"({flat(more)} more with a smaller lag)"] if more > 0 else []
    return [Lines([second(result.timestamp)]), shown, table(result.groups, groups), Lines(rest)]


async def _top(admin: Admin, args: Args) -> AsyncIterator[everyday.Overview]:
    rounds = args["count"] or 0
    async for overview in everyday.overviews(admin):
        yield overview
        rounds -= 1
        if rounds == 0:
            return
        await asyncio.sleep(args["interval"])


_TOP: Final = Command(
    name="top",
    help="Brokers with their rates and the groups that are furthest behind, until Ctrl-C.",
    flags=(
        Flag(names=("-i", "--interval"), help="Seconds between two rounds.", kind=float, default=2.0),
        Flag(names=("-c", "--count"), help="Stop after this many rounds.", kind=int),
    ),
    call=_top,
    view=_overview_view,
    results=(everyday.Overview,),
    streams=True,
    clears=True,
)

COMMANDS: Final = {
    "topic": _TOPIC_COMMANDS,
    "group": _GROUP_COMMANDS,
    "message": _MESSAGE_COMMANDS,
}
"""Declarations by command group."""


class _CommandGroup(click.Group):
    """A group that builds a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [command.name for command in COMMANDS[str(self.name)]]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = (one for one in COMMANDS[str(self.name)] if one.name == cmd_name)
        return next(map(build, found), None)


def _command_group(name: str, text: str) -> click.Group:
    return _CommandGroup(name, help=text, context_settings={"help_option_names": ["-h", "--help"]})


topic_commands = _command_group("topic", "Topics: list, create, describe, delete, alter.")
group_commands = _command_group("group", "Consumer groups: list, describe, lag, reset.")
message_commands = _command_group("message", "Stored messages: get one by its id, find some by a key.")
top_command = build(_TOP)
