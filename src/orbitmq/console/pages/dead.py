"""Dead letters: the groups that have some, the dead letters of one group, and their actions."""

from __future__ import annotations

import secrets
import shlex
from contextlib import aclosing

from starlette.responses import Response

from orbitmq.admin import AdminError
from orbitmq.admin.deadletters import (
    DeadLetter,
    dead_letters,
    each_dead_letter,
    mark_done,
    reference,
    resend_one,
    whole_letter,
)
from orbitmq.admin.sending import open_producer
from orbitmq.console.jobs import ResendJob
from orbitmq.console.masking import EXPORTED, LISTED
from orbitmq.console.pages.messages import json_lines
from orbitmq.console.settings import Bodies, Role
from orbitmq.console.view import Action, Done, Form, Plan, View, link, listing
from orbitmq.errors import TopicNotFound

__all__ = ["ACTIONS", "dead_group", "dead_groups", "export", "job"]

_CHOSEN_MAX = 10_000
_JOBS_MAX = 50


async def dead_groups(view: View) -> Response:
    """Shows the groups that have dead letters, from the sampler."""
    snapshot = await view.console.sampler.ready()
    rows = [
        (name.removeprefix("%DLQ%"), sample)
        for name, sample in snapshot.topics.items()
        if name.startswith("%DLQ%")
    ]
    columns = {
        "name": lambda row: row[0].casefold(),
        "count": lambda row: row[1].message_count,
        "newest": lambda row: row[1].last_ms,
    }
    found = listing(view, rows, columns, "-count", "name")
    return view.page("dead.html", snapshot=snapshot, list=found, jobs=list(view.console.jobs.values())[::-1])


async def dead_group(view: View) -> Response:
    """Shows the dead letters of one group."""
    name = view.name("group")
    everything = view.query("all") == "1"
    page = None
    try:
        page = await dead_letters(
            view.admin,
            name,
            text=view.query("text"),
            with_done=everything,
            cursor=view.query("cursor"),
            preview=view.preview(LISTED),
        )
    except TopicNotFound:
        pass
    query = {key: value for key, value in view.request.query_params.items() if value and key != "cursor"}
    more = link("dlq", name, **query, cursor=page.cursor) if page and page.cursor else ""
    jobs = [job for job in view.console.jobs.values() if job.group == name][::-1]
    return view.page("dead_group.html", name=name, page=page, everything=everything, next=more, jobs=jobs)


async def job(view: View) -> Response:
    """Shows the progress of a resend job."""
    found = view.console.jobs.get(view.name("key"))
    if found is None:
        raise AdminError("this run has ended and was removed; see the audit log")
    return view.page("job.html", job=found)


async def export(view: View) -> Response:
    """Downloads all matching dead letters as JSON lines."""
    if view.console.masking.bodies is Bodies.OFF:
        raise AdminError("message bodies are hidden in this console, so there is nothing to download")
    name = view.name("group")

    letters = each_dead_letter(
        view.admin,
        name,
        text=view.query("text"),
        with_done=view.query("all") == "1",
        preview=view.preview(EXPORTED),
    )
    return await json_lines(view, f"dead-{name}", letters)


# -- changes -----------------------------------------------------------------------------------------------


async def _chosen(view: View, form: Form) -> list[DeadLetter]:
    """Returns the dead letters selected in a form, without bodies: the ticked ones, or all that match its text."""
    group = form.required("group", "the group")
    ids = form.many("id")
    if not ids and not form.flag("everything"):
        raise AdminError("no dead letter is selected; tick some, or choose all that match")
    found: list[DeadLetter] = []
    wanted = () if form.flag("everything") else ids
    source = each_dead_letter(
        view.admin, group, ids=wanted, text=form.text("text"), preview=view.preview(LISTED)
    )
    async with aclosing(source) as letters:  # type: ignore[type-var]  # a generator
        async for letter in letters:
            found.append(reference(letter))
            if len(found) >= _CHOSEN_MAX:
                break
    if not found:
        raise AdminError("the selected dead letters were already handled or have expired")
    return found


def _which(form: Form) -> str:
    """Returns the selection of a form as arguments of ``orbitmq dlq``."""
    if not form.flag("everything"):
        return shlex.join(form.many("id"))
    return f"--text {shlex.quote(form.text('text'))}" if form.text("text") else "--all"


