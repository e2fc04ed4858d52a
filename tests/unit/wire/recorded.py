"""The recorded frames, decoded, for the tests of this folder and the fuzz targets."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
from tests.golden import data

from orbitmq.requests import BY_CODE, Request
from orbitmq.wire.frame import Frame, FrameDecoder


class RecordedFrame(msgspec.Struct, frozen=True):
    """One direction of one recorded exchange."""

    name: str
    """Unique, for the id of a test."""
    code: Request
    is_response: bool
    raw: bytes
    frame: Frame
    header: dict[str, Any]
    """As the recorder decoded it, independently of this project."""
    body_text: str | None


@cache
def recorded_frames() -> list[RecordedFrame]:
    """Returns every request and every response, in the order of the file."""
    found = []
    for number, exchange in enumerate(data.frames()):
        for side in ("request", "response"):
            if side not in exchange:
                continue
            part = exchange[side]
            raw = bytes.fromhex(part["hex"])
            decoder = FrameDecoder()
            frames = decoder.feed(raw)
            assert decoder.error is None, decoder.error
            assert len(frames) == 1
            found.append(
                RecordedFrame(
                    f"{number}-{exchange['name']}-{side}",
                    BY_CODE[exchange["code"]],
                    side == "response",
                    raw,
                    frames[0],
                    part["header"],
                    part.get("bodyText"),
                )
            )
    return found
