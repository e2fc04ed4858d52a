"""The routes of all pages, and all actions."""

from __future__ import annotations

from typing import Final

from orbitmq.console.pages import access, dead, groups, life, messages, overview, pipelines, servers, topics

__all__ = ["ACTIONS", "PAGES"]

PAGES: Final = {
    "/": overview.overview,
    "/chart.json": overview.chart,
    "/topics": topics.topic_list,
    "/topics/{topic}": topics.topic,
    "/topics/{topic}/messages": messages.browse_page,
    "/topics/{topic}/messages.ndjson": messages.download,
    "/topics/{topic}/tail": messages.tail_page,
    "/topics/{topic}/tail.stream": messages.tail_stream,
    "/topics/{topic}/send": messages.send_page,
    "/messages": life.find,
    "/messages/{id}": life.life,
    "/messages/{id}/body": life.body,
    "/groups": groups.group_list,
    "/groups/{group}": groups.group,
    "/groups/{group}/clients/{client}": groups.member,
    "/dlq": dead.dead_groups,
    "/dlq/{group}": dead.dead_group,
    "/dlq/{group}/export.ndjson": dead.export,
    "/dlq-job/{key}": dead.job,
    "/producers": overview.producer_list,
    "/brokers": servers.configuration,
    "/brokers/{address}": servers.broker,
    "/pipelines": pipelines.pipelines,
    "/access": access.access,
    "/audit": overview.audit,
}

ACTIONS: Final = (
    topics.ACTIONS | messages.ACTIONS | groups.ACTIONS | dead.ACTIONS | servers.ACTIONS | access.ACTIONS
)
