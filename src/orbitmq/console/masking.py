"""Decides what a console shows of messages: bodies and properties unchanged, both masked, or no bodies at all.

``Masking.mask`` is applied to every message right after it is read. Pages, filters, searches, forms and downloads see
only its result, so none of them can leak what it hides.

Bodies come from untrusted producers, so everything here takes time linear in their length. Users cannot supply
patterns, and the two patterns of this module cannot backtrack: see docs/decisions/0037-linear-masks.md.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any, Final

import msgspec

from orbitmq.admin.messages import MessageView, body_bytes
from orbitmq.admin.previews import Preview
from orbitmq.console.settings import Bodies

__all__ = ["EXPORTED", "HIDDEN", "LISTED", "OPENED", "Masking", "hex_dump"]

HIDDEN: Final = "•••"
LISTED: Final = Preview(read_bytes=64 * 1024, kept_bytes=4 * 1024)
"""Limits for a message in a list: the bytes to search and the bytes to keep."""
OPENED: Final = Preview(read_bytes=256 * 1024, kept_bytes=256 * 1024)
"""Limits for a message on its own page."""
EXPORTED: Final = Preview(read_bytes=4 * 1024 * 1024, kept_bytes=4 * 1024 * 1024)
"""Limits for a line of a download. Brokers accept no larger bodies unless configured to."""
_SHOWN_BYTES: Final = 64 * 1024
_START_CHARS: Final = 160
_CARD: Final = re.compile(r"\b(?:\d[ -]?){13,19}\b")
"""Card numbers. The pattern examines at most 38 characters from each position."""
_MAIL_CHARACTERS: Final = re.compile(r"[\w.+@-]++")
"""Candidates for mail addresses. The pattern is a single character class, so it cannot backtrack."""
_CARD_DIGITS: Final = range(13, 20)
_SECRETS: Final = ("password", "passwd", "secret", "token", "authorization", "card", "cvv", "iban", "ssn")
_REASON: Final = "RETRY_REASON"
"""Property with the error message of a handler, which may quote the body."""


class Masking:
    """Masks messages before they are shown."""

    def __init__(self, bodies: Bodies, masks: tuple[str, ...] = ()) -> None:
        self.bodies = bodies
        self._names = frozenset(name.casefold() for name in (masks or _SECRETS))

    @property
    def shows_all(self) -> bool:
        return self.bodies is Bodies.SHOW

    def preview(self, limits: Preview) -> Preview:
        """Returns ``limits`` with this console's mask."""
        return limits._replace(mask=self.mask)

    def mask(self, message: MessageView) -> MessageView:
        """Returns the message as it may be shown, without the checksum of its original body."""
        if self.shows_all:
            return message
        properties = {name: self.property(name, value) for name, value in message.properties.items()}
        text = self._masked_body(message)
        return msgspec.structs.replace(
            message,
            tags=properties.get("TAGS", ""),
            keys=properties.get("KEYS", ""),
            properties=properties,
            body=text,
            body_base64="" if text is None else base64.b64encode(text.encode()).decode(),
            body_crc=0,
        )

    def property(self, name: str, value: str) -> str:
        """Returns the value of a property as it may be shown."""
        if self.shows_all:
            return value
        return HIDDEN if self._is_secret(name) or name == _REASON else self._plain(value)

    def _is_secret(self, name: str) -> bool:
        """Returns whether a property or field name contains a masked name, as ``user_password`` contains
        ``password``.
        """
        folded = name.casefold()
        return any(secret in folded for secret in self._names)

    def _masked_body(self, message: MessageView) -> str | None:
        # A partial document cannot be parsed, so its fields are unknown.
        if self.bodies is Bodies.OFF or message.body is None or message.body_cut:
            return None
        return self._document(message.body)

    def _document(self, text: str) -> str:
        try:
            return _printable(json.dumps(self._masked(json.loads(text)), ensure_ascii=False))
        except (ValueError, RecursionError):
            return "\n".join(map(self._line, text.split("\n")))

    def _line(self, line: str) -> str:
        """Masks a line of text that is not JSON. The whole line is hidden if it names a masked field."""
        if line.lstrip()[:1] in ("{", "["):
            try:
                return _printable(json.dumps(self._masked(json.loads(line)), ensure_ascii=False))
            except (ValueError, RecursionError):
                pass
        return HIDDEN if self._is_secret(line) else self._plain(line)

    def _masked(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {
                self._plain(key): HIDDEN if self._is_secret(key) else self._masked(item)
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [self._masked(item) for item in value]
        if isinstance(value, str):
            return self._document(value) if value.lstrip()[:1] in ("{", "[") else self._plain(value)
        if isinstance(value, int) and not isinstance(value, bool) and _is_card(value):
            return HIDDEN
        return value

    def _plain(self, text: str) -> str:
        text = _CARD.sub(HIDDEN, text)
        return _MAIL_CHARACTERS.sub(_without_mail, text) if "@" in text else text

    # -- formatting of masked messages -----------------------------------------------------------------------

    def text(self, message: MessageView) -> str | None:
        """Returns the body as text, or None if it is binary."""
        if self.bodies is Bodies.OFF:
            return "(bodies are switched off)"
        if self.bodies is Bodies.MASK and message.body is None:
            return "(too long to be masked)" if message.body_cut else "(binary body, masked)"
        return message.body

    def start(self, message: MessageView) -> str:
        """Returns the first characters of the body, for a list."""
        text = self.text(message)
        if text is None:
            return hex_dump(body_bytes(message)[:16]).splitlines()[0] if message.body_base64 else ""
        text = " ".join(text[: 4 * _START_CHARS].split())
        return text if len(text) <= _START_CHARS else text[:_START_CHARS] + "…"

    def forms(self, message: MessageView) -> dict[str, str]:
        """Returns the start of the body in each available form, by its name: ``json``, ``text``, ``hex``."""
        text = self.text(message)
        found: dict[str, str] = {}
        if text is not None:
            try:
                if text.lstrip()[:1] in ("{", "["):
                    pretty = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
                    found["json"] = _printable(pretty[:_SHOWN_BYTES])
            except (ValueError, RecursionError):
                pass
            found["text"] = text[:_SHOWN_BYTES]
        if self.bodies is Bodies.SHOW:
            found["hex"] = hex_dump(body_bytes(message)[:_SHOWN_BYTES])
        return found


def _without_mail(word: re.Match[str]) -> str:
    name, _, host = word.group().partition("@")
    return HIDDEN if name and "." in host else word.group()


def _printable(text: str) -> str:
    """Replaces unpaired surrogates, which JSON can express but UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()


def _is_card(number: int) -> bool:
    """Returns whether a number has the length and the check digit of a card number."""
    digits = str(number) if 0 < number < 10**20 else ""
    if len(digits) not in _CARD_DIGITS:
        return False
    doubled = [int(digit) * (1 + index % 2) for index, digit in enumerate(reversed(digits))]
    return sum(value - 9 if value > 9 else value for value in doubled) % 10 == 0


def hex_dump(data: bytes) -> str:
    """Formats bytes as lines of sixteen, each with offset, hexadecimal bytes and characters."""
    lines = []
    for start in range(0, len(data), 16):
        row = data[start : start + 16]
        digits = " ".join(f"{byte:02x}" for byte in row)
        shown = "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in row)
        lines.append(f"{start:08x}  {digits:<47}  {shown}")
    return "\n".join(lines)
