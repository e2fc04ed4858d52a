"""The heartbeat of the C++ client 2.x, as its Python binding (PyPI rocketmq 0.4.4) sent it."""

from __future__ import annotations

import pytest

from orbitmq.errors import BodyError
from orbitmq.wire.bodies import HeartbeatData

SENT = (
    b'{"clientID":"8284-127.0.0.1@DEFAULT","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,"groupName":"kk",'
    b'"messageModel":1,"subscriptionDataSet":[{"subString":"*","subVersion":"1794783558556","topic":"%RETRY%kk"},'
    b'{"codeSet":[0,0],"subString":"A || B","subVersion":"1794783558556","tagsSet":["A","B"],"topic":"bench"}]}]}\n'
)


def test_ordinals_and_text_versions_are_read() -> None:
    [consumer] = HeartbeatData.decode(SENT).consumer_data_set
    assert consumer.consume_from_where == "CONSUME_FROM_LAST_OFFSET"
    assert (consumer.consume_type, consumer.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert [item.sub_version for item in consumer.subscription_data_set] == [1794783558556] * 2


@pytest.mark.parametrize(
    "broken",
    [
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":9}]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":1,"subscriptionDataSet":[7]}]}',
        b'{"clientID":"c","consumerDataSet":7}',
        b'{"consumerDataSet":[]}',
        b"[1]",
    ],
)
def test_other_faults_stay_faults(broken: bytes) -> None:
    with pytest.raises(BodyError):
        HeartbeatData.decode(broken)
