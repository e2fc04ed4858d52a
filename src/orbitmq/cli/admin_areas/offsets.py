"""Commands for the offsets of consumer groups."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

import click

from orbitmq.admin import Admin, offsets
from orbitmq.admin.base import Changed
from orbitmq.cli.admin_kit.declare import Args, Command, Flag, group_flag, topic_flag
from orbitmq.cli.admin_kit.output import Part, changed, table
from orbitmq.cli.admin_kit.times import parse_time
from orbitmq.model.route import MessageQueue

__all__ = ["COMMANDS"]

_ROUTE: Final = Flag(names=("-c", "--cluster"), help="Topic or cluster whose route finds the brokers.")
_FORCE: Final = Flag(names=("-f", "--force"), help="Also forward [true].", kind=bool)


def _view(result: offsets.ResetOffsets, args: Args) -> list[Part]:
    return [table(result.queues, {"brokerName": "broker_name", "queueId": "queue_id", "offset": "offset"})]


def _reset(admin: Admin, args: Args) -> Awaitable[offsets.ResetOffsets]:
    timestamp_ms = parse_time(args["timestamp"], admin.clock.now_ms())
    if args["queue"] is not None or args["offset"] is not None:
        if args["broker"] is None or args["queue"] is None:
            raise click.UsageError("a queue needs both -b BROKER and -q QUEUE")
        queue = MessageQueue(topic=args["topic"], broker_name="", queue_id=args["queue"])
        return offsets.reset_queue(
            admin,
            args["group"],
            queue,
            broker=args["broker"],
            timestamp_ms=timestamp_ms,
            offset=args["offset"],
        )
    return offsets.reset_by_time(
        admin,
        args["group"],
        args["topic"],
        timestamp_ms,
        force=args["force"] is not False,
        route_topic=args["cluster"] or "",
    )


COMMANDS: Final = (
    Command(
        name="resetOffsetByTime",
        help="Reset a consumer group to a time; online members follow without a restart.",
        flags=(
            group_flag("--group"),
            topic_flag(),
            Flag(
                names=("-s", "--timestamp"),
                help="now, milliseconds since 1970, yyyy-MM-dd#HH:mm:ss:SSS, or -1: after the newest message.",
                required=True,
            ),
            Flag(names=("-b", "--broker"), help="Only this broker; with -q.", completes="broker"),
            Flag(names=("-q", "--queue"), help="Only this queue; with -b.", kind=int),
            Flag(
                names=("-o", "--offset"), help="To this offset, whatever the time; with -b and -q.", kind=int
            ),
            _FORCE,
            _ROUTE,
        ),
        call=_reset,
        view=_view,
        results=(offsets.ResetOffsets,),
    ),
    Command(
        name="skipAccumulatedMessage",
        help="Skip all stored messages of a topic for a consumer group.",
        flags=(group_flag("--group"), topic_flag(), _FORCE, _ROUTE),
        call=lambda admin, a: offsets.reset_by_time(
            admin,
            a["group"],
            a["topic"],
            offsets.END,
            force=a["force"] is not False,
            route_topic=a["cluster"] or "",
        ),
        view=_view,
        results=(offsets.ResetOffsets,),
    ),
    Command(
        name="cloneGroupOffset",
        help="Copy the offsets of a topic from one consumer group to another.",
        flags=(
            Flag(names=("-s", "--srcGroup"), help="Group to copy from.", required=True, completes="group"),
            Flag(names=("-d", "--destGroup"), help="Group to copy to.", required=True, completes="group"),
            topic_flag(),
            Flag(names=("-o", "--offline"), help="Accepted for compatibility; ignored."),
        ),
        call=lambda admin, a: offsets.clone_group_offset(admin, a["srcGroup"], a["destGroup"], a["topic"]),
        view=changed,
        results=(Changed,),
    ),
)
