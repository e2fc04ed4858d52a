"""Creates, changes, deletes and shows subscription groups: requests 200, 207, 225, 352 and 353.

Follows the group part of Apache's AdminBrokerProcessor.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.tables.groups import GroupTable
from orbitmq.broker.tables.offsets import ConsumerOffsets
from orbitmq.errors import InvalidParameter, ServerError, SubscriptionGroupNotExist
from orbitmq.model.group import SubscriptionGroupConfig
from orbitmq.model.names import check_group, check_topic
from orbitmq.requests import RequestCode
from orbitmq.transport.router import Call, Reply, Route
from orbitmq.wire.bodies import GroupForbidden, SubscriptionGroupList, decode_body, encode_body
from orbitmq.wire.headers import (
    DeleteSubscriptiongroupRequest,
    Empty,
    GetSubscriptiongroupConfigRequest,
    UpdateAndGetGroupForbiddenRequest,
)

__all__ = ["GroupHandlers"]

logger = logging.getLogger(__name__)

_RETRY_QUEUES_MAX: Final = 65_535


class _GroupName(msgspec.Struct, rename="camel"):
    """The group name of a request. It is parsed first, so that a missing name is reported as a bad name instead of a
    bad body."""

    group_name: str | None = None


class GroupHandlers:
    """Manages groups for admins."""

    def __init__(
        self,
        *,
        groups: GroupTable,
        offsets: ConsumerOffsets,
        events: BrokerEvents,
        known_elsewhere: Sequence[Callable[[], Awaitable[None]]] = (),
    ) -> None:
        """Each callback in ``known_elsewhere`` waits, up to a time limit, until others know the last change. With
        failover, the others are the members of the failover group."""
        self._groups = groups
        self._offsets = offsets
        self._deleted = events.group_deleted
        self._known_elsewhere = known_elsewhere

    def routes(self) -> list[Route]:
        return [
            Route(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, self.update_group, Empty),
            Route(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, self.update_groups, Empty),
            Route(RequestCode.DELETE_SUBSCRIPTIONGROUP, self.delete_group, DeleteSubscriptiongroupRequest),
            Route(
                RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, self.group_config, GetSubscriptiongroupConfigRequest
            ),
            Route(
                RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, self.forbidden, UpdateAndGetGroupForbiddenRequest
            ),
        ]

    def update_group(self, call: Call[Empty]) -> Reply | Awaitable[Reply]:
        if call.body:
            if not decode_body(_GroupName, call.body).group_name:
                raise InvalidParameter("the group name is blank")
            self._apply([decode_body(SubscriptionGroupConfig, call.body)], call.peer.remote_text)
        return self._when_known()

    def update_groups(self, call: Call[Empty]) -> Reply | Awaitable[Reply]:
        """Create or change several groups, all or none."""
        self._apply(SubscriptionGroupList.decode(call.body).group_config_list, call.peer.remote_text)
        return self._when_known()

    def _when_known(self, reply: Reply | None = None) -> Reply | Awaitable[Reply]:
        """Returns the answer, delayed until the change is on disk and others know it. Another thread writes to
        disk."""
        saves = self._groups.saves
        waits = [*((saves.saved,) if saves.is_running else ()), *self._known_elsewhere]
        answer = Reply() if reply is None else reply
        return _after(waits, answer) if waits else answer

    def _apply(self, configs: Sequence[SubscriptionGroupConfig], caller: str) -> None:
        for config in configs:
            check_group(config.group_name)
            if config.retry_queue_nums > _RETRY_QUEUES_MAX:
                raise InvalidParameter(
                    f"retryQueueNums {config.retry_queue_nums} is more than {_RETRY_QUEUES_MAX}"
                )
        if not configs:
            return
        logger.info("groups changed by request caller=%s groups=%s", caller, [c.group_name for c in configs])
        try:
            self._groups.apply(configs)
        except InvalidParameter as error:
            # Apache answers bad attributes with a different code.
            raise ServerError(error.remark) from None

    def delete_group(self, call: Call[DeleteSubscriptiongroupRequest]) -> Reply | Awaitable[Reply]:
        group = call.header.group_name
        logger.info(
            "group deleted by request caller=%s group=%s offsets=%s",
            call.peer.remote_text,
            group,
            call.header.drops_offsets,
        )
        self._groups.delete(group)
        if call.header.drops_offsets:
            self._offsets.remove_group(group)
        self._deleted(group)
        return self._when_known()

    def group_config(self, call: Call[GetSubscriptiongroupConfigRequest]) -> Reply:
        config = self._groups.find(call.header.group)
        if config is None:
            raise SubscriptionGroupNotExist(f"group {call.header.group} does not exist on this broker")
        return Reply(body=encode_body(config))

    def forbidden(self, call: Call[UpdateAndGetGroupForbiddenRequest]) -> Reply | Awaitable[Reply]:
        header = call.header
        if header.readable is not None:
            check_group(header.group)
            check_topic(header.topic)
            self._groups.forbid_reading(header.group, header.topic, forbidden=not header.readable)
        readable = not self._groups.forbidden(header.group, header.topic)
        answer = GroupForbidden(group=header.group, topic=header.topic, readable=readable)
        reply = Reply(body=answer.encode())
        return reply if header.readable is None else self._when_known(reply)


async def _after(waits: Sequence[Callable[[], Awaitable[None]]], reply: Reply) -> Reply:
    for wait in waits:
        await wait()
    return reply
