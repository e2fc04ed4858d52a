"""Options of the broker, with Apache's keys and defaults (``BrokerConfig``, and the role keys of its store config).

Options of the store itself (``storePathRootDir``, ``maxMessageSize``, ``flushDiskType``, ...) are declared in
``orbitmq.store.config``; both are read from the same file. The dataclass is frozen. Only ``change_option`` changes a
value while the broker runs, and only for options declared with ``reload=True``. All parts hold the same object, so a
change takes effect the next time the option is read.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Any, Final

from orbitmq.broker.tables.limits import TableLimits
from orbitmq.codes import Perm
from orbitmq.errors import ConfigError
from orbitmq.runtime.options import option, options_of, parse_value

__all__ = [
    "FAILOVER_ID_MAX",
    "MASTER_ID",
    "BrokerConfig",
    "BrokerRole",
    "change_option",
    "change_role",
    "split_addresses",
]

MASTER_ID: Final = 0
FAILOVER_ID_MAX: Final = 2**15 - 1
"""A slave sends its number in 15 bits of the replication stream."""
_SECOND: Final = 1_000
_MINUTE: Final = 60_000
_PORT_MAX: Final = 65_535
_NO_EXPORTER: Final = "metrics are only served over HTTP; set PROM and scrape /metrics, or DISABLE"
# Plain numbers, because they are read for every pull, and an operation on an IntFlag takes two microseconds.
_READ: Final = int(Perm.READ)
_WRITE: Final = int(Perm.WRITE)


class BrokerRole(enum.Enum):
    """A broker's role in replication. The values are those of Apache's ``brokerRole``."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


