"""Measures the cost of a frame: decode and encode, both header forms, on frames recorded from the official Java
client.

    python -m benchmarks.micro_wire

Prints microseconds of process CPU per frame. ``measure()`` returns the same as a dictionary.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from orbitmq.codes import SerializeType
from orbitmq.kernel import read_send
from orbitmq.wire.frame import Frame, FrameDecoder, encode_frame, encode_request, encode_response
from orbitmq.wire.header import decode_header, encode_ext
from orbitmq.wire.headers.consume import PullMessageRequest
from orbitmq.wire.headers.send import SendMessageRequestV2

SEND = {
    "a": "benchmark_producer",
    "b": "BenchmarkTest",
    "c": "TBW102",
    "d": "4",
    "e": "3",
    "f": "0",
    "g": "1794773001075",
    "h": "0",
    "i": "UNIQ_KEY\x017F0000014676C0DEE0B0588B00000001\x02WAIT\x01true\x02",
    "j": "0",
    "k": "false",
    "m": "false",
    "n": "broker-a",
}
PULL = {
    "consumerGroup": "benchmark_consumer",
    "topic": "BenchmarkTest",
    "queueId": "3",
    "queueOffset": "123456",
    "maxMsgNums": "32",
    "sysFlag": "2",
    "commitOffset": "0",
    "suspendTimeoutMillis": "15000",
    "subVersion": "1794773003669",
    "expressionType": "TAG",
    "maxMsgBytes": "262144",
    "bname": "broker-a",
}
REPLY = {
    "msgId": "7F0000010000533E0000000000000000",
    "queueId": "3",
    "queueOffset": "123456",
    "transactionId": "7F0000014676C0DEE0B0588B00000001",
    "MSG_REGION": "DefaultRegion",
    "TRACE_ON": "true",
}
BODY = b"x" * 128
PIPELINE = 64


def _best_us(run: Callable[[], object], per_run: int, runs: int = 200, rounds: int = 5) -> float:
    best = float("inf")
    for _ in range(rounds):
        started = time.process_time()
        for _ in range(runs):
            run()
        best = min(best, (time.process_time() - started) / (runs * per_run) * 1e6)
    return best


def measure() -> dict[str, float]:
    """Returns microseconds per frame, by operation."""
    results: dict[str, float] = {}
    for form in SerializeType:
        one = encode_request(310, 7, SEND, BODY, form)
        chunk = one * PIPELINE
        results[f"decode send frame, {form.name}"] = _best_us(partial(_decode, chunk), PIPELINE)
        (send,) = FrameDecoder().feed(one)
        (pull,) = FrameDecoder().feed(encode_request(11, 8, PULL, b"", form))
        read = partial(read_send, 310, int(form), send.ext_raw)
        results[f"send header, kernel, {form.name}"] = _best_us(read, 1, 5000)
        results[f"send header, typed reader, {form.name}"] = _best_us(
            partial(_fresh, send, SendMessageRequestV2), 1, 5000
        )
        results[f"pull header, typed reader, {form.name}"] = _best_us(
            partial(_fresh, pull, PullMessageRequest), 1, 5000
        )
        results[f"encode send frame, {form.name}"] = _best_us(
            partial(encode_request, 310, 7, SEND, BODY, form), 1, 5000
        )
        results[f"encode send reply, {form.name}"] = _best_us(
            partial(encode_response, 0, 7, REPLY, b"", None, form), 1, 5000
        )
        results[f"encode decoded frame again, {form.name}"] = _best_us(partial(encode_frame, send), 1, 5000)
    header = decode_header(PullMessageRequest, pull)
    results["fields of a pull header"] = _best_us(lambda: encode_ext(header), 1, 5000)
    return results


def _decode(chunk: bytes) -> object:
    return FrameDecoder().feed(chunk)


def _fresh(frame: Frame, kind: type[SendMessageRequestV2] | type[PullMessageRequest]) -> object:
    frame._ext = None
    return decode_header(kind, frame)


def main() -> None:
    for name, us in measure().items():
        print(f"{name:42} {us:6.2f} us")


if __name__ == "__main__":
    main()
