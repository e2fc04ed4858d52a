"""Log lines: one event, one line, whatever a peer uses as a name."""

from __future__ import annotations

import logging

from orbitmq.runtime.logs import OneLineFormatter


def formatted(message: str, *arguments: object) -> str:
    record = logging.LogRecord("orbitmq.test", logging.INFO, "", 0, message, arguments, None)
    return OneLineFormatter("%(levelname)s %(message)s").format(record)


def test_line_with_control_characters_from_a_peer_stays_one_line() -> None:
    forged = "client\n2026-01-01 ERROR store lost\r\x1b[2J\x85\u2028\u2029\x7f"
    line = formatted("client left id=%s", forged)
    assert len(line.splitlines()) == 1
    assert line == (
        r"INFO client left id=client\x0a2026-01-01 ERROR store lost\x0d\x1b[2J\x85\u2028\u2029\x7f"
    )


def test_line_of_plain_text_is_kept() -> None:
    assert (
        formatted("topic created name=%s", "Bestellungen-ä-订单")
        == "INFO topic created name=Bestellungen-ä-订单"
    )


def test_traceback_after_the_line_keeps_its_lines() -> None:
    try:
        raise ValueError("broken")
    except ValueError as error:
        record = logging.LogRecord(
            "t", logging.ERROR, "", 0, "failed", (), (ValueError, error, error.__traceback__)
        )
    lines = OneLineFormatter("%(message)s").format(record).splitlines()
    assert lines[0] == "failed"
    assert lines[-1] == "ValueError: broken"