def _counted(letters: list[DeadLetter], topic: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for letter in letters:
        target = topic or letter.origin_topic or "(unknown: name a topic)"
        counts[target] = counts.get(target, 0) + 1
    return counts


async def _plan_resend(view: View, form: Form) -> Plan:
    letters = await _chosen(view, form)
    group, topic = form.text("group"), form.text("to_topic")
    rate = form.number("rate", "the rate", 50)
    if rate <= 0:
        raise AdminError("the rate must be greater than zero")
    counts = _counted(letters, topic)
    return Plan(
        title=f"Resend {len(letters):,} dead letters of {group}",
        lines=[
            f"Send each of them once more as a new message, {rate} a second: about "
            f"{max(1, len(letters) // rate):,} s in all.",
            "Every group that consumes the topic gets them, not only this one.",
        ],
        heads=("topic", "messages"),
        rows=[(name, f"{count:,}") for name, count in counts.items()],
        button="Resend them",
        back=link("dlq", group),
        command=f"orbitmq dlq resend {group} {_which(form)} --rate {rate}"
        + (f" --to {topic}" if topic else ""),
    )


async def _resend(view: View, form: Form) -> Done:
    letters = await _chosen(view, form)
    console = view.console
    run = ResendJob(
        secrets.token_hex(6),
        form.text("group"),
        form.text("to_topic"),
        float(form.number("rate", "the rate", 50)),
        letters,
        view.session.user,
        view.now_ms,
    )
    running = [one for one in console.jobs.values() if one.state == "running"]
    if len(running) >= 4:
        raise AdminError("four runs are already in progress; wait for one to end")
    while len(console.jobs) >= _JOBS_MAX:
        del console.jobs[next(key for key, one in console.jobs.items() if one.state != "running")]
    console.jobs[run.key] = run
    console.tasks.start(run.run(view.admin), f"resend-{run.key}")
    return Done(text=f"Resending {run.total:,} dead letters of {run.group}.", back=link("dlq-job", run.key))


async def _plan_edited(view: View, form: Form) -> Plan:
    letters = await _chosen(view, form)
    topic = form.text("to_topic") or letters[0].origin_topic
    return Plan(
        title=f"Resend one dead letter to {topic or '?'}, edited",
        lines=[
            f"Send dead letter {letters[0].message.message_id} to topic {topic} with the body below, "
            f"{len(form.raw('body').encode()):,} bytes, and note it as resent."
        ],
        button="Resend it",
        back=link("dlq", form.text("group")),
    )


async def _edited(view: View, form: Form) -> Done:
    letter = await whole_letter(view.admin, form.text("group"), (await _chosen(view, form))[0])
    body = form.raw("body").replace("\r\n", "\n").encode()
    async with open_producer(view.admin, "orbitmq-dead-letters") as producer:
        fresh = await resend_one(producer, letter, topic=form.text("to_topic"), body=body)
    await mark_done(view.admin, form.text("group"), [letter.message.offset_msg_id], "resent")
    topic = form.text("to_topic") or letter.origin_topic
    return Done(text=f"Resent to {topic} with id {fresh}.", back=link("messages", fresh, topic=topic))


async def _plan_drop(view: View, form: Form) -> Plan:
    letters = await _chosen(view, form)
    group = form.text("group")
    return Plan(
        title=f"Drop {len(letters):,} dead letters of {group}",
        lines=[
            "They are noted as done and no longer listed here or on the command line.",
            "The broker keeps the records until they expire, as it does with every message.",
        ],
        button="Drop them",
        danger=True,
        back=link("dlq", group),
        command=f"orbitmq dlq drop {group} {_which(form)}",
    )


async def _drop(view: View, form: Form) -> Done:
    letters = await _chosen(view, form)
    group = form.text("group")
    await mark_done(view.admin, group, [letter.message.offset_msg_id for letter in letters], "dropped")
    return Done(text=f"{len(letters):,} dead letters of {group} dropped.", back=link("dlq", group))


async def _plan_stop(view: View, form: Form) -> Plan:
    run = view.console.jobs.get(form.text("key"))
    if run is None or run.state != "running":
        raise AdminError("this run has ended")
    return Plan(
        title="Stop resending",
        lines=[f"Stop after {run.sent:,} of {run.total:,}; what was not sent stays a dead letter."],
        button="Stop",
        back=link("dlq-job", run.key),
    )


async def _stop(view: View, form: Form) -> Done:
    run = view.console.jobs[form.text("key")]
    run.stop = True
    return Done(text="Stopping.", back=link("dlq-job", run.key))


ACTIONS = {
    "dlq-resend": Action(Role.OPERATOR, _plan_resend, _resend),
    "dlq-edit": Action(Role.OPERATOR, _plan_edited, _edited),
    "dlq-drop": Action(Role.OPERATOR, _plan_drop, _drop),
    "dlq-stop": Action(Role.OPERATOR, _plan_stop, _stop),
}
