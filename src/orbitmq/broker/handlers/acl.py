"""Serves requests 50 to 54, for the access lists of 4.x (Apache 4.9.7: the ACL part of AdminBrokerProcessor).

Requests 50, 51 and 53 fail with response codes 209, 210 and 211. Secrets are returned only with
``authCompatibility=apache``.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Final

from orbitmq.auth.acl_files import AclFiles
from orbitmq.broker.config import BrokerConfig
from orbitmq.errors import ConfigError
from orbitmq.requests import RequestCode
from orbitmq.transport.router import Call, Reply, Route
from orbitmq.wire import javajson
from orbitmq.wire.headers import (
    DeleteAclConfigRequest,
    Empty,
    GetBrokerClusterAclInfoResponse,
    UpdateAndCreateAclConfigRequest,
    UpdateGlobalWhiteAddrsConfigRequest,
)

__all__ = ["AclHandlers"]

logger = logging.getLogger(__name__)

# Response codes of 4.x that have other meanings in 5.x. They are sent only in answers to 4.x tools.
_UPDATE_FAILED: Final = 209
_DELETE_FAILED: Final = 210
_WHITE_FAILED: Final = 211
_SHOWN: Final = (
    "whiteRemoteAddress",
    "admin",
    "defaultTopicPerm",
    "defaultGroupPerm",
    "topicPerms",
    "groupPerms",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AclHandlers:
    """Manages accounts for mqadmin of 4.x."""

    files: AclFiles
    config: BrokerConfig
    address: str
    answers_secrets: bool

    def routes(self) -> list[Route]:
        return [
            Route(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, self.store, UpdateAndCreateAclConfigRequest),
            Route(RequestCode.DELETE_ACL_CONFIG, self.delete, DeleteAclConfigRequest),
            Route(RequestCode.GET_BROKER_CLUSTER_ACL_INFO, self.versions, Empty),
            Route(
                RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
                self.store_white_addresses,
                UpdateGlobalWhiteAddrsConfigRequest,
            ),
            Route(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, self.everything, Empty),
        ]

    def store(self, call: Call[UpdateAndCreateAclConfigRequest]) -> Reply:
        header = call.header
        given: dict[str, Any] = {
            "accessKey": header.access_key,
            "secretKey": header.secret_key,
            "whiteRemoteAddress": header.white_remote_address,
            "admin": header.admin,
            "defaultTopicPerm": header.default_topic_perm,
            "defaultGroupPerm": header.default_group_perm,
            "topicPerms": _split(header.topic_perms),
            "groupPerms": _split(header.group_perms),
        }
        try:
            self.files.store_account({key: value for key, value in given.items() if value is not None})
        except (ConfigError, OSError) as error:
            return Reply(code=_UPDATE_FAILED, remark=str(error))
        logger.info("account stored key=%r caller=%s", header.access_key, call.peer.remote_text)
        return Reply()

    def delete(self, call: Call[DeleteAclConfigRequest]) -> Reply:
        key = call.header.access_key
        try:
            if self.files.delete_account(key):
                logger.info("account deleted key=%r caller=%s", key, call.peer.remote_text)
                return Reply()
        except (ConfigError, OSError) as error:
            logger.error("account not deleted key=%r error=%s", key, error)
        remark = f"The accesskey[{key}] corresponding to accessConfig has been deleted failed."
        return Reply(code=_DELETE_FAILED, remark=remark)

    def versions(self, _call: Call[Empty]) -> Reply:
        versions = {path: _version(version) for path, version in self.files.versions.items()}
        header = GetBrokerClusterAclInfoResponse(
            version=javajson.encode(versions[self.files.main_path]).decode(),
            all_acl_file_version=javajson.encode(versions).decode(),
            broker_name=self.config.broker_name,
            broker_addr=self.address,
            cluster_name=self.config.cluster_name,
        )
        return Reply(header=header)

    def store_white_addresses(self, call: Call[UpdateGlobalWhiteAddrsConfigRequest]) -> Reply:
        text = call.header.global_white_addrs
        addresses = [part.strip() for part in text.split(",") if part.strip()]
        try:
            if self.files.store_white_addresses(addresses, call.header.acl_file_full_path or ""):
                return Reply()
        except (ConfigError, OSError) as error:
            logger.error("white addresses not stored error=%s", error)
        remark = f"The globalWhiteAddresses[{text}] has been updated failed."
        return Reply(code=_WHITE_FAILED, remark=remark)

    def everything(self, _call: Call[Empty]) -> Reply:
        accounts = []
        for account in self.files.accounts.values():
            shown = {"accessKey": account.access_key}
            if self.answers_secrets:
                shown["secretKey"] = account.secret_key
            shown.update({name: account.raw[name] for name in _SHOWN if account.raw.get(name) is not None})
            accounts.append(shown)
        body = {"globalWhiteAddrs": self.files.white_addresses, "plainAccessConfigs": accounts}
        return Reply(body=javajson.encode(body))


def _split(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _version(version: dict[str, int]) -> dict[str, int]:
    return {"counter": version["counter"], "stateVersion": 0, "timestamp": version["timestamp"]}
