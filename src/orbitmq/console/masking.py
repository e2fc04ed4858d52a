"""What is shown of a message: text, JSON or hex; masked or not at all if the console is set up so."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from orbitmq.admin.messages import MessageView, body_bytes
from orbitmq.console.settings import Bodies

__all__ = ["HIDDEN", "Masking", "hex_dump"]

HIDDEN: Final = "•••"
_SHOWN_BYTES: Final = 64 * 1024
_START_CHARS: Final = 160
_CARD: Final = re.compile(r"\b(?:\d[ -]?){13,19}\b")
_MAIL: Final = re.compile(r"[\w.+-]+@[\w-]+\.[\w.]+")
_SECRETS: Final = ("password", "passwd", "secret", "token", "authorization", "card", "cvv", "iban", "ssn")


class Masking:
    """Turns bodies and properties into what may be seen."""

    def __init__(self, bodies: Bodies, masks: tuple[str, ...] = ()) -> None:
        self.bodies = bodies
        self._names = frozenset(name.casefold() for name in (masks or _SECRETS))

    @property
    def shows_all(self) -> bool:
        return self.bodies is Bodies.SHOW

    def text(self, message: MessageView) -> str | None:
        """The body as text; None when it is not text. Raw JSON stays as it was sent unless it is masked."""
        if self.bodies is Bodies.OFF:
            return "(bodies are switched off)"
        if message.body is None:
            return None if self.bodies is Bodies.SHOW else "(binary body, masked)"
        if self.bodies is Bodies.SHOW:
            return message.body
        try:
            return json.dumps(self._masked(json.loads(message.body)), ensure_ascii=False)
        except (ValueError, RecursionError):
            return self._plain(message.body)

    def start(self, message: MessageView) -> str:
        """The first characters, for a list."""
        text = self.text(message)
        if text is None:
            return hex_dump(body_bytes(message)[:16]).splitlines()[0] if message.body_base64 else ""
        text = " ".join(text[: 4 * _START_CHARS].split())
        return text if len(text) <= _START_CHARS else text[:_START_CHARS] + "…"

    def forms(self, message: MessageView, *, whole: bool = False) -> dict[str, str]:
        """The body in every form it has: ``json``, ``text``, ``hex``; cut unless ``whole``."""
        text = self.text(message)
        found: dict[str, str] = {}
        limit = None if whole else _SHOWN_BYTES
        if text is not None:
            try:
                if text.lstrip()[:1] in ("{", "["):
                    found["json"] = json.dumps(json.loads(text), indent=2, ensure_ascii=False)[:limit]
            except (ValueError, RecursionError):
                pass
            found["text"] = text[:limit]
        if self.bodies is Bodies.SHOW:
            found["hex"] = hex_dump(body_bytes(message)[: limit or 1024 * 1024])
        return found

    def properties(self, message: MessageView) -> dict[str, str]:
        if self.bodies is Bodies.SHOW:
            return message.properties
        return {
            name: HIDDEN if name.casefold() in self._names else self._plain(value)
            for name, value in message.properties.items()
        }

    def _masked(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: HIDDEN if key.casefold() in self._names else self._masked(item)
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [self._masked(item) for item in value]
        return self._plain(value) if isinstance(value, str) else value

    def _plain(self, text: str) -> str:
        return _MAIL.sub(HIDDEN, _CARD.sub(HIDDEN, text))


def hex_dump(data: bytes) -> str:
    """Offset, sixteen bytes, their characters; a line each."""
    lines = []
    for start in range(0, len(data), 16):
        row = data[start : start + 16]
        digits = " ".join(f"{byte:02x}" for byte in row)
        shown = "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in row)
        lines.append(f"{start:08x}  {digits:<47}  {shown}")
    return "\n".join(lines)
