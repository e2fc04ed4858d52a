"""A consumer group on one broker (Apache: ``SubscriptionGroupConfig`` and the retry policies)."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from orbitmq.model.delay_levels import DelayLevels

__all__ = [
    "CustomizedRetryPolicy",
    "ExponentialRetryPolicy",
    "GroupRetryPolicy",
    "RetryPolicyType",
    "SimpleSubscription",
    "SubscriptionGroupConfig",
]

RETRY_TIMES_MAX_DEFAULT: Final = 16
_DEFAULT_DELAYS_MS: Final = DelayLevels().delays_ms


class RetryPolicyType(StrEnum):
    """Selects one of the two retry policies."""

    EXPONENTIAL = "EXPONENTIAL"
    CUSTOMIZED = "CUSTOMIZED"


class CustomizedRetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A table of delays. The first retry uses the third entry, because the table starts like the delay levels."""

    next: tuple[int, ...] = _DEFAULT_DELAYS_MS

    def delay_ms(self, reconsume_times: int) -> int:
        """Returns the delay in milliseconds before the next delivery of a message that was consumed
        ``reconsume_times`` times."""
        if not self.next:
            return CustomizedRetryPolicy().delay_ms(reconsume_times)
        return self.next[min(max(reconsume_times, 0) + 2, len(self.next) - 1)]


class ExponentialRetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A delay that grows by a factor up to a limit."""

    initial: int = 5_000
    max: int = 7_200_000
    multiplier: int = 2

    def delay_ms(self, reconsume_times: int) -> int:
        """Returns the delay in milliseconds before the next delivery of a message that was consumed
        ``reconsume_times`` times."""
        exponent = min(max(reconsume_times, 0), 32)
        growth: int = self.multiplier**exponent
        return min(self.max, self.initial * growth)


class GroupRetryPolicy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The retry policies of a group, which determine the delays of failed messages."""

    customized_retry_policy: CustomizedRetryPolicy | UnsetType | None = UNSET
    exponential_retry_policy: ExponentialRetryPolicy | UnsetType | None = UNSET
    type: RetryPolicyType = RetryPolicyType.CUSTOMIZED

    def delay_ms(self, reconsume_times: int) -> int:
        """Returns the delay in milliseconds according to the selected policy, or to the default table if that policy
        is missing."""
        policy: CustomizedRetryPolicy | ExponentialRetryPolicy | UnsetType | None = (
            self.exponential_retry_policy
            if self.type is RetryPolicyType.EXPONENTIAL
            else self.customized_retry_policy
        )
        return (policy or CustomizedRetryPolicy()).delay_ms(reconsume_times)


class SimpleSubscription(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A subscription of a group that is fixed on the broker."""

    expression: str | None = None
    expression_type: str | None = None
    topic: str
    version: int = 0


class SubscriptionGroupConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The settings of one group, and their JSON form, with the members in Apache's (alphabetical) order."""

    attributes: dict[str, str] = {}
    broker_id: int = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_message_orderly: bool = False
    consume_timeout_minute: int = 15
    group_name: str
    group_retry_policy: GroupRetryPolicy = GroupRetryPolicy()
    group_sys_flag: int = 0
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: int = RETRY_TIMES_MAX_DEFAULT
    retry_queue_nums: int = 1
    subscription_data_set: list[SimpleSubscription] | UnsetType | None = UNSET
    which_broker_when_consume_slowly: int = 1
