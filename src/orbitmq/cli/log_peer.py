"""Reads bytes of another broker's log over its replication port.

The broker may be ours or Apache's, a master or a slave. The port sends its log from the offset that a slave reports.
So a range is read over a short connection: it reports the start of the range, receives the transfers up to its end,
and disconnects. Offset 0 is special, because an empty slave is sent the newest segment, so a range from 0 is
requested from 1. The byte at 0 is the first of a record's size, which is zero below 16 MiB.
"""

from __future__ import annotations

import socket
from typing import Final

from orbitmq.broker.replication.protection import StreamProtection
from orbitmq.broker.replication.stream import TransferReader, encode_hello, encode_report
from orbitmq.cli.settings import read_broker_settings
from orbitmq.errors import RemoteProtocolError
from orbitmq.store.tools.repair import FetchFailed
from orbitmq.transport.client import split_address
from orbitmq.transport.tls import server_tls

__all__ = ["LogPeer", "protection_of"]

_TIMEOUT_S: Final = 15.0
"""Seconds to wait. An Apache broker that lacks the bytes is silent for five seconds and then sends a heartbeat."""
_READ_BYTES: Final = 256 * 1024


def protection_of(config_file: str | None) -> StreamProtection:
    """Returns the protection with which a broker with this configuration follows its master. Raises
    ``ConfigError``.
    """
    if config_file is not None:
        settings = read_broker_settings(config_file, ())
        if settings.config.replication_tls:
            tls = settings.more.tls
            return StreamProtection.of(tls, server_tls(tls), settings.more.auth)
    return StreamProtection()


class LogPeer:
    """The log of the broker at a replication address."""

    def __init__(self, ha_address: str, protection: StreamProtection | None = None) -> None:
        """``protection`` is what the broker's slaves use. Raises ``ValueError`` if the address is not
        ``host:port``.
        """
        self.address = ha_address
        self._host, self._port = split_address(ha_address)
        self._protection = protection or StreamProtection()

    def fetch(self, start: int, end: int) -> bytes:
        """Returns the bytes between two log offsets. Raises ``FetchFailed``."""
        if start == 0:
            return b"\0" + self.fetch(1, end)
        try:
            with self._connect() as link:
                hello = self._protection.hello()
                link.sendall((b"" if hello is None else encode_hello(hello)) + encode_report(start))
                return self._take(link, start, end)
        except (OSError, RemoteProtocolError) as error:
            raise FetchFailed(f"{self.address}: {error}") from None

    def _connect(self) -> socket.socket:
        link = socket.create_connection((self._host, self._port), timeout=_TIMEOUT_S)
        tls = self._protection.client
        if tls is None:
            return link
        try:
            return tls.wrap_socket(link, server_hostname=self._host)
        except BaseException:
            link.close()
            raise

    def _take(self, link: socket.socket, start: int, end: int) -> bytes:
        reader, got = TransferReader(), bytearray()
        while len(got) < end - start:
            data = link.recv(_READ_BYTES)
            if not data:
                raise FetchFailed(
                    f"{self.address} does not have log offsets {start} to {end}, and closed the connection"
                )
            for log_offset, body in reader.feed(data):
                if not body:
                    raise FetchFailed(f"{self.address} has nothing at log offset {start + len(got)}")
                if log_offset != start + len(got):
                    raise FetchFailed(f"{self.address} sent log offset {log_offset}, not {start + len(got)}")
                got += body
        return bytes(got[: end - start])
