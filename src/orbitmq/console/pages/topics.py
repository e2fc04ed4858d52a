"""Topics: the list, one topic with its tabs, and their actions."""

from __future__ import annotations

from starlette.responses import Response

from orbitmq.admin import AdminError
from orbitmq.admin import topics as admin_topics
from orbitmq.admin.base import Changed
from orbitmq.codes import Perm
from orbitmq.console.sampler import TopicSample
from orbitmq.console.settings import Role
from orbitmq.console.view import Action, Done, Form, Plan, View, link, listing
from orbitmq.errors import OrbitError, TopicNotFound
from orbitmq.model.names import check_topic, is_system_topic
from orbitmq.model.topic import QUEUE_NUMS_MAX, TOPIC_ATTRIBUTES, TopicConfig, perm_text

__all__ = ["ACTIONS", "topic", "topic_list"]

_KINDS = ("", "all", "normal", "fifo", "delay", "transaction", "retry", "dead letters", "system")
_TYPES = ("", *sorted(TOPIC_ATTRIBUTES["message.type"].values))


async def topic_list(view: View) -> Response:
    """Shows all topics from the sampler. Message counts missing for rows on this page are queried first."""
    snapshot = await view.console.sampler.ready()
    kind = view.query("kind")
    rows = [row for row in snapshot.topics.values() if _wanted(row, kind)]
    columns = {
        "name": lambda row: row.name.casefold(),
        "kind": lambda row: row.kind,
        "queues": lambda row: row.read_queues,
        "messages": lambda row: row.message_count,
        "rate": lambda row: row.rate,
        "groups": lambda row: len(row.groups),
        "lag": lambda row: row.lag,
        "last": lambda row: row.last_ms,
    }
    found = listing(view, rows, columns, "name", "name")
    missing = [row.name for row in found.rows if row.message_count is None]
    if missing:
        await view.console.sampler.sample_topics(missing)
    clusters = sorted({sample.place.cluster for sample in snapshot.brokers})
    return view.page(
        "topics.html",
        list=found,
        kind=kind,
        kinds=_KINDS,
        snapshot=snapshot,
        clusters=clusters,
        types=_TYPES,
        queues_max=QUEUE_NUMS_MAX,
    )


def _wanted(row: TopicSample, kind: str) -> bool:
    if kind == "all":
        return True
    if kind:
        return row.kind == kind
    return row.kind not in ("retry", "dead letters", "system")


async def topic(view: View) -> Response:
    """Shows one topic with its queues, route, groups and settings."""
    name = view.name("topic")
    snapshot = await view.console.sampler.ready()
    sample = snapshot.topics.get(name)
    problems = []
    status = route = None
    try:
        route = await admin_topics.topic_route(view.admin, name)
        status = await admin_topics.topic_status(view.admin, name)
    except OrbitError as error:
        if isinstance(error, TopicNotFound) and sample is None:
            raise
        problems.append(str(error))
    groups = []
    if sample is not None:
        for group in sorted(sample.groups):
            lags = [lag for lag in snapshot.groups[group].lags if lag.topic == name]
            behind = [lag.last_timestamp for lag in lags if lag.diff and lag.last_timestamp > 0]
            age_ms = view.now_ms - min(behind) if behind else 0 if not any(lag.diff for lag in lags) else None
            groups.append((group, sum(lag.diff for lag in lags), age_ms))
    clusters = sorted({row.cluster for row in route.brokers if row.cluster}) if route else []
    return view.page(
        "topic.html",
        name=name,
        sample=sample,
        status=status,
        route=route,
        groups=groups,
        clusters=clusters,
        problems=problems,
        system=is_system_topic(name),
        types=_TYPES,
        queues_max=QUEUE_NUMS_MAX,
        tab="queues",
    )


# -- changes -----------------------------------------------------------------------------------------------


