"""Headers of the access lists of 4.x (50-53), which 5.5 no longer has.

Corresponds to Apache 4.9's CreateAccessConfigRequestHeader and related headers.
"""

from __future__ import annotations

from orbitmq.wire.header import Header

__all__ = [
    "DeleteAclConfigRequest",
    "GetBrokerClusterAclInfoResponse",
    "UpdateAndCreateAclConfigRequest",
    "UpdateGlobalWhiteAddrsConfigRequest",
]


class UpdateAndCreateAclConfigRequest(Header, kw_only=True):
    """UPDATE_AND_CREATE_ACL_CONFIG (50). Permissions are ``resource=PUB|SUB``, joined by commas."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool | None = None
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


class DeleteAclConfigRequest(Header, kw_only=True):
    """DELETE_ACL_CONFIG (51)."""

    access_key: str


class GetBrokerClusterAclInfoResponse(Header, kw_only=True):
    """Answer to GET_BROKER_CLUSTER_ACL_INFO (52)."""

    version: str
    broker_name: str
    broker_addr: str
    cluster_name: str
    all_acl_file_version: str | None = None


class UpdateGlobalWhiteAddrsConfigRequest(Header, kw_only=True):
    """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG (53)."""

    global_white_addrs: str
    acl_file_full_path: str | None = None
