"""Options of the name server, under Apache's keys (NamesrvConfig, NettyServerConfig, TlsSystemConfig)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orbitmq.runtime.options import option, options_of, render_value
from orbitmq.transport.tls import TlsConfig, client_tls, server_tls

__all__ = ["BLACK_LIST", "NameServerConfig", "client_tls", "file_path", "render_config", "server_tls"]

BLACK_LIST: Final = frozenset({"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"})
"""Keys that no request may change, whatever is configured, because they name files of this machine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NameServerConfig(TlsConfig):
    """The options of a name server."""

    listen_port: int = option(
        9876, apache="listenPort", low=0, high=65_535, doc="Port to listen on; 0 lets the system choose."
    )
    bind_address: str = option(
        "0.0.0.0", apache="bindAddress", doc="Address to listen on; 0.0.0.0 is every interface."
    )
    advertised_addresses: str = option(
        "",
        apache="advertisedAddresses",
        doc="Broker addresses shown to clients instead of the registered ones, for clients of another network: "
        "host:port=host:port;... Not an Apache key.",
    )
    rocketmq_home: str = option(
        "",
        apache="rocketmqHome",
        doc="Where an Apache installation is; shown to tools that ask.",
        without_effect="nothing is read from it",
    )
    kv_config_path: str = option(
        "~/namesrv/kvConfig.json",
        apache="kvConfigPath",
        doc="File of the key-value configuration. Empty: kept in memory only.",
    )
    config_store_path: str = option(
        "~/namesrv/namesrv.properties",
        apache="configStorePath",
        doc="File that changes made by requests are written to; the -c file when one was given. Empty: none.",
    )
    config_black_list: str = option(
        "configBlackList;configStorePath;kvConfigPath",
        apache="configBlackList",
        doc="Keys no request may change, separated by semicolons; rocketmqHome always belongs to them.",
    )
    order_message_enable: bool = option(
        False,
        apache="orderMessageEnable",
        reload=True,
        doc="Put the ORDER_TOPIC_CONFIG entry of a topic into its route.",
    )
    return_order_topic_config_to_broker: bool = option(
        True,
        apache="returnOrderTopicConfigToBroker",
        reload=True,
        doc="Answer a registration with the ORDER_TOPIC_CONFIG table.",
    )
    cluster_test: bool = option(
        False,
        apache="clusterTest",
        reload=True,
        doc="Test environment: routes always carry their ORDER_TOPIC_CONFIG entry, and topics unknown here are "
        "asked for at productNamesrvAddr.",
    )
    product_env_name: str = option(
        "center",
        apache="productEnvName",
        doc="Name of the production environment, shown to tools that ask.",
        without_effect="the name servers of that environment are those of productNamesrvAddr",
    )
    product_namesrv_addr: str = option(
        "",
        apache="productNamesrvAddr",
        doc="With clusterTest: name servers of the production environment, host:port;host:port. Not an Apache key.",
    )
    scan_interval_ms: int = option(
        5_000,
        apache="scanNotActiveBrokerInterval",
        low=10,
        doc="Pause between two checks for brokers that sent nothing within their timeout.",
    )
    broker_timeout_ms: int = option(
        120_000,
        apache="brokerChannelExpiredTime",
        low=100,
        doc="How long a broker that names no timeout itself may stay silent. Not configurable in Apache.",
    )
    unregister_queue_capacity: int = option(
        3_000,
        apache="unRegisterBrokerQueueCapacity",
        low=1,
        doc="Unregistrations that may wait.",
        without_effect="a broker is removed while its request is handled; there is no queue",
    )
    support_acting_master: bool = option(
        False,
        apache="supportActingMaster",
        reload=True,
        doc="Show clients the surviving slave with the smallest id as master when the group has none.",
    )
    enable_all_topic_list: bool = option(
        True, apache="enableAllTopicList", reload=True, doc="Answer the request for all topics."
    )
    enable_topic_list: bool = option(
        True,
        apache="enableTopicList",
        reload=True,
        doc="Answer requests for the topics of a cluster or unit.",
    )
    notify_min_broker_id_changed: bool = option(
        False,
        apache="notifyMinBrokerIdChanged",
        reload=True,
        doc="Tell the brokers of a group when its smallest live id changes.",
    )
    need_wait_for_service: bool = option(
        False,
        apache="needWaitForService",
        reload=True,
        doc="Refuse route requests during the first waitSecondsForService seconds, until brokers had time to come.",
    )
    wait_for_service_s: int = option(
        45, apache="waitSecondsForService", low=0, reload=True, doc="See needWaitForService."
    )
    delete_topic_with_broker_registration: bool = option(
        False,
        apache="deleteTopicWithBrokerRegistration",
        reload=True,
        doc="A registration that lacks a topic removes it for this broker. Needs "
        "enableSingleTopicRegister=true on the brokers; never applied to static topics.",
    )
    channel_idle_s: int = option(
        120,
        apache="serverChannelMaxIdleTimeSeconds",
        low=1,
        doc="A connection with neither read nor write for this long is closed.",
    )
    connections_max: int = option(
        16_384, apache="serverConnectionsMax", low=1, doc="Connections served at once. Not an Apache key."
    )
    route_cache_bytes: int = option(
        64 * 1024 * 1024,
        apache="routeCacheBytes",
        low=0,
        doc="Encoded routes kept ready; when more come the store is emptied and fills again. Not an Apache key.",
    )
    metrics_exporter: str = option(
        "DISABLE",
        apache="metricsExporterType",
        choices=("DISABLE", "PROM"),
        doc="PROM: serve /metrics, /healthz and /readyz over HTTP. Apache's name server has no such thing.",
    )
    metrics_port: int = option(
        5558,
        apache="metricsPromExporterPort",
        low=0,
        high=65_535,
        doc="Port of the metrics; 0 lets the system choose. One above the broker's, so that both fit on a machine.",
    )
    metrics_host: str = option(
        "127.0.0.1", apache="metricsPromExporterHost", doc="Address the metrics listen on."
    )
    metrics_token: str = option(
        "",
        apache="metricsPromExporterToken",
        secret=True,
        doc="Token /metrics asks for (Authorization: Bearer); empty: none. Not an Apache key.",
    )
    metrics_labels: str = option(
        "", apache="metricsLabel", doc="Labels added to every figure: name:value,name:value."
    )

    @property
    def black_list(self) -> frozenset[str]:
        """The keys that no request may change."""
        return BLACK_LIST | {key for key in self.config_black_list.split(";") if key}


def file_path(text: str) -> str | None:
    """Returns the absolute path that an option names, or ``None`` for an empty text, which means "no file"."""
    return str(Path(text).expanduser().absolute()) if text else None


def render_config(config: NameServerConfig) -> str:
    """Returns the configuration as properties text, sorted by key, in the form of the GET_NAMESRV_CONFIG answer.
    Secrets are masked."""
    lines = []
    for declared in options_of(NameServerConfig):
        value = getattr(config, declared.name)
        if declared.key in ("kvConfigPath", "configStorePath"):
            value = file_path(value)
        text = "******" if declared.secret and value else render_value(value)
        lines.append(f"{declared.key}={text}\n")
    return "".join(sorted(lines))