def _config(form: Form) -> tuple[TopicConfig, dict[str, str], str]:
    name = form.required("topic", "the name of the topic")
    check_topic(name)
    cluster = form.required("cluster", "the cluster")
    perm = (Perm.READ if form.flag("read") else 0) | (Perm.WRITE if form.flag("write") else 0)
    config = TopicConfig(
        topic_name=name,
        read_queue_nums=form.number("read_queues", "the number of queues to read from", 8),
        write_queue_nums=form.number("write_queues", "the number of queues to write to", 8),
        perm=int(perm),
        order=form.flag("order"),
    )
    if not all(0 < count <= QUEUE_NUMS_MAX for count in (config.read_queue_nums, config.write_queue_nums)):
        raise AdminError(f"a topic has 1 to {QUEUE_NUMS_MAX:,} queues on a broker")
    kind = form.text("type")
    if kind not in _TYPES:
        raise AdminError(f"unknown message type {kind!r}")
    return config, {"+message.type": kind} if kind else {}, cluster


async def _plan_store(view: View, form: Form) -> Plan:
    config, attributes, cluster = _config(form)
    snapshot = await view.console.sampler.ready()
    old = snapshot.topics.get(config.topic_name)
    verb = "Change" if old is not None else "Create"
    new = {
        "queues to read from, on each broker": config.read_queue_nums,
        "queues to write to, on each broker": config.write_queue_nums,
        "permission": perm_text(config.perm),
        "ordered": config.order,
        "message type": attributes.get("+message.type", "(unchanged)" if old else "(not set)"),
    }
    before: dict[str, object] = {}
    if old is not None and old.configs:
        first = next(iter(old.configs.values()))
        before = {
            "queues to read from, on each broker": first.read_queue_nums,
            "queues to write to, on each broker": first.write_queue_nums,
            "permission": perm_text(first.perm),
            "ordered": first.order,
            "message type": first.attributes.get("message.type", "(not set)"),
        }
    lines = [f"{verb} topic {config.topic_name} on every master of cluster {cluster}."]
    if before and config.read_queue_nums < int(str(before["queues to read from, on each broker"])):
        lines.append("Messages in the queues that go will no longer be consumed.")
    return Plan(
        title=f"{verb} topic {config.topic_name}",
        lines=lines,
        heads=("setting", "now", "then"),
        rows=[(key, before.get(key, "-"), value) for key, value in new.items()],
        button=f"{verb} the topic",
        back=link("topics", config.topic_name) if old is not None else "/topics",
        command=f"orbitmq admin updateTopic -c {cluster} -t {config.topic_name} -r {config.read_queue_nums} "
        f"-w {config.write_queue_nums} -p {config.perm} -o {str(config.order).lower()}",
    )


async def _store(view: View, form: Form) -> Done:
    config, attributes, cluster = _config(form)
    changed = await admin_topics.update_topic(view.admin, config, attributes, broker=None, cluster=cluster)
    await view.console.sampler.round()
    return Done(
        text=f"Topic {config.topic_name}: {summary(changed)}.", back=link("topics", config.topic_name)
    )


def summary(changed: Changed) -> str:
    """Returns a text that says which servers made which change."""
    return "; ".join(dict.fromkeys(f"{one.action} on {one.target}" for one in changed.changes))


async def _plan_delete(view: View, form: Form) -> Plan:
    name = form.required("topic", "the topic")
    cluster = form.required("cluster", "the cluster")
    snapshot = await view.console.sampler.ready()
    sample = snapshot.topics.get(name)
    count = None if sample is None else sample.message_count
    lines = [
        f"Delete topic {name} from every master of cluster {cluster} and from the name servers.",
        f"Its {'unknown number of' if count is None else format(count, ',')} messages can no longer be read.",
    ]
    if sample is not None and sample.groups:
        lines.append(f"Groups that consume it: {', '.join(sorted(sample.groups))}.")
    return Plan(
        title=f"Delete topic {name}",
        lines=lines,
        button="Delete the topic",
        danger=True,
        typed=name,
        back=link("topics", name),
        command=f"orbitmq admin deleteTopic -c {cluster} -t {name}",
    )


async def _delete(view: View, form: Form) -> Done:
    name = form.text("topic")
    changed = await admin_topics.delete_topic(view.admin, name, form.text("cluster"))
    await view.console.sampler.round()
    return Done(text=f"Topic {name}: {summary(changed)}.", back="/topics")


ACTIONS = {
    "topic-store": Action(Role.ADMIN, _plan_store, _store),
    "topic-delete": Action(Role.ADMIN, _plan_delete, _delete),
}
