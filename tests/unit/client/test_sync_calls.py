"""The blocking calls match those of the asyncio clients."""

from __future__ import annotations

import inspect

import pytest
from scripts.build_sync import TARGET, generated

from orbitmq import client, sync

KINDS = ("LitePullConsumer", "Producer", "PullConsumer", "PushConsumer", "SimpleConsumer")
WITHOUT_BLOCKING_FORM = {"abandoned", "options", "consume_type", "handles_here"}
MEMBER = {"consumer_data", "producer_data", "topics"}
"""What a producer tells brokers, not a call for users."""


def test_generated_calls_are_up_to_date() -> None:
    assert TARGET.read_text() == generated(), "run python scripts/build_sync.py"


@pytest.mark.parametrize("kind", KINDS)
def test_every_call_of_an_asyncio_client_has_a_blocking_one(kind: str) -> None:
    public = {name for name, _ in inspect.getmembers(getattr(client, kind)) if not name.startswith("_")}
    missing = public - set(dir(getattr(sync, kind))) - WITHOUT_BLOCKING_FORM - MEMBER
    assert not missing
