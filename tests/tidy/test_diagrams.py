"""Diagrams that the code determines are what the code says now."""

from __future__ import annotations

from scripts.build_diagrams import DOCUMENT, updated


def test_generated_diagrams_are_up_to_date() -> None:
    text = DOCUMENT.read_text("utf-8")
    assert updated(text) == text, "run python -m scripts.build_diagrams"
