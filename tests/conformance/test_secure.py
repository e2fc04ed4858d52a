"""Signed requests and TLS against Apache's own broker with access lists."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.apache.artifacts import LEGACY, prepare, require
from tests.apache.servers import ApacheBroker, ApacheNamesrv
from tests.conformance.waiting import Collector

from orbitmq.client import ConsumeFromWhere, Credentials, Message, Producer, PushConsumer, SendFailed
from orbitmq.codes import SerializeType
from orbitmq.errors import BrokerError
from orbitmq.transport.tls import client_context

pytestmark = pytest.mark.apache

ACCESS = """
accounts:
- accessKey: orbitmq-test
  secretKey: 12345678
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - secured=PUB|SUB
"""
TLS = {"tls.server.mode": "permissive", "tls.test.mode.enable": "true"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheNamesrv]:
    """A name server and a broker of 4.9.7 that accept TLS or plain connections, and require signatures."""
    require()
    prepare()
    home: Path = tmp_path_factory.mktemp("broker")
    (home / "conf").mkdir()
    (home / "conf" / "plain_acl.yml").write_text(ACCESS)
    properties = TLS | {"rocketmq.home.dir": str(home)}
    with (
        ApacheNamesrv(LEGACY, properties=TLS) as namesrv,
        ApacheBroker(LEGACY, namesrv, workdir=home, properties=properties, aclEnable=True),
    ):
        yield namesrv


@pytest.mark.parametrize("serialize", list(SerializeType))
async def test_signed_and_encrypted_messages_arrive(guarded: ApacheNamesrv, serialize: SerializeType) -> None:
    settings: dict[str, Any] = {
        "credentials": Credentials("orbitmq-test", "12345678"),
        "tls": client_context(),
        "serialize": serialize,
    }
    collector = Collector()
    consumer = PushConsumer(
        f"signed-{serialize.name}", guarded.address, from_where=ConsumeFromWhere.FIRST_OFFSET, **settings
    )
    collector.on(consumer, "secured")
    async with Producer("signing", guarded.address, **settings) as producer:
        result = await producer.send(Message("secured", "größe", keys="k"))
        async with consumer:
            messages = await collector.wait(1)
    assert result.message_id in {message.message_id for message in messages}


async def test_wrong_secret_and_forbidden_topic_are_refused(guarded: ApacheNamesrv) -> None:
    for credentials, topic in (
        (Credentials("orbitmq-test", "wrong-secret"), "secured"),
        (Credentials("orbitmq-test", "12345678"), "TBW102"),
    ):
        async with Producer("forging", guarded.address, credentials=credentials, retries=0) as producer:
            with pytest.raises((BrokerError, SendFailed)) as caught:
                await producer.send(Message(topic, "x"))
        cause = caught.value.__cause__ or caught.value
        assert isinstance(cause, BrokerError)
        assert cause.response_code in (1, 16)
