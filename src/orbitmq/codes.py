"""The numbers used on the wire: response codes, flags, languages and versions.

Request codes are in ``orbitmq.requests``, except the few that the kernel needs (``KernelRequest``); no other module
defines a wire number. Frames carry plain ``int`` codes, so
that an unknown code gets an error response (REQUEST_CODE_NOT_SUPPORTED) rather than a decoding error. The numbers are
stored and exchanged with other implementations, so never renumber them. Corresponds to Apache's ResponseCode,
LanguageCode, MQVersion, MessageSysFlag and PullSysFlag.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag, StrEnum
from typing import Final


class KernelRequest(IntEnum):
    """The request codes that the kernel itself must know. All others are declared in ``orbitmq.requests``."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    SEND_MESSAGE_V2 = 310
    SEND_BATCH_MESSAGE = 320
    LITE_PULL_MESSAGE = 361


class ResponseCode(IntEnum):
    """The outcome of a request. 10, 11 and 12 mean that the message is stored, but not yet as durably as
    requested."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    TRANSACTION_FAILED = 4
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    INVALID_PARAMETER = 29
    TRANSACTION_SHOULD_COMMIT = 200
    TRANSACTION_SHOULD_ROLLBACK = 201
    TRANSACTION_STATE_UNKNOW = 202  # sic
    TRANSACTION_STATE_GROUP_WRONG = 203
    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    POLLING_FULL = 209
    POLLING_TIMEOUT = 210
    BROKER_NOT_EXIST = 211
    BROKER_DISPATCH_NOT_COMPLETE = 212
    BROADCAST_CONSUMPTION = 213
    FLOW_CONTROL = 215
    NOT_LEADER_FOR_QUEUE = 501
    ILLEGAL_OPERATION = 604
    GO_AWAY = 1500
    CONTROLLER_FENCED_MASTER_EPOCH = 2000
    CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH = 2001
    CONTROLLER_INVALID_MASTER = 2002
    CONTROLLER_INVALID_REPLICAS = 2003
    CONTROLLER_MASTER_NOT_AVAILABLE = 2004
    CONTROLLER_INVALID_REQUEST = 2005
    CONTROLLER_BROKER_NOT_ALIVE = 2006
    CONTROLLER_NOT_LEADER = 2007
    CONTROLLER_BROKER_METADATA_NOT_EXIST = 2008
    CONTROLLER_INVALID_CLEAN_BROKER_METADATA = 2009
    CONTROLLER_BROKER_NEED_TO_BE_REGISTERED = 2010
    CONTROLLER_MASTER_STILL_EXIST = 2011
    CONTROLLER_ELECT_MASTER_FAILED = 2012
    CONTROLLER_ALTER_SYNC_STATE_SET_FAILED = 2013
    CONTROLLER_BROKER_ID_INVALID = 2014
    CONTROLLER_JRAFT_INTERNAL_ERROR = 2015
    CONTROLLER_BROKER_LIVE_INFO_NOT_EXISTS = 2016
    LMQ_QUOTA_EXCEEDED = 2017
    LITE_SUBSCRIPTION_QUOTA_EXCEEDED = 2018
    USER_NOT_EXIST = 3001
    POLICY_NOT_EXIST = 3002


class ClientErrorCode(IntEnum):
    """Codes that a client gives its own failures. They are never sent."""

    CONNECT_BROKER_EXCEPTION = 10001
    ACCESS_BROKER_TIMEOUT = 10002
    BROKER_NOT_EXIST_EXCEPTION = 10003
    NO_NAME_SERVER_EXCEPTION = 10004
    NOT_FOUND_TOPIC_EXCEPTION = 10005
    REQUEST_TIMEOUT_EXCEPTION = 10006
    CREATE_REPLY_MESSAGE_EXCEPTION = 10007


class SerializeType(IntEnum):
    """The serialization of a header: the top byte of a frame's header word."""

    JSON = 0
    ROCKETMQ = 1


class FrameFlag(IntFlag):
    """The ``flag`` field of a header."""

    RESPONSE = 1
    ONEWAY = 2


class LanguageCode(IntEnum):
    """The implementation that wrote a header. The binary form contains the number, the JSON form the name."""

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12
    NODE_JS = 13


class Version:
    """Version numbers: ordinals of Apache's version enum. Release 4.m.p is 213 + 20m + 2p, release 5.m.p is 413 + 20m
    + 2p."""

    V3_0_7_SNAPSHOT: Final = 28
    V3_0_11: Final = 37
    V3_1_8_SNAPSHOT: Final = 62
    V3_4_9: Final = 121
    V4_1_0_SNAPSHOT: Final = 232
    V4_9_3: Final = 399
    V4_9_4: Final = 401
    V5_0_0: Final = 413
    V5_2_0: Final = 453
    V5_3_1: Final = 475
    V5_5_0: Final = 513
    HIGHEST: Final = 612
    OURS: Final = V5_5_0
    """What our servers and clients put into their headers: the release whose behaviour they follow."""


