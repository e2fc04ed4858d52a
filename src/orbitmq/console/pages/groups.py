"""Consumer groups: the list, one group, one member, and their actions."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from orbitmq.admin import groups as admin_groups
from orbitmq.admin.census import gather_bounded
from orbitmq.admin.errors import UnknownNameError
from orbitmq.admin.moves import OffsetTarget, QueueMove, plan_moves
from orbitmq.admin.offsets import END, reset_queue
from orbitmq.admin.reading import by_offset
from orbitmq.console.pages.messages import parse_time
from orbitmq.console.pages.topics import summary
from orbitmq.console.settings import Role
from orbitmq.console.view import Action, Done, Form, Plan, View, link, listing
from orbitmq.errors import ConsumerNotOnline, OrbitError
from orbitmq.model.group import SubscriptionGroupConfig
from orbitmq.model.names import PREDEFINED_GROUPS, check_group, is_retry_topic
from orbitmq.model.route import MessageQueue

__all__ = ["ACTIONS", "group", "group_list", "member"]

_AGED_QUEUES_MAX = 64
"""Limit of the queues whose oldest waiting message is read for its age.

For the other queues, the age of the last consumed message is shown.
"""


async def group_list(view: View) -> Response:
    """Shows all groups, from the sampler."""
    snapshot = await view.console.sampler.ready()
    everything = view.query("kind") == "all"
    rows = [row for row in snapshot.groups.values() if everything or row.name not in PREDEFINED_GROUPS]
    now_ms = view.now_ms
    columns = {
        "name": lambda row: row.name.casefold(),
        "topics": lambda row: len(row.topics),
        "lag": lambda row: row.lag,
        "age": lambda row: row.lag_ms(now_ms),
        "dead": lambda row: row.dead,
    }
    found = listing(view, rows, columns, "-lag", "name")
    answers = await gather_bounded(
        lambda row: admin_groups.consumer_connection(view.admin, row.name), found.rows
    )
    online: dict[str, Any] = {}
    for row, answer in zip(found.rows, answers, strict=True):
        if isinstance(answer, ConsumerNotOnline):
            online[row.name] = 0
        elif not isinstance(answer, OrbitError):
            online[row.name] = answer
    clusters = sorted({sample.place.cluster for sample in snapshot.brokers})
    return view.page(
        "groups.html", list=found, online=online, now_ms=now_ms, snapshot=snapshot, clusters=clusters
    )


async def group(view: View) -> Response:
    """Shows one group: its members, its subscriptions, and the lag of every queue in messages and time."""
    name = view.name("group")
    admin = view.admin
    problems: list[str] = []
    connection = members = progress = None
    try:
        connection = await admin_groups.consumer_connection(admin, name)
        members = await admin_groups.group_members(admin, name)
    except ConsumerNotOnline:
        pass
    except OrbitError as error:
        problems.append(str(error))
    try:
        progress = await admin_groups.group_progress(admin, name)
    except ConsumerNotOnline:
        pass  # neither members nor offsets
    except OrbitError as error:
        problems.append(str(error))
    rows = progress.queues if progress else []
    configs = (await admin_groups.consumer_configs(admin, name)).configs
    holders = {
        (queue.topic, queue.broker_name, queue.queue_id): one.client_id
        for one in (members.members if members else ())
        for queue in one.info.queues
    }
    snapshot = await view.console.sampler.ready()
    if not (configs or rows or connection or name in snapshot.groups):
        raise UnknownNameError("consumer group", name, snapshot.groups)
    return view.page(
        "group.html",
        name=name,
        connection=connection,
        members=members,
        subscriptions=admin_groups.subscription_rows(members.members) if members else [],
        rows=rows,
        ages=await _ages(view, rows),
        holders=holders,
        progress=progress,
        configs=configs,
        problems=problems,
        sample=snapshot.groups.get(name),
        topics=sorted({row.topic for row in rows if not is_retry_topic(row.topic)}),
        clusters=sorted({config.cluster for config in configs if config.cluster}),
    )


async def _ages(view: View, rows: list[admin_groups.QueueProgress]) -> dict[tuple[str, str, int], int | None]:
    """Returns for each queue how long the oldest unconsumed message has waited, in milliseconds.

    For queues whose message is not read, returns the age of the last consumed message, or None if it is unknown.
    """
    now_ms = view.now_ms
    found: dict[tuple[str, str, int], int | None] = {
        (row.topic, row.broker_name, row.queue_id): 0 for row in rows if row.diff <= 0
    }
    behind = [row for row in rows if row.diff > 0]

    async def age(row: admin_groups.QueueProgress) -> int:
        queue = MessageQueue(topic=row.topic, broker_name=row.broker_name, queue_id=row.queue_id)
        message = await by_offset(view.admin, queue, row.consumer_offset, read_bytes=0)
        return max(0, now_ms - message.store_timestamp)

    answers = await gather_bounded(age, behind[:_AGED_QUEUES_MAX])
    for row, answer in zip(behind, [*answers, *([None] * len(behind))], strict=False):
        known = None if answer is None or isinstance(answer, OrbitError) else answer
        if known is None and row.last_timestamp > 0:
            known = max(0, now_ms - row.last_timestamp)
        found[row.topic, row.broker_name, row.queue_id] = known
    return found


async def member(view: View) -> Response:
    """Shows the state that one member reports, with its stack traces."""
    name, client = view.name("group"), view.name("client")
    info = await admin_groups.running_consumer(view.admin, name, client, stacks=True)
    return view.page("member.html", name=name, client=client, info=info)


# -- offsets -----------------------------------------------------------------------------------------------


async def _moves(view: View, form: Form) -> list[QueueMove]:
    """Returns the planned new offsets of the queues selected in a form."""
    wanted = OffsetTarget(
        kind=form.text("to"),
        offset=form.number("offset", "the offset") if form.text("to") == "offset" else 0,
        shift=form.number("shift", "the number of messages to shift by") if form.text("to") == "shift" else 0,
        source=form.required("source", "the group to copy from") if form.text("to") == "group" else "",
        time_ms=0,
    )
    if wanted.kind == "time":
        text, zone = form.required("time", "the time"), form.number("zone", "the zone", 0)
        wanted = wanted._replace(time_ms=parse_time(text, zone) or 0)
    group_name, topic = form.required("group", "the group"), form.required("topic", "the topic")
    return await plan_moves(view.admin, group_name, topic, wanted, queue_name=form.text("queue"))


async def _plan_reset(view: View, form: Form) -> Plan:
    moves = await _moves(view, form)
    name, topic = form.text("group"), form.text("topic")
    skipped = sum(max(0, move.then - move.now) for move in moves)
    again = sum(max(0, move.now - move.then) for move in moves)
    lines = [f"Set group {name} to other offsets in {len(moves)} queues of topic {topic}."]
    if skipped:
        lines.append(f"{skipped:,} messages will be skipped: the group will not get them.")
    if again:
        lines.append(f"{again:,} messages will be delivered again.")
    if not skipped and not again:
        lines.append("No offset changes.")
    rows = [
        (
            f"{move.queue.broker_name}:{move.queue.queue_id}",
            f"{move.now:,}",
            f"{move.then:,}",
            f"{move.then - move.now:+,}",
            f"{move.low:,} to {move.high:,}",
        )
        for move in moves
    ]
    return Plan(
        title=f"Move offsets of {name}",
        lines=lines,
        heads=("queue", "now", "then", "change", "the queue holds"),
        rows=rows,
        button="Move the offsets",
        danger=skipped > 0,
        back=link("groups", name),
    )


async def _reset(view: View, form: Form) -> Done:
    name, topic = form.text("group"), form.text("topic")
    moves = [move for move in await _moves(view, form) if move.now != move.then or form.text("to") != "shift"]
    for move in moves:
        await reset_queue(
            view.admin, name, move.queue, broker=move.address, timestamp_ms=END, offset=move.then
        )
    text = ", ".join(f"{m.queue.broker_name}:{m.queue.queue_id} {m.now}→{m.then}" for m in moves[:20])
    return Done(text=f"Offsets of {name} in {topic} moved: {text}.", back=link("groups", name))


# -- settings ----------------------------------------------------------------------------------------------


def _group_config(form: Form) -> tuple[SubscriptionGroupConfig, str]:
    name = form.required("group", "the name of the group")
    check_group(name)
    config = SubscriptionGroupConfig(
        group_name=name,
        consume_enable=form.flag("consume"),
        consume_broadcast_enable=form.flag("broadcast"),
        retry_max_times=form.number("tries", "the number of tries", 16),
        retry_queue_nums=form.number("retry_queues", "the number of retry queues", 1),
        consume_message_orderly=form.flag("ordered"),
    )
    return config, form.required("cluster", "the cluster")


async def _plan_store(view: View, form: Form) -> Plan:
    config, cluster = _group_config(form)
    snapshot = await view.console.sampler.ready()
    old = snapshot.groups.get(config.group_name)
    before = next(iter(old.configs.values())) if old is not None and old.configs else None
    verb = "Change" if before is not None else "Create"
    shown = {
        "may consume": "consume_enable",
        "may broadcast": "consume_broadcast_enable",
        "attempts before a message is dead-lettered": "retry_max_times",
        "retry queues": "retry_queue_nums",
        "ordered": "consume_message_orderly",
    }
    rows = [
        (label, "-" if before is None else getattr(before, key), getattr(config, key))
        for label, key in shown.items()
    ]
    return Plan(
        title=f"{verb} group {config.group_name}",
        lines=[f"{verb} group {config.group_name} on every master of cluster {cluster}."],
        heads=("setting", "now", "then"),
        rows=rows,
        button=f"{verb} the group",
        back=link("groups", config.group_name) if before is not None else "/groups",
        command=f"orbitmq admin updateSubGroup -c {cluster} -g {config.group_name} "
        f"-r {config.retry_max_times} -s {str(config.consume_enable).lower()}",
    )


async def _store(view: View, form: Form) -> Done:
    config, cluster = _group_config(form)
    snapshot = view.console.sampler.snapshot
    old = snapshot.groups.get(config.group_name)
    if old is not None and old.configs:
        before = next(iter(old.configs.values()))
        config = msgspec.structs.replace(
            before,
            consume_enable=config.consume_enable,
            consume_broadcast_enable=config.consume_broadcast_enable,
            retry_max_times=config.retry_max_times,
            retry_queue_nums=config.retry_queue_nums,
            consume_message_orderly=config.consume_message_orderly,
        )
    changed = await admin_groups.update_group(view.admin, config, broker=None, cluster=cluster)
    await view.console.sampler.round()
    return Done(
        text=f"Group {config.group_name}: {summary(changed)}.", back=link("groups", config.group_name)
    )


async def _plan_delete(view: View, form: Form) -> Plan:
    name, cluster = form.required("group", "the group"), form.required("cluster", "the cluster")
    lines = [
        f"Delete group {name}, its offsets, its retry topic and its dead letters from cluster {cluster}."
    ]
    try:
        members = (await admin_groups.consumer_connection(view.admin, name)).connections
        lines.append(
            f"{len(members)} members are connected; they create the group again if the broker allows it."
        )
    except OrbitError:
        pass
    return Plan(
        title=f"Delete group {name}",
        lines=lines,
        button="Delete the group",
        danger=True,
        typed=name,
        back=link("groups", name),
        command=f"orbitmq admin deleteSubGroup -c {cluster} -g {name} -r true",
    )


async def _delete(view: View, form: Form) -> Done:
    name = form.text("group")
    changed = await admin_groups.delete_group(
        view.admin, name, broker=None, cluster=form.text("cluster"), remove_offset=True
    )
    await view.console.sampler.round()
    return Done(text=f"Group {name}: {summary(changed)}.", back="/groups")


ACTIONS = {
    "offsets": Action(Role.OPERATOR, _plan_reset, _reset),
    "group-store": Action(Role.ADMIN, _plan_store, _store),
    "group-delete": Action(Role.ADMIN, _plan_delete, _delete),
}
