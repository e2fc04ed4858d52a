"""The table of events in the broker's README is what the subscribers in the code say."""

from __future__ import annotations

import ast
import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from orbitmq.broker.events import BrokerEvents

BROKER = Path(__file__).parents[2] / "src" / "orbitmq" / "broker"
README = BROKER / "README.md"
BEGIN, END = "<!-- events -->\n", "<!-- /events -->\n"
EVENTS = [field.name for field in dataclasses.fields(BrokerEvents)]


def subscriptions() -> Iterator[tuple[str, str, str]]:
    """Event, module and subscriber of every ``events.name.append(...)`` and ``of_topic[...] = ...``."""
    for path in sorted(BROKER.rglob("*.py")):
        module = path.relative_to(BROKER).as_posix()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            target, value = "", None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                if node.func.attr in ("append", "insert"):
                    target, value = ast.unparse(node.func.value), node.args[-1]
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
                target, value = ast.unparse(node.targets[0].value), node.value
            event = next((name for name in EVENTS if f"events.{name}" in target), "")
            if target == "self._arrived":
                event = "arrived"
            if event and value is not None:
                subscriber = ast.unparse(value).removeprefix("self.").removeprefix("lambda _keys: self.")
                yield event, module, subscriber.removesuffix("()")


def table() -> str:
    found = defaultdict(list)
    for event, module, subscriber in subscriptions():
        found[event].append(f"`{module}` {subscriber}")
    rows = "".join(f"| `{event}` | {', '.join(found[event])} |\n" for event in EVENTS)
    return f"| event | subscribers |\n| --- | --- |\n{rows}"


def test_the_readme_lists_the_subscribers_of_every_event() -> None:
    text = README.read_text("utf-8")
    shown = text.partition(BEGIN)[2].partition(END)[0].strip("\n") + "\n"
    assert shown == table(), f"the table should be:\n{table()}"


def test_every_event_has_a_subscriber() -> None:
    assert set(EVENTS) == {event for event, _, _ in subscriptions()}
