"""Shell completion of names, which are queried from the name server with a short timeout."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from orbitmq.admin import Admin
from orbitmq.cli.admin_kit.connect import open_admin
from orbitmq.errors import OrbitError

__all__ = ["completer"]

_WAIT_S: Final = 1.0
"""Seconds after which a completion is abandoned."""

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def completer(kind: str) -> Completer:
    """Returns a completer for ``kind``: topic, group, broker (addresses), name (of brokers) or cluster."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        settings: dict[str, Any] = dict(ctx.params)
        try:
            admin = open_admin({**settings, "timeout_s": _WAIT_S}, os.environ)
            names = asyncio.run(_bounded(admin, kind))
        except (OrbitError, OSError, TimeoutError, click.UsageError):
            return []
        return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]

    return complete


async def _bounded(admin: Admin, kind: str) -> list[str]:
    async with asyncio.timeout(_WAIT_S), admin:
        return await _names(admin, kind)


async def _names(admin: Admin, kind: str) -> list[str]:
    if kind in ("topic", "group"):
        from orbitmq.admin.topics import topic_names

        topics = (await topic_names(admin)).topics
        if kind == "topic":
            return [topic for topic in topics if not topic.startswith("%")]
        return [topic.removeprefix("%RETRY%") for topic in topics if topic.startswith("%RETRY%")]
    info = await admin.cluster_info()
    if kind == "cluster":
        return list(info.cluster_addr_table)
    if kind == "name":
        return list(info.broker_addr_table)
    return [a for data in info.broker_addr_table.values() for a in data.broker_addrs.values()]
