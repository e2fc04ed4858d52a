"""Clients that were not stopped, and ``tls=True``."""

from __future__ import annotations

import asyncio
import gc
import ssl
import threading
import warnings
from collections.abc import Iterator

import pytest

from orbitmq import Producer, ProducerOptions, sync
from orbitmq.testing import RunningBroker, run_broker


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with run_broker() as running:
        yield running


def resource_warnings(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(w.message) for w in caught if "was not stopped" in str(w.message)]


def loop_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "orbitmq-loop"}


def test_asyncio_client_that_was_not_stopped_warns_once(broker: RunningBroker) -> None:
    async def leave() -> str:
        producer = Producer("left", broker.name_server)
        await producer.start()
        return producer.client_id

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        client_id = asyncio.run(leave())
        gc.collect()
    [text] = resource_warnings(caught)
    assert client_id in text
    assert "async with" in text


def test_plain_client_that_was_not_stopped_warns_once_and_its_thread_ends(broker: RunningBroker) -> None:
    before = loop_threads()

    def leave() -> None:
        sync.Producer("left-plain", broker.name_server).start()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        leave()
        gc.collect()
        for thread in loop_threads() - before:
            thread.join(10)
        gc.collect()
    assert len(resource_warnings(caught)) == 1
    assert loop_threads() <= before


def test_clients_that_were_stopped_or_never_started_do_not_warn(broker: RunningBroker) -> None:
    async def stopped() -> None:
        async with Producer("stopped", broker.name_server):
            pass
        Producer("never-started", broker.name_server)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(stopped())
        with sync.Producer("stopped-plain", broker.name_server):
            pass
        gc.collect()
    assert not resource_warnings(caught)


def test_tls_true_verifies_and_false_is_plain_text() -> None:
    context = ProducerOptions(tls=True).tls_context
    assert context is not None
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert ProducerOptions(tls=False).tls_context is None
