"""One message: its body, properties and full delivery history."""

from __future__ import annotations

from starlette.responses import Response

from orbitmq.admin import AdminError
from orbitmq.admin.life import Life, message_life
from orbitmq.admin.messages import body_bytes
from orbitmq.codes import SysFlag
from orbitmq.console.masking import OPENED
from orbitmq.console.pages.messages import with_key
from orbitmq.console.settings import Bodies
from orbitmq.console.view import View, link
from orbitmq.errors import OrbitError
from orbitmq.model.names import is_dlq_topic

__all__ = ["body", "find", "life"]


async def find(view: View) -> Response:
    """Searches for a message by id or key."""
    wanted, topic = view.query("id"), view.query("topic")
    found, error = [], ""
    if wanted:
        try:
            life_of = await message_life(view.admin, wanted, topic, read_bytes=0)
            return view.redirect(link("messages", life_of.message_id, topic=life_of.topic))
        except OrbitError as failure:
            error = str(failure)
        if topic:
            try:
                found = await with_key(view, topic, wanted)
                error = "" if found else error
            except OrbitError as failure:
                error = str(failure)
    return view.page("find.html", messages=found, error=error, wanted=wanted, topic=topic)


async def life(view: View) -> Response:
    found = await message_life(view.admin, view.name("id"), view.query("topic"), read_bytes=OPENED.read_bytes)
    message = view.console.masking.mask(found.message)
    return view.page(
        "life.html",
        life=found,
        message=message,
        forms=view.console.masking.forms(message),
        properties=message.properties,
        flags=_flags(message.sys_flag),
        dead=next((e.message for e in found.events if e.message and is_dlq_topic(e.message.topic)), None),
        now_ms=view.now_ms,
        scale=_scale(found, view.now_ms),
    )


def _flags(sys_flag: int) -> list[str]:
    """Returns the names of a record's flags."""
    found = []
    if sys_flag & SysFlag.COMPRESSED:
        found.append("compressed")
    kind = sys_flag & SysFlag.TRANSACTION_ROLLBACK
    if kind:
        names = {
            int(SysFlag.TRANSACTION_PREPARED): "prepared",
            int(SysFlag.TRANSACTION_COMMIT): "committed",
            int(SysFlag.TRANSACTION_ROLLBACK): "rolled back",
        }
        found.append(f"transaction {names[int(kind)]}")
    if sys_flag & SysFlag.INNER_BATCH:
        found.append("batch")
    return found


def _scale(found: Life, now_ms: int) -> list[tuple[int, int, str]]:
    """Returns the start and length of each event in percent of the drawing's width, and the kind of the event."""
    if not found.events:
        return []
    begin = found.events[0].at_ms
    ends = [event.until_ms or event.at_ms for event in found.events]
    length = max(1, max(ends) - begin)
    return [
        (
            round(100 * (event.at_ms - begin) / length),
            max(1, round(100 * ((event.until_ms or event.at_ms) - event.at_ms) / length)),
            event.kind,
        )
        for event in found.events
    ]


async def body(view: View) -> Response:
    """Downloads the body as it was sent."""
    if view.console.masking.bodies is not Bodies.SHOW:
        raise AdminError("message bodies are masked or hidden in this console")
    found = await message_life(view.admin, view.name("id"), view.query("topic"))
    headers = {"content-disposition": 'attachment; filename="body.bin"', "cache-control": "no-store"}
    return Response(body_bytes(found.message), headers=headers, media_type="application/octet-stream")
