"""Declares the requests for users and policies of 5.x, and for the access lists of 4.x."""

from __future__ import annotations

from typing import Final

from orbitmq.requests.declare import Request
from orbitmq.wire.headers import acl

__all__ = ["Access"]

_ACL_FILES: Final = "access lists of 4.x are not in force; aclEnable=true switches them on"


class Access:
    """Requests for users and policies of 5.x, and for the access lists of 4.x."""

    UPDATE_AND_CREATE_ACL_CONFIG = Request(50, acl.UpdateAndCreateAclConfigRequest, unless=_ACL_FILES)
    DELETE_ACL_CONFIG = Request(51, acl.DeleteAclConfigRequest, unless=_ACL_FILES)
    GET_BROKER_CLUSTER_ACL_INFO = Request(52, answer=acl.GetBrokerClusterAclInfoResponse, unless=_ACL_FILES)
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG = Request(53, acl.UpdateGlobalWhiteAddrsConfigRequest, unless=_ACL_FILES)
    GET_BROKER_CLUSTER_ACL_CONFIG = Request(54, unless=_ACL_FILES)
    AUTH_CREATE_USER = Request(
        3001,
        admin=(
            "createUser",
            "copyUser",
        ),
    )
    AUTH_UPDATE_USER = Request(3002, admin=("updateUser",))
    AUTH_DELETE_USER = Request(3003, admin=("deleteUser",))
    AUTH_GET_USER = Request(3004, admin=("getUser",))
    AUTH_LIST_USER = Request(3005, admin=("listUser",))
    AUTH_CREATE_ACL = Request(
        3006,
        admin=(
            "createAcl",
            "copyAcl",
        ),
    )
    AUTH_UPDATE_ACL = Request(3007, admin=("updateAcl",))
    AUTH_DELETE_ACL = Request(3008, admin=("deleteAcl",))
    AUTH_GET_ACL = Request(3009, admin=("getAcl",))
    AUTH_LIST_ACL = Request(3010, admin=("listAcl",))
