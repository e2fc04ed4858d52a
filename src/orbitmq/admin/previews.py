"""Limits how much of message bodies readers see, and masks data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from orbitmq.admin.messages import MessageView, shortened
from orbitmq.model.subscription import subscribe_by_tags

__all__ = ["WHOLE", "Preview"]


def _unchanged(message: MessageView) -> MessageView:
    return message


class Preview(NamedTuple):
    """Limits and masks for the messages of a page."""

    read_bytes: int | None = 64 * 1024
    """Bytes of each body to inflate and search; None means all of it."""
    kept_bytes: int | None = 4 * 1024
    """Bytes of each body to keep after the search; None means all that was read."""
    mask: Callable[[MessageView], MessageView] = _unchanged
    """Masks a message. Applied before any search, so that no filter can find masked data."""

    def select(self, messages: Iterable[MessageView], *, text: str, tags: str) -> list[MessageView]:
        """Returns the messages that have one of ``tags`` and contain ``text``, in the form in which they are shown.

        ``text`` is searched in the body and the property values, ignoring case.
        """
        wanted, folded = subscribe_by_tags("", tags), text.casefold()
        found = []
        for message in messages:
            shown = self.mask(message)
            if wanted.matches_tag(shown.tags) and (not folded or _contains(shown, folded)):
                found.append(shortened(shown, self.kept_bytes))
        return found


WHOLE: Final = Preview(None, None)
"""Shows messages as they are stored."""


def _contains(message: MessageView, folded: str) -> bool:
    if message.body is not None and folded in message.body.casefold():
        return True
    return any(folded in value.casefold() for value in message.properties.values())
