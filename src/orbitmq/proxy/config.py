"""Settings of a proxy: the keys of Apache's ``rmq-proxy.json`` (Apache: ProxyConfig)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from orbitmq.errors import ConfigError
from orbitmq.runtime.options import Properties, config_from_properties, option, render_value
from orbitmq.transport.tls import OutgoingTls

__all__ = ["ProxyConfig", "read_proxy_config"]


@dataclass(frozen=True, kw_only=True)
class ProxyConfig(OutgoingTls):
    """The settings of a proxy. Times are in the units of Apache's keys."""

    mode: str = option(
        "CLUSTER",
        apache="proxyMode",
        choices=("CLUSTER", "LOCAL", "cluster", "local"),
        doc="CLUSTER: in front of the brokers of a cluster. LOCAL: inside a broker, see orbitmq broker --proxy.",
    )
    cluster_name: str = option(
        "DefaultCluster", apache="rocketMQClusterName", doc="Cluster the proxy serves."
    )
    proxy_cluster_name: str = option(
        "DefaultCluster", apache="proxyClusterName", doc="Name of the group of proxies."
    )
    proxy_name: str = option(
        "",
        apache="proxyName",
        doc="Name of this proxy; empty for the name of the machine.",
        without_effect="the name is not shown anywhere",
    )
    name_servers: str = option("", apache="namesrvAddr", doc="Name servers, host:port separated by ';'.")
    bind_address: str = option(
        "", apache="bindAddress", doc="Address to listen on; empty for all. Not in Apache."
    )
    port: int = option(
        8081, apache="grpcServerPort", low=0, high=65_535, doc="Port of gRPC; 0 lets the system choose."
    )
    message_bytes_in: int = option(
        136_314_880, apache="grpcMaxInboundMessageSize", low=1, doc="Largest call in bytes."
    )
    idle_ms: int = option(
        120_000, apache="grpcClientIdleTimeMills", low=1, doc="A silent connection without calls is closed."
    )
    balancers: str = option(
        "",
        apache="proxyProtocolFrom",
        doc="Addresses and networks of load balancers that may name the client by the PROXY protocol, separated by"
        " commas; nobody else may. Not in Apache.",
    )
    endpoint_port_from_request: bool = option(
        False,
        apache="useEndpointPortFromRequest",
        doc="Routes name the port the client asked at, not grpcServerPort: for balancers that change it.",
    )
    local_address: str = option(
        "", apache="localServeAddr", doc="Address local mode puts into routes; empty for the broker's."
    )
    tls_mode: str = option(
        "permissive",
        apache="tls.server.mode",
        choices=("disabled", "permissive", "enforcing"),
        doc="Whether TLS and plain text are accepted.",
    )
    tls_test_mode: bool = option(
        True, apache="tlsTestModeEnable", doc="Make a self-signed certificate at start."
    )
    tls_key: str = option("", apache="tlsKeyPath", doc="Private key in PEM, when tlsTestModeEnable is false.")
    tls_key_password: str = option("", apache="tlsKeyPassword", doc="Password of the private key.")
    tls_certificate: str = option("", apache="tlsCertPath", doc="Certificate chain in PEM.")
    tls_watch_ms: int = option(
        3_600_000, apache="tlsCertWatchIntervalMs", low=100, doc="How often the files are read again."
    )
    body_bytes_max: int = option(4_194_304, apache="maxMessageSize", low=1, doc="Largest body of a message.")
    check_empty_body: bool = option(
        True, apache="enableMessageBodyEmptyCheck", doc="Refuse messages without a body."
    )
    user_property_bytes: int = option(
        16_384, apache="maxUserPropertySize", low=0, doc="User properties, tag and keys together."
    )
    user_property_count: int = option(
        128, apache="userPropertyMaxNum", low=0, doc="User properties of a message."
    )
    message_group_bytes: int = option(
        64, apache="maxMessageGroupSize", low=1, doc="A message group must be shorter."
    )
    lite_topic_bytes: int = option(64, apache="maxLiteTopicSize", low=1, doc="Longest name of a lite topic.")
    lite_quota: int = option(2000, apache="maxLiteSubscriptionQuota", low=0, doc="Value sent to clients.")
    check_message_type: bool = option(
        True, apache="enableTopicMessageTypeCheck", doc="Messages must be of their topic's type."
    )
    invisible_default_ms: int = option(
        60_000, apache="defaultInvisibleTimeMills", low=1, doc="Of messages renewed by the proxy."
    )
    invisible_min_ms: int = option(
        10_000, apache="minInvisibleTimeMillsForRecv", low=0, doc="Shortest a receive may ask for."
    )
    invisible_max_ms: int = option(
        43_200_000, apache="maxInvisibleTimeMills", low=1, doc="Longest a call may ask for."
    )
    delay_max_ms: int = option(
        86_400_000, apache="maxDelayTimeMills", low=0, doc="How far ahead a delivery time may be."
    )
    recovery_max_s: int = option(
        3600, apache="maxTransactionRecoverySecond", low=0, doc="Longest wait for the first check."
    )
    use_delay_level: bool = option(
        False, apache="useDelayLevel", doc="Send a delay level in addition to the delivery time."
    )
    delay_levels: str = option(
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        apache="messageDelayLevel",
        doc="Delay levels of the brokers.",
    )
    producer_attempts: int = option(
        3, apache="grpcClientProducerMaxAttempts", low=1, doc="Value sent to producers."
    )
    producer_backoff_initial_ms: int = option(
        10, apache="grpcClientProducerBackoffInitialMillis", low=0, doc="The same."
    )
    producer_backoff_max_ms: int = option(
        1000, apache="grpcClientProducerBackoffMaxMillis", low=0, doc="The same."
    )
    producer_backoff_multiplier: int = option(
        2, apache="grpcClientProducerBackoffMultiplier", low=1, doc="The same."
    )
    polling_min_ms: int = option(
        5000, apache="grpcClientConsumerMinLongPollingTimeoutMillis", low=0, doc="Shortest poll."
    )
    polling_max_ms: int = option(
        20_000, apache="grpcClientConsumerMaxLongPollingTimeoutMillis", low=0, doc="Longest poll."
    )
    polling_reserve_ms: int = option(
        100, apache="longPollingReserveTimeInMillis", low=0, doc="Kept for the answer."
    )
    batch_size: int = option(
        32, apache="grpcClientConsumerLongPollingBatchSize", low=1, high=32, doc="Value sent to consumers."
    )
    client_expiry_ms: int = option(
        120_000, apache="channelExpiredTimeout", low=1, doc="Without heartbeats a client is gone."
    )
    transaction_heartbeat_s: int = option(
        20, apache="transactionHeartbeatPeriodSecond", low=1, doc="To the brokers."
    )
    transaction_data_ms: int = option(
        30_000, apache="transactionDataExpireMillis", low=1, doc="How long a transaction can be ended."
    )
    auto_renew: bool = option(True, apache="enableProxyAutoRenew", doc="Renew what push consumers hold.")
    renew_ahead_ms: int = option(
        10_000, apache="renewAheadTimeMillis", low=0, doc="Renewed when less is left."
    )
    renew_max_ms: int = option(
        10_800_000, apache="renewMaxTimeMillis", low=0, doc="Renewed no longer than that."
    )
    renew_period_ms: int = option(
        5000, apache="renewSchedulePeriodMillis", low=10, doc="How often that is looked at."
    )
    renew_attempts: int = option(3, apache="maxRenewRetryTimes", low=1, doc="Failures in a row that end it.")
    invisible_when_cleared_ms: int = option(
        1000, apache="invisibleTimeMillisWhenClear", low=0, doc="Of messages given back."
    )
    cache_refresh_s: int = option(
        20, apache="topicRouteServiceCacheRefreshSeconds", low=1, doc="Age of routes and settings."
    )
    cache_expiry_s: int = option(
        300, apache="topicRouteServiceCacheExpiredSeconds", low=1, doc="Unused ones are dropped."
    )
    cache_entries: int = option(
        20_000, apache="topicRouteServiceCacheMaxNum", low=1, doc="Topics, and groups, kept."
    )
    batch_ack: bool = option(False, apache="enableBatchAck", doc="Acknowledge in one request per broker.")
    metrics_exporter: str = option(
        "DISABLE",
        apache="metricsExporterType",
        choices=("DISABLE", "disable", "PROM", "prom"),
        doc="PROM: figures for Prometheus over HTTP.",
    )
    metrics_port: int = option(
        5557, apache="metricsPromExporterPort", low=0, high=65_535, doc="Port of the figures."
    )
    metrics_host: str = option(
        "", apache="metricsPromExporterHost", doc="Address of the figures; empty for all."
    )
    authentication: bool = option(False, apache="authenticationEnabled", doc="Clients must sign their calls.")
    authorization: bool = option(
        False, apache="authorizationEnabled", doc="Users need a policy for what they do."
    )
    inner_credentials: str = option(
        "",
        apache="innerClientAuthenticationCredentials",
        doc='{"accessKey": ..., "secretKey": ...}: what the proxy signs its own calls to brokers with.',
    )
    signed_dates: str = option(
        "zones",
        apache="signedDateCheck",
        choices=("zones", "utc", "off"),
        doc="Which dates a call may be signed with. zones: the local time of any time zone, 15 minutes more or less,"
        " because official clients sign local time. utc: UTC, 15 minutes more or less. off: any, as in Apache.",
    )
    handle_key: str = option(
        "",
        apache="receiptHandleKey",
        secret=True,
        doc="Secret of at least 16 characters that receipt handles are sealed with, the same for all proxies of a"
        " cluster. Several, separated by commas: the first seals, all are accepted. Empty: made from the secret of"
        " innerClientAuthenticationCredentials; without either, handles are plain. Not in Apache.",
    )
    accepts_plain_handles: bool = option(
        False,
        apache="acceptPlainReceiptHandles",
        doc="Accept receipt handles without a seal, while Apache's proxies serve the same cluster. Not in Apache.",
    )
    user_refresh_s: int = option(
        20, apache="userCacheRefreshSeconds", low=1, doc="Age of users and their policies."
    )
    user_expiry_s: int = option(300, apache="userCacheExpiredSeconds", low=1, doc="Unused ones are dropped.")
    user_entries: int = option(20_000, apache="userCacheMaxNum", low=1, doc="Users kept.")
    sign_for_brokers: bool = option(
        False,
        apache="enableAclRpcHookForClusterMode",
        doc="Sign calls to brokers.",
        without_effect="calls to brokers are signed whenever the proxy has inner credentials",
    )


def read_proxy_config(
    file: str | None, overrides: dict[str, str] | None = None
) -> tuple[ProxyConfig, list[str]]:
    """Returns the settings from a JSON file and overrides, and the unknown keys. Raises ``ConfigError``."""
    values: dict[str, str] = {}
    if file is not None:
        try:
            parsed: Any = msgspec.json.decode(Path(file).read_bytes())
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigError(f"{file} cannot be read: {error}") from None
        if not isinstance(parsed, dict):
            raise ConfigError(f"{file} is not a JSON object")
        for key, value in parsed.items():
            if value is None:
                continue
            values[key] = (
                msgspec.json.encode(value).decode() if isinstance(value, dict | list) else render_value(value)
            )
    values |= overrides or {}
    source = file or "defaults"
    return config_from_properties(ProxyConfig, Properties(source, values, dict.fromkeys(values, 1)))