def version_name(ordinal: int) -> str:
    """Returns the name of a version, as Apache's tools print it, such as ``V5_5_0`` for 513."""
    if ordinal >= Version.HIGHEST:
        return "HIGHER_VERSION"
    for base, major in ((413, 5), (213, 4)):
        if ordinal >= base - 1:
            minor, rest = divmod(ordinal + 1 - base, 20)
            patch, released = divmod(rest, 2)
            return f"V{major}_{minor}_{patch}" + ("" if released else "_SNAPSHOT")
    return f"V3_ORDINAL_{ordinal}"


class SysFlag(IntFlag):
    """The ``sysFlag`` of a stored message. Fields of two or three bits have a mask and named values."""

    COMPRESSED = 0x001
    MULTI_TAGS = 0x002
    TRANSACTION_PREPARED = 0x004
    TRANSACTION_COMMIT = 0x008
    TRANSACTION_ROLLBACK = 0x00C
    BORN_HOST_V6 = 0x010
    STORE_HOST_V6 = 0x020
    NEED_UNWRAP = 0x040
    INNER_BATCH = 0x080
    COMPRESSION_LZ4 = 0x100
    COMPRESSION_ZSTD = 0x200
    COMPRESSION_ZLIB = 0x300


TRANSACTION_MASK: Final = 0x00C
COMPRESSION_MASK: Final = 0x700


class PullFlag(IntFlag):
    """The ``sysFlag`` of a pull request."""

    COMMIT_OFFSET = 1
    SUSPEND = 2
    SUBSCRIPTION = 4
    CLASS_FILTER = 8
    LITE_PULL = 16


class Perm(IntFlag):
    """Permission bits of a topic on a broker."""

    INHERIT = 1
    WRITE = 2
    READ = 4
    PRIORITY = 8


class TopicSysFlag(IntFlag):
    """``topicSysFlag`` of a topic config."""

    UNIT = 1
    UNIT_SUB = 2


class Property(StrEnum):
    """Names of well-known message properties (wire.md section 14)."""

    KEYS = "KEYS"
    TAGS = "TAGS"
    WAIT = "WAIT"
    DELAY = "DELAY"
    RETRY_TOPIC = "RETRY_TOPIC"
    REAL_TOPIC = "REAL_TOPIC"
    REAL_QUEUE_ID = "REAL_QID"
    TRANSACTION_PREPARED = "TRAN_MSG"
    PRODUCER_GROUP = "PGROUP"
    MIN_OFFSET = "MIN_OFFSET"
    MAX_OFFSET = "MAX_OFFSET"
    BUYER_ID = "BUYER_ID"
    TRANSFER_FLAG = "TRANSFER_FLAG"
    CORRECTION_FLAG = "CORRECTION_FLAG"
    MQ2_FLAG = "MQ2_FLAG"
    ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
    RECONSUME_TIME = "RECONSUME_TIME"
    MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
    MSG_REGION = "MSG_REGION"
    TRACE_ON = "TRACE_ON"
    UNIQUE_KEY = "UNIQ_KEY"
    EXTEND_UNIQ_INFO = "EXTEND_UNIQ_INFO"
    DUP_INFO = "DUP_INFO"
    CONSUME_START_TIME = "CONSUME_START_TIME"
    INNER_NUM = "INNER_NUM"
    INNER_BASE = "INNER_BASE"
    TRANSACTION_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
    TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
    CHECK_IMMUNITY_TIME_IN_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
    TRANSACTION_ID = "__transactionId__"
    INSTANCE_ID = "INSTANCE_ID"
    CORRELATION_ID = "CORRELATION_ID"
    REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
    TTL = "TTL"
    MESSAGE_TYPE = "MSG_TYPE"
    ARRIVE_TIME = "ARRIVE_TIME"
    PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
    CLUSTER = "CLUSTER"
    POP_CK = "POP_CK"
    POP_CK_OFFSET = "POP_CK_OFFSET"
    FIRST_POP_TIME = "1ST_POP_TIME"
    SHARDING_KEY = "__SHARDINGKEY"
    INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
    INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
    TRACE_CONTEXT = "TRACE_CONTEXT"
    TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
    TIMER_DELAY_MS = "TIMER_DELAY_MS"
    TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
    TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
    TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
    TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
    TIMER_OUT_MS = "TIMER_OUT_MS"
    TIMER_DELAY_LEVEL = "TIMER_DELAY_LEVEL"
    TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"
    BORN_HOST = "__BORNHOST"
    BORN_TIMESTAMP = "BORN_TIMESTAMP"
    DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
    DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
    CRC32 = "__CRC32#"
    TRANSIENT_TOPIC_SYS_FLAG = "__RMQ.TRANSIENT.TOPIC_SYS_FLAG"
    TRANSIENT_GROUP_SYS_FLAG = "__RMQ.TRANSIENT.GROUP_SYS_FLAG"
    LITE_TOPIC = "__LITE_TOPIC"
    PRIORITY = "_SYS_MSG_PRIORITY_"
    ORIGIN_GROUP = "ORIGIN_GROUP"
    TIMER_ROLL_LABEL = "TIMER_ROLL_LABEL"
    TRANS_OFFSET = "TRANS_OFFSET"
    IDEMPOTENT = "ORBITMQ_IDEMPOTENT"
    """Set by our producers only: a send that is already stored is not stored again. Never stored by our broker."""
