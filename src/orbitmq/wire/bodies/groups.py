"""Groups and topics as admin tools and slaves transfer them: codes 18, 200, 201, 225, 300, 345, 351, 353 and 402.

Corresponds to Apache's SubscriptionGroupWrapper, CreateTopicListRequestBody, SubscriptionGroupList, GroupList,
QuerySubscriptionResponseBody, GroupForbidden and the message request modes.
"""

from __future__ import annotations

import msgspec

from orbitmq.model.data_version import DataVersion
from orbitmq.model.group import SubscriptionGroupConfig
from orbitmq.model.subscription import SubscriptionData
from orbitmq.model.topic import TopicConfig
from orbitmq.wire.bodies.base import Body, always
from orbitmq.wire.header import Int32

__all__ = [
    "AclConfig",
    "GroupForbidden",
    "GroupList",
    "MessageRequestMode",
    "MessageRequestModes",
    "PlainAccessConfig",
    "QuerySubscriptionResponse",
    "SubscriptionGroupList",
    "SubscriptionGroupWrapper",
    "TopicConfigAndMapping",
    "TopicConfigList",
]


class TopicConfigList(Body, frozen=True, kw_only=True):
    """Body of UPDATE_AND_CREATE_TOPIC_LIST (18)."""

    topic_config_list: list[TopicConfig]


class TopicConfigAndMapping(TopicConfig, frozen=True, kw_only=True, omit_defaults=False):
    """Answer to GET_TOPIC_CONFIG (351): a topic, and its mapping if it is static."""

    mapping_detail: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class SubscriptionGroupList(Body, frozen=True, kw_only=True):
    """Body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225)."""

    group_config_list: list[SubscriptionGroupConfig]


class SubscriptionGroupWrapper(Body, frozen=True, kw_only=True):
    """Answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201), and the content of subscriptionGroup.json."""

    data_version: DataVersion = always(DataVersion)
    forbidden_table: dict[str, dict[str, Int32]] | None = None
    """Group, topic, bit set; since 5.0."""
    subscription_group_table: dict[str, SubscriptionGroupConfig] = always(dict)


class GroupList(Body, frozen=True, kw_only=True):
    """Answer to QUERY_TOPIC_CONSUME_BY_WHO (300)."""

    group_list: list[str] = always(list)


class QuerySubscriptionResponse(Body, frozen=True, kw_only=True):
    """Answer to QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""

    group: str | None = None
    subscription_data: SubscriptionData | None = None
    topic: str | None = None


class GroupForbidden(Body, frozen=True, kw_only=True):
    """Answer to UPDATE_AND_GET_GROUP_FORBIDDEN (353)."""

    group: str | None = None
    readable: bool | None = None
    topic: str | None = None


class MessageRequestMode(Body, frozen=True, kw_only=True):
    """Body of SET_MESSAGE_REQUEST_MODE (401): whether a group pulls or pops a topic."""

    consumer_group: str | None = None
    mode: str = always(lambda: "PULL")
    pop_share_queue_num: Int32 = always(int)
    topic: str | None = None


class MessageRequestModes(Body, frozen=True, kw_only=True):
    """Answer to GET_ALL_MESSAGE_REQUEST_MODE (402), and the content of messageRequestMode.json: modes by topic and
    group."""

    message_request_mode_map: dict[str, dict[str, MessageRequestMode]] = always(dict)


class PlainAccessConfig(Body, frozen=True, kw_only=True):
    """One account of the access lists of 4.x."""

    access_key: str | None = None
    admin: bool = always(bool)
    default_group_perm: str | None = None
    default_topic_perm: str | None = None
    group_perms: list[str] | None = None
    secret_key: str | None = None
    topic_perms: list[str] | None = None
    white_remote_address: str | None = None


class AclConfig(Body, frozen=True, kw_only=True):
    """Answer to GET_BROKER_CLUSTER_ACL_CONFIG (54)."""

    global_white_addrs: list[str] | None = None
    plain_access_configs: list[PlainAccessConfig] | None = None
