"""The HTTP side: requests, responses, and that a malicious peer can do no harm."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from orbitmq.metrics import endpoint as endpoint_module
from orbitmq.metrics.endpoint import MetricsEndpoint, Pages
from orbitmq.metrics.families import Declared, Families, Kind

UP = Declared("up", Kind.GAUGE, "It is up.")


class Server:
    """Pages whose responses a test chooses."""

    def __init__(self) -> None:
        self.alive = self.ready = ""
        self.broken = False

    async def families(self) -> Families:
        if self.broken:
            raise RuntimeError("a bug")
        families = Families({}, 10)
        families.gauge(UP, 1)
        return families

    def pages(self) -> Pages:
        return Pages(self.families, not_alive=lambda: self.alive, not_ready=lambda: self.ready)


def run(work: Callable[[Server, int], Awaitable[None]]) -> None:
    async def main() -> None:
        server = Server()
        endpoint = MetricsEndpoint("127.0.0.1", 0, server.pages())
        await endpoint.start()
        try:
            async with asyncio.timeout(10):
                await work(server, endpoint.port)
        finally:
            await endpoint.stop()

    asyncio.run(main())


async def ask(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await reader.read()
    finally:
        writer.close()


async def cut(answer: Awaitable[bytes]) -> bool:
    """Returns whether the connection ended without a response."""
    try:
        return await answer == b""
    except ConnectionError:
        return True


async def status(port: int, path: str) -> tuple[int, str]:
    answer = (await ask(port, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())).decode()
    head, _, body = answer.partition("\r\n\r\n")
    assert f"Content-Length: {len(body.encode())}" in head
    return int(head.split(" ")[1]), body


def test_pages_are_answered_with_their_state() -> None:
    async def work(server: Server, port: int) -> None:
        assert await status(port, "/metrics") == (200, "# HELP up It is up.\n# TYPE up gauge\nup 1.0\n")
        assert (await status(port, "/metrics?name=x"))[0] == 200
        assert await status(port, "/healthz") == (200, "ok\n")
        assert await status(port, "/readyz") == (200, "ok\n")
        server.ready = "the disk is full"
        assert await status(port, "/healthz") == (200, "ok\n")
        assert await status(port, "/readyz") == (503, "the disk is full\n")
        server.alive = "a part died"
        assert await status(port, "/healthz") == (503, "a part died\n")
        assert await status(port, "/readyz") == (503, "a part died\n")
        assert (await status(port, "/else"))[0] == 404

    run(work)


def test_page_with_a_bug_is_an_error_and_the_next_one_works(caplog: pytest.LogCaptureFixture) -> None:
    async def work(server: Server, port: int) -> None:
        server.broken = True
        assert (await status(port, "/metrics"))[0] == 500
        server.broken = False
        assert (await status(port, "/metrics"))[0] == 200

    run(work)
    assert "metrics request failed" in caplog.text


def test_head_has_no_body_and_other_methods_are_refused() -> None:
    async def work(_server: Server, port: int) -> None:
        answer = await ask(port, b"HEAD /metrics HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.endswith(b"\r\n\r\n")
        assert (await ask(port, b"POST /metrics HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 405 ")

    run(work)


def test_request_in_single_bytes_is_understood() -> None:
    async def work(_server: Server, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for byte in b"GET /healthz HTTP/1.1\r\n\r\n":
            writer.write(bytes((byte,)))
            await writer.drain()
        assert (await reader.read()).endswith(b"ok\n")
        writer.close()

    run(work)


@pytest.mark.parametrize(
    ("request_bytes", "start"),
    [
        (b"\x00\x00\x00\x10garbage\r\n\r\n", b"HTTP/1.1 400 "),
        (b"GET /metrics\r\n\r\n", b"HTTP/1.1 400 "),
        (b"GET / SPDY/3\r\n\r\n", b"HTTP/1.1 400 "),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 9_000, b"HTTP/1.1 431 "),
    ],
)
def test_bad_request_is_refused(request_bytes: bytes, start: bytes) -> None:
    async def work(_server: Server, port: int) -> None:
        assert (await ask(port, request_bytes)).startswith(start)

    run(work)


def test_silent_peers_are_cut_and_keep_no_probe_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "_REQUEST_S_MAX", 0.2)
    monkeypatch.setattr(endpoint_module, "_CONNECTIONS_MAX", 2)

    async def work(_server: Server, port: int) -> None:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        assert await status(port, "/healthz") == (200, "ok\n"), "the oldest makes room"
        for reader, writer in silent:
            assert await cut(reader.read())
            writer.close()
        assert await status(port, "/healthz") == (200, "ok\n")

    run(work)


def test_port_that_is_taken_is_said_with_the_option_to_change() -> None:
    async def work(_server: Server, port: int) -> None:
        another = MetricsEndpoint("127.0.0.1", port, Server().pages())
        with pytest.raises(OSError, match="metricsPromExporterPort"):
            await another.start()
        await another.stop()

    run(work)


def test_metrics_with_a_token_are_for_who_bears_it_and_probes_for_everybody() -> None:
    async def main() -> None:
        endpoint = MetricsEndpoint("127.0.0.1", 0, Server().pages())
        endpoint.token = "s3cret"
        await endpoint.start()
        try:
            port = endpoint.port
            assert (await status(port, "/metrics"))[0] == 401
            assert (await status(port, "/metrics?x=1"))[0] == 401
            assert (await status(port, "/readyz"))[0] == 200
            for given, expected in (("Bearer s3cret", b"200"), ("Bearer s3cre", b"401"), ("s3cret", b"401")):
                request = f"GET /metrics HTTP/1.1\r\nauthorization: {given}\r\n\r\n".encode()
                assert (await ask(port, request)).split(b" ")[1] == expected
        finally:
            await endpoint.stop()

    asyncio.run(main())
