"""Options of a filter server, with Apache's keys where they exist (FiltersrvConfig)."""

from __future__ import annotations

from dataclasses import dataclass

from orbitmq.auth.config import Credentials, read_credentials
from orbitmq.runtime.options import option
from orbitmq.transport.tls import TlsConfig

__all__ = ["FilterServerConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FilterServerConfig(TlsConfig):
    """The options of a filter server."""

    listen_port: int = option(
        0, apache="listenPort", low=0, high=65_535, doc="Port to listen on; 0 lets the system choose."
    )
    bind_address: str = option("127.0.0.1", apache="bindAddress", doc="Address to listen on.")
    public_host: str = option(
        "", apache="filterServerIP", doc="Host registered for consumers; empty: the address listened on."
    )
    broker_address: str = option(
        "127.0.0.1:10911", apache="connectWhichBroker", doc="The broker whose messages are filtered."
    )
    inner_credentials: str = option(
        "",
        apache="innerClientAuthenticationCredentials",
        secret=True,
        doc='{"accessKey":"u","secretKey":"p"}: signs what this server asks a broker itself. Pulls of consumers keep '
        "the signature of the consumer, so a consumer gets what it may read and no more.",
    )
    class_directory: str = option(
        "",
        apache="filterClassDirectory",
        doc="Where filter classes lie: shop.orders.Paid is class Paid in shop/orders.py. Empty: none do.",
    )
    upload_allowed: bool = option(
        False,
        apache="clientUploadFilterClassEnable",
        doc="Consumers may upload the source of their filter class, so anyone who can reach the port can run code.",
    )
    source_bytes_max: int = option(
        256 << 10, apache="filterClassSizeMax", low=1, doc="Longest source of a filter class."
    )
    classes_max: int = option(
        64,
        apache="filterClassCountMax",
        low=1,
        doc="Groups with a class at a time; each has a process of its own.",
    )
    memory_bytes_max: int = option(
        256 << 20,
        apache="filterMemoryMax",
        low=64 << 20,
        doc="Address space of the process of a class; beyond it the class gets a MemoryError.",
    )
    batch_time_ms_max: int = option(
        1000,
        apache="filterTimeoutMillis",
        low=1,
        doc="Longest a class may take for one batch of messages; then its process is ended.",
    )

    def __post_init__(self) -> None:
        _ = self.credentials  # a bad one stops the start

    @property
    def credentials(self) -> Credentials | None:
        return read_credentials("innerClientAuthenticationCredentials", self.inner_credentials)
