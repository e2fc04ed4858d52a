"""Our proxy in front of Apache's broker answers the recorded calls like Apache's proxy."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator

import grpc
import pytest
from tests.apache.artifacts import LATEST
from tests.apache.proxy_stack import BROKER_OPTIONS, OurProxy, create_golden_names
from tests.apache.servers import ApacheBroker, ApacheNamesrv
from tests.proxy.golden import GOLDEN, QUICK, GoldenPlayer, TelemetryStream, differences
from tests.proxy.half import end, send_half

from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb

pytestmark = [pytest.mark.apache, pytest.mark.slow]

ALLOWED = {"receive before telemetry"}
"""Apache answers INTERNAL_SERVER_ERROR with a null pointer's text, ours UNRECOGNIZED_CLIENT_TYPE."""


@pytest.fixture(scope="module")
def proxy(apache_tools: None) -> Iterator[OurProxy]:
    with ApacheNamesrv(LATEST) as namesrv, ApacheBroker(LATEST, namesrv, **BROKER_OPTIONS) as broker:
        create_golden_names(namesrv, broker)
        with OurProxy(namesrv, **QUICK) as running:
            yield running


def test_recorded_calls_before_an_apache_broker_are_answered_alike(proxy: OurProxy) -> None:
    player = GoldenPlayer(proxy.address)
    found: list[str] = []
    try:
        for exchange in GOLDEN["cluster"]:
            if "rpc" not in exchange or exchange["label"] in ALLOWED:
                continue
            found += [f"{exchange['label']}{line}" for line in differences(exchange, player.play(exchange))]
    finally:
        player.close()
    assert not found, "\n".join(found)


def test_orphaned_transaction_is_asked_about_over_telemetry(proxy: OurProxy) -> None:
    channel = grpc.insecure_channel(proxy.address)
    stream = TelemetryStream(channel, "asked")
    settings = pb.Settings(client_type=pb.PRODUCER)
    settings.publishing.topics.add().name = "GTransC"
    stream.send(pb.TelemetryCommand(settings=settings))
    assert stream.receive().status.code == pb.OK
    message = pb.Message(topic=pb.Resource(name="GTransC"), body=b"left open")
    message.system_properties.message_id = "01FFFFFFFFFFFFFFFFFFFFFFFFFFFFFF01"
    message.system_properties.message_type = pb.TRANSACTION
    send = channel.unary_unary(
        "/apache.rocketmq.v2.MessagingService/SendMessage",
        pb.SendMessageRequest.SerializeToString,
        pb.SendMessageResponse.FromString,
    )
    answer = send(
        pb.SendMessageRequest(messages=[message]), metadata=[("x-mq-client-id", "asked")], timeout=10
    )
    assert answer.status.code == pb.OK
    # The brokers also check back for transactions of the recorded calls.
    command = stream.receive().recover_orphaned_transaction_command
    while command.transaction_id != message.system_properties.message_id:
        command = stream.receive().recover_orphaned_transaction_command
    stream.close()
    channel.close()
    assert command.message.body == b"left open"
    assert command.message.system_properties.message_type == pb.TRANSACTION


def test_transaction_is_ended_after_a_restart_of_the_proxy(proxy: OurProxy) -> None:
    """The half message is found in the index of Apache's broker."""
    message_id = "01FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFB1"
    send_half(proxy.address, "GTransC", message_id)
    proxy.kill()
    proxy.start()
    assert end(proxy.address, "GTransC", message_id, pb.COMMIT) == pb.OK
    assert end(proxy.address, "GTransC", message_id, pb.COMMIT) == pb.INTERNAL_SERVER_ERROR


def test_tls_on_the_port_of_plain_text_is_served_with_alpn(proxy: OurProxy) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", proxy.port), 5) as plain,
        context.wrap_socket(plain) as secured,
    ):
        assert secured.selected_alpn_protocol() == "h2"
        assert secured.version() == "TLSv1.3"