_SLAVE: Final = BrokerRole.SLAVE  # read for every request; looking up an enum member costs 0.3 us


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(TableLimits):
    """All options of the broker."""

    # Identity.
    broker_name: str = option("broker-a", apache="brokerName", doc="Name shared by a master and its slaves.")
    cluster_name: str = option("DefaultCluster", apache="brokerClusterName", doc="Cluster of the broker.")
    broker_id: int = option(
        MASTER_ID, apache="brokerId", low=0, high=2**63 - 1, doc="0 is the master, others are slaves."
    )
    role: BrokerRole = option(  # noqa: RUF009  (an enum member is immutable)
        BrokerRole.ASYNC_MASTER, apache="brokerRole", doc="Master (waiting for slaves or not) or slave."
    )
    region_id: str = option(
        "DefaultRegion", apache="regionId", reload=True, doc="Region written into stored messages."
    )

    # Addresses.
    public_host: str = option(
        "", apache="brokerIP1", doc="Address told to name servers; empty means the machine's own."
    )
    ha_public_host: str = option(
        "", apache="brokerIP2", doc="Address told to slaves for replication; empty means the machine's own."
    )
    bind_host: str = option("0.0.0.0", apache="bindAddress", doc="Address to listen on.")
    listen_port: int = option(10911, apache="listenPort", low=0, high=_PORT_MAX, doc="Port of all requests.")
    fast_port_enabled: bool = option(
        True, apache="fastPortEnable", doc="Also listen on listenPort - 2 (Apache's VIP channel)."
    )
    ha_listen_port: int = option(
        0, apache="haListenPort", low=0, high=_PORT_MAX, doc="Port of replication; 0 means listenPort + 1."
    )
    name_servers: str = option(
        "", apache="namesrvAddr", doc="Name servers as host:port, separated by ';'; empty means none."
    )

    # Registration.
    register_period_ms: int = option(
        30 * _SECOND,
        apache="registerNameServerPeriod",
        doc="Time between registrations; kept within 10 to 60 s.",
    )
    register_timeout_ms: int = option(
        24 * _SECOND,
        apache="registerBrokerTimeoutMills",
        low=1,
        reload=True,
        doc="Longest wait for a name server.",
    )
    register_always: bool = option(
        True,
        apache="forceRegister",
        reload=True,
        doc="Register each period even if nothing changed; else ask first whether the name server is up to date.",
    )
    register_compressed: bool = option(
        False, apache="compressedRegister", reload=True, doc="Send registrations in the compressed form."
    )
    register_single_topic: bool = option(
        False,
        apache="enableSingleTopicRegister",
        reload=True,
        doc="Announce a new topic with the small request of its own first.",
    )
    split_registration: bool = option(
        False,
        apache="enableSplitRegistration",
        reload=True,
        doc="Send large tables in several registrations.",
    )
    split_registration_count: int = option(
        800, apache="splitRegistrationSize", low=1, reload=True, doc="Topics of one such registration."
    )
    acting_master_enabled: bool = option(
        False, apache="enableSlaveActingMaster", doc="A slave may stand in for a lost master."
    )
    not_active_timeout_ms: int = option(
        10 * _SECOND,
        apache="brokerNotActiveTimeoutMillis",
        low=1,
        doc="Heartbeat time-out told to name servers when slaves may act as master.",
    )

    # Topics and groups.
    permission: int = option(
        int(Perm.READ | Perm.WRITE),
        apache="brokerPermission",
        low=0,
        high=15,
        reload=True,
        doc="Permission of the whole broker: 4 read, 2 write; topics are and-ed with it.",
    )
    default_queue_count: int = option(
        8,
        apache="defaultTopicQueueNums",
        low=1,
        high=65_535,
        reload=True,
        doc="Queues of the template topic.",
    )
    auto_create_topics: bool = option(
        True, apache="autoCreateTopicEnable", reload=True, doc="Create an unknown topic on its first send."
    )
    auto_create_groups: bool = option(
        True,
        apache="autoCreateSubscriptionGroup",
        reload=True,
        doc="Create an unknown group on its first use.",
    )
    create_system_groups: bool = option(
        True, apache="enableCreateSysGroup", doc="Create the built-in groups at start."
    )
    cluster_topic_enabled: bool = option(
        True, apache="clusterTopicEnable", doc="The topic named after the cluster may be used."
    )
    broker_topic_enabled: bool = option(
        True, apache="brokerTopicEnable", doc="The topic named after the broker may be used."
    )
    trace_topic_enabled: bool = option(
        False, apache="traceTopicEnable", doc="Create the topic of message traces at start."
    )
    trace_topic: str = option(
        "RMQ_SYS_TRACE_TOPIC", apache="msgTraceTopicName", doc="Name of the topic of message traces."
    )
    validate_system_topics: bool = option(
        True,
        apache="validateSystemTopicWhenUpdateTopic",
        reload=True,
        doc="Refuse requests that would change a system topic.",
    )
    mixed_message_type_enabled: bool = option(
        False,
        apache="enableMixedMessageType",
        reload=True,
        doc="Topics may be declared with the message type MIXED.",
    )
    clear_retry_topics: bool = option(
        True,
        apache="clearRetryTopicWhenDeleteTopic",
        reload=True,
        doc="Deleting a topic also deletes the pop retry topics of its groups.",
    )
    split_metadata: bool = option(
        True, apache="enableSplitMetadata", reload=True, doc="Answer table requests in pages when asked to."
    )
    split_metadata_count: int = option(
        2_000, apache="splitMetadataSize", low=1, reload=True, doc="Most entries of one page."
    )

    # Clients.
    notify_consumer_changes: bool = option(
        True,
        apache="notifyConsumerIdsChangedEnable",
        reload=True,
        doc="Tell consumers when their group gains or loses a member.",
    )
    notify_at_once: bool = option(
        True,
        apache="realTimeNotifyConsumerChange",
        reload=True,
        doc="Send such notices at once, else collected every 15 s.",
    )
    channel_expiry_ms: int = option(
        120 * _SECOND, apache="channelExpiredTimeout", low=1, doc="A client silent for so long is dropped."
    )
    subscription_expiry_ms: int = option(
        10 * _MINUTE,
        apache="subscriptionExpiredTimeout",
        low=1,
        doc="A subscription learnt from pulls alone is forgotten after this time.",
    )
    register_producers: bool = option(
        True, apache="enableRegisterProducer", reload=True, doc="Keep track of producers."
    )
    pull_consumers_refused: bool = option(
        False, apache="rejectPullConsumerEnable", reload=True, doc="Refuse heartbeats of old pull consumers."
    )
    lock_expiry_ms: int = option(
        60 * _SECOND,
        apache="rebalanceLockMaxLiveTime",
        low=1,
        doc="A queue lock not renewed for so long may be taken by another client.",
    )

    # Offsets.
    offset_flush_interval_ms: int = option(
        5 * _SECOND, apache="flushConsumerOffsetInterval", low=1, doc="Consumer offsets are saved this often."
    )
    offset_version_step: int = option(
        500,
        apache="consumerOffsetUpdateVersionStep",
        low=1,
        reload=True,
        doc="Commits per step of the offsets' data version.",
    )
    server_side_reset: bool = option(
        True,
        apache="useServerSideResetOffset",
        reload=True,
        doc="Reset offsets in the broker, not through the clients.",
    )

    # Sending.
    accept_sends_from_ms: int = option(
        0,
        apache="startAcceptSendRequestTimeStamp",
        low=0,
        reload=True,
        doc="Refuse sends before this time (ms since the epoch).",
    )
    transactions_refused: bool = option(
        False, apache="rejectTransactionMessage", reload=True, doc="Refuse transactional messages."
    )
    trace_on: bool = option(True, apache="traceOn", reload=True, doc="Tell clients that tracing is allowed.")
    store_replies: bool = option(
        True, apache="storeReplyMessageEnable", reload=True, doc="Also store the replies of request-reply."
    )
    fast_failure_enabled: bool = option(
        True, apache="brokerFastFailureEnable", reload=True, doc="Refuse requests that waited too long."
    )
    send_wait_max_ms: int = option(
        200, apache="waitTimeMillsInSendQueue", low=1, reload=True, doc="Longest a send may wait."
    )
    pull_queue_capacity: int = option(
        100_000, apache="pullThreadPoolQueueCapacity", low=1, doc="Pulls that may wait; more are refused."
    )

    # Pulling.
    long_polling_enabled: bool = option(
        True,
        apache="longPollingEnable",
        reload=True,
        doc="Hold a pull that finds nothing for as long as it asks.",
    )
    short_polling_ms: int = option(
        1 * _SECOND, apache="shortPollingTimeMills", low=1, reload=True, doc="Hold time without long polling."
    )
    lite_pull_enabled: bool = option(
        True, apache="litePullMessageEnable", reload=True, doc="Serve LITE_PULL_MESSAGE."
    )
    slave_read_enabled: bool = option(
        True,
        apache="slaveReadEnable",
        reload=True,
        doc="Slaves serve reads, and consumers far behind are sent to them (Apache 5 has false here, 4 serves).",
    )
    slow_consumers_disabled: bool = option(
        False,
        apache="disableConsumeIfConsumerReadSlowly",
        reload=True,
        doc="Forbid consuming to groups too far behind.",
    )
    slow_consumer_bytes: int = option(
        16 << 30,
        apache="consumerFallbehindThreshold",
        low=1,
        reload=True,
        doc="How far behind (bytes of log) is too far.",
    )

    # Replication.
    in_sync_replicas: int = option(
        0,
        apache="inSyncReplicas",
        clamp=True,
        low=0,
        high=64,
        reload=True,
        doc="Brokers, the master included, that must have a message before a SYNC_MASTER acknowledges it, as in "
        "Apache 5; 0 means what Apache 4 does: any one slave that is near, and no waiting when there is none.",
    )
    slave_timeout_ms: int = option(
        3 * _SECOND, apache="slaveTimeout", low=1, reload=True, doc="Longest a send waits for slaves."
    )
    slave_gap_bytes: int = option(
        256 << 20,
        apache="haSlaveFallbehindMax",
        low=1,
        reload=True,
        doc="A slave this many bytes behind does not count as available.",
    )
    slave_gap_bytes_too: int = option(
        256 << 20,
        apache="haMaxGapNotInSync",
        low=1,
        reload=True,
        doc="The same, as Apache 5 calls it; the smaller of both counts.",
    )
    replication_heartbeat_ms: int = option(
        5 * _SECOND,
        apache="haSendHeartbeatInterval",
        low=1,
        reload=True,
        doc="Silence after which either side of replication sends a heartbeat.",
    )
    replication_silence_ms: int = option(
        20 * _SECOND,
        apache="haHousekeepingInterval",
        low=1,
        reload=True,
        doc="Silence after which either side of replication closes.",
    )
    transfer_bytes_max: int = option(
        32_768,
        apache="haTransferBatchSize",
        clamp=True,
        low=1,
        high=(4 << 20) - 12,
        reload=True,
        doc="Most log bytes of one transfer to a slave.",
    )
    replication_flow_control: bool = option(
        False, apache="haFlowControlEnable", reload=True, doc="Limit what a slave is sent in a second."
    )
    replication_bytes_per_second: int = option(
        100 << 20, apache="maxHaTransferByteInSecond", low=1, reload=True, doc="That limit, for each slave."
    )
    new_slave_from_last_file: bool = option(
        True,
        apache="syncFromLastFile",
        reload=True,
        doc="A slave without a log gets the newest log file only, as in Apache without a controller; else all.",
    )
    fixed_ha_address: str = option(
        "",
        apache="haMasterAddress",
        doc="Replication address of a slave's master; empty means what name servers tell.",
    )
    cut_differing_log: bool = option(
        False,
        apache="haTruncateSlave",
        reload=True,
        doc="A slave cuts off what its master does not have, instead of refusing to follow it. Apache has no such "
        "option: its slaves follow without comparing.",
    )
    replication_tls: bool = option(
        False,
        apache="haTlsEnable",
        doc="The replication stream is TLS: slaves are served over TLS only, and a master is followed over TLS. With "
        "authentication a slave signs in with its inner credentials. Not an Apache key: Apache's stream is plain.",
    )
    slave_addresses: str = option(
        "",
        apache="haSlaveAddresses",
        doc="Addresses and networks that get the plain replication stream without a slave there having signed in, "
        "separated by commas; * is every address. Counts only with access control. Not an Apache key.",
    )
    metadata_sync_interval_ms: int = option(
        10 * _SECOND,
        apache="slaveSyncInterval",
        low=1,
        doc="A slave copies its master's topics, offsets and groups this often (Apache 5 does every 60 s).",
    )

    # Failover (docs/failover.md).
    failover_enabled: bool = option(
        False,
        apache="enableFailover",
        doc="The brokers of a group elect their master through etcd. brokerId is then the number of this broker in "
        "its group, from 1 on, and brokerRole is not looked at.",
    )
    etcd_endpoints: str = option(
        "http://127.0.0.1:2379",
        apache="etcdEndpoints",
        doc="URLs of etcd's members, separated by ';' or ','.",
    )
    etcd_ca_file: str = option("", apache="etcdCaFile", doc="Certificates to check an https etcd with.")
    etcd_cert_file: str = option("", apache="etcdCertFile", doc="Our certificate for an https etcd.")
    etcd_key_file: str = option("", apache="etcdKeyFile", doc="The key that belongs to it.")
    failover_group: str = option(
        "", apache="failoverGroup", doc="Name of the group in etcd; empty means brokerClusterName/brokerName."
    )
    failover_role: str = option(
        "SYNC_MASTER",
        apache="failoverRole",
        choices=("SYNC_MASTER", "ASYNC_MASTER"),
        doc="What the elected broker is; an ASYNC_MASTER may lose what it acknowledged.",
    )
    lease_ttl_s: int = option(
        6,
        apache="leaseTtl",
        low=1,
        high=3600,
        doc="Seconds after which a master that etcd does not hear of is replaced.",
    )
    min_in_sync_replicas: int = option(
        1,
        apache="minInSyncReplicas",
        low=1,
        high=64,
        reload=True,
        doc="With failover: sends are refused while fewer brokers, the master included, are in sync.",
    )
    all_in_sync_acknowledge: bool = option(
        True,
        apache="allAckInSyncStateSet",
        reload=True,
        doc="With failover: a send waits for every broker of the in-sync set. False: for inSyncReplicas of them "
        "only, as Apache 5 does by default, and a failover may lose acknowledged messages.",
    )
    not_caught_up_ms: int = option(
        15 * _SECOND,
        apache="haMaxTimeSlaveNotCatchup",
        low=1,
        reload=True,
        doc="With failover: a slave that did not reach the end of the log for so long leaves the in-sync set.",
    )

    # Filters.
    property_filter_enabled: bool = option(
        False, apache="enablePropertyFilter", reload=True, doc="Consumers may filter by SQL92 expressions."
    )
    filter_retries: bool = option(
        False, apache="filterSupportRetry", reload=True, doc="Such filters also apply to retry topics."
    )
    filter_bitmap_enabled: bool = option(
        False, apache="enableCalcFilterBitMap", doc="Compute filters at write time into the queue extension."
    )
    filter_consumers_expected: int = option(
        32,
        apache="expectConsumerNumUseFilter",
        low=1,
        doc="Groups with filters per topic the bitmap is made for.",
    )
    filter_error_percent: int = option(
        20,
        apache="maxErrorRateOfBloomFilter",
        clamp=True,
        low=1,
        high=100,
        doc="False positives the bitmap may have.",
    )
    filter_data_kept_ms: int = option(
        24 * 60 * _MINUTE,
        apache="filterDataCleanTimeSpan",
        low=1,
        doc="A filter of a gone group is forgotten after this time.",
    )
    filter_servers_max: int = option(
        0, apache="filterServerNums", low=0, doc="Filter servers that may register; 0: no filters by class."
    )

    # Delay and transactions.
    delay_offset_flush_interval_ms: int = option(
        10 * _SECOND, apache="flushDelayOffsetInterval", low=10, doc="Time between saves of delay cursors."
    )
    delay_offset_version_step: int = option(
        200,
        apache="delayOffsetUpdateVersionStep",
        low=1,
        reload=True,
        doc="Deliveries per step of the delay offsets' data version.",
    )
    schedule_stats_enabled: bool = option(
        True,
        apache="enableScheduleMessageStats",
        reload=True,
        doc="Count deliveries of delayed messages in the statistics of SCHEDULE_CONSUMER and of their topic.",
    )
    transaction_timeout_ms: int = option(
        6 * _SECOND,
        apache="transactionTimeOut",
        low=0,
        reload=True,
        doc="Age at which a half message is checked.",
    )
    transaction_check_count_max: int = option(
        15, apache="transactionCheckMax", low=1, reload=True, doc="Checks before a half message is abandoned."
    )
    transaction_check_interval_ms: int = option(
        30 * _SECOND, apache="transactionCheckInterval", low=1, reload=True, doc="Time between check rounds."
    )
    transaction_op_bytes_max: int = option(
        4_096, apache="transactionOpMsgMaxSize", low=1, reload=True, doc="Bytes of one batch of end marks."
    )
    transaction_op_interval_ms: int = option(
        3 * _SECOND, apache="transactionOpBatchInterval", low=1, reload=True, doc="Longest an end mark waits."
    )
    timer_wheel_enabled: bool = option(
        True,
        apache="timerWheelEnable",
        doc="Messages may be delivered at any time, not only after fixed delays.",
    )
    timer_delay_max_s: int = option(
        3 * 24 * 3600,
        apache="timerMaxDelaySec",
        clamp=True,
        low=1,
        high=7 * 24 * 3600,
        reload=True,
        doc="A message may ask to be delivered this many seconds ahead, not later.",
    )
    timer_roll_window_s: int = option(
        2 * 24 * 3600,
        apache="timerRollWindowSlot",
        clamp=True,
        low=2,
        high=7 * 24 * 3600,
        doc="A message that waits longer is stored again after this many seconds, before its log file expires.",
    )
    timer_log_file_bytes: int = option(
        100 << 20,
        apache="mappedFileSizeTimerLog",
        low=4_096,
        high=2**31 - 1,
        doc="Bytes of a file of the timer log; part of the format.",
    )
    timer_flush_interval_ms: int = option(
        1 * _SECOND,
        apache="timerFlushIntervalMs",
        low=10,
        doc="How far the timer has got is saved this often.",
    )
    timer_delete_key_has_topic: bool = option(
        False,
        apache="appendTopicForTimerDeleteKey",
        doc="A recall names the topic with the key. A recall never touches messages of other topics in any case.",
    )
    recall_enabled: bool = option(
        False, apache="recallMessageEnable", reload=True, doc="Timer messages may be recalled."
    )

    # Pop.
    revive_queue_count: int = option(
        8, apache="reviveQueueNum", low=1, high=64, doc="Queues of the pop revive topic."
    )
    retry_topic_v2: bool = option(
        False,
        apache="enableRetryTopicV2",
        reload=True,
        doc="Pop retry topics use '+' between group and topic.",
    )

    # Others.
    detail_stats_enabled: bool = option(
        True, apache="enableDetailStat", reload=True, doc="Keep statistics per queue."
    )
    metrics_exporter: str = option(
        "DISABLE",
        apache="metricsExporterType",
        choices=("DISABLE", "PROM"),
        refused={"OTLP_GRPC": _NO_EXPORTER, "LOG": _NO_EXPORTER},
        doc="PROM: serve /metrics, /healthz and /readyz over HTTP.",
    )
    metrics_port: int = option(
        5557,
        apache="metricsPromExporterPort",
        low=0,
        high=_PORT_MAX,
        doc="Port of the metrics; 0 lets the system choose.",
    )
    metrics_host: str = option(
        "127.0.0.1",
        apache="metricsPromExporterHost",
        doc="Address the metrics listen on. Apache takes brokerIP1; ours stay on the machine by default.",
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
    metrics_series_max: int = option(
        5_000,
        apache="metricsOtelCardinalityLimit",
        clamp=True,
        low=1,
        high=1_000_000,
        doc="Samples of one metric in one answer; more are left out and counted. Apache's default is 50000.",
    )

    config_black_list: str = option(
        "configBlackList;brokerConfigPath",
        apache="configBlackList",
        doc="Keys, separated by ';', that no request may change.",
    )

    def __post_init__(self) -> None:
        if not self.broker_name or not self.cluster_name:
            raise ConfigError("brokerName and brokerClusterName must not be empty")
        if self.failover_enabled:
            self._check_failover()
        if self.role is BrokerRole.SLAVE and self.broker_id == MASTER_ID:
            raise ConfigError("brokerRole=SLAVE needs a brokerId greater than 0")
        if self.role is not BrokerRole.SLAVE and self.broker_id != MASTER_ID:
            object.__setattr__(self, "broker_id", MASTER_ID)

    def _check_failover(self) -> None:
        if not 0 < self.broker_id <= FAILOVER_ID_MAX:
            raise ConfigError(
                f"enableFailover=true needs a brokerId from 1 to {FAILOVER_ID_MAX}, different for every broker "
                "of the group, because the master is elected"
            )
        if self.fixed_ha_address:
            raise ConfigError(
                "haMasterAddress cannot be used with enableFailover=true, because the master comes from etcd"
            )
        # Every broker starts as a slave without a master; etcd then decides its role.
        object.__setattr__(self, "role", BrokerRole.SLAVE)

    @property
    def is_slave(self) -> bool:
        return self.role is _SLAVE

    @property
    def slave_gap_bytes_max(self) -> int:
        """The lag in bytes from which a slave no longer counts as available."""
        return min(self.slave_gap_bytes, self.slave_gap_bytes_too)

    @property
    def reads_pop_retry_v1(self) -> bool:
        """Whether pops read the retry topics whose names join group and topic with an underscore."""
        return not self.retry_topic_v2 or self.pop_retry_topic_v1_read

    @property
    def readable(self) -> bool:
        return self.permission & _READ != 0

    @property
    def writable(self) -> bool:
        return self.permission & _WRITE != 0

    @property
    def name_server_list(self) -> list[str]:
        """The name servers in order, without duplicates."""
        return split_addresses(self.name_servers)

    @property
    def register_period_s(self) -> float:
        """Seconds between registrations, limited to the range 10 to 60 as in Apache."""
        return min(60_000, max(10_000, self.register_period_ms)) / 1000

    def with_ports(self, listen_port: int, ha_listen_port: int) -> BrokerConfig:
        """Returns the same config with the ports that were actually bound."""
        return replace(self, listen_port=listen_port, ha_listen_port=ha_listen_port)


def split_addresses(text: str) -> list[str]:
    """Splits ``a:1;b:2`` into addresses, in order, without empty ones and duplicates."""
    return list(dict.fromkeys(part.strip() for part in text.split(";") if part.strip()))


def change_option(config: Any, key: str, text: str) -> Any:
    """Set the option with Apache's ``key`` on a live config object. Returns the new value.

    Raises ``KeyError`` for a key that ``config`` does not declare, and ``ConfigError`` for an invalid value or an
    option that needs a restart. Works for every config dataclass, so the store's options change the same way.
    """
    for declared in options_of(type(config)):
        if declared.key == key:
            if not declared.reload:
                raise ConfigError(
                    f"{key} cannot change while the broker runs; set it in the file and restart"
                )
            value = parse_value(declared, text, "request")
            # The only place that changes an option; configs are frozen everywhere else.
            object.__setattr__(config, declared.name, value)
            return value
    raise KeyError(key)


def change_role(config: BrokerConfig, role: BrokerRole, broker_id: int) -> None:
    """Change the role and the broker id of a running broker. Only ``roles.RoleSwitch`` may call it, because it
    switches everything else that depends on the role."""
    assert (role is BrokerRole.SLAVE) == (broker_id != MASTER_ID), (role, broker_id)
    object.__setattr__(config, "role", role)
    object.__setattr__(config, "broker_id", broker_id)
