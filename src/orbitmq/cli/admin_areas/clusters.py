"""Commands for entire clusters."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from orbitmq.admin import Admin, Result, brokers, sending, stats
from orbitmq.cli.admin_kit.declare import CLUSTER, INTERVAL, Args, Command, Flag, topic_flag
from orbitmq.cli.admin_kit.output import Lines, Part, second, table

__all__ = ["COMMANDS"]


def _cluster_list(admin: Admin, args: Args) -> Awaitable[Result]:
    if args["moreStats"]:
        return brokers.cluster_totals(admin, args["clusterName"])
    return brokers.cluster_brokers(admin, args["clusterName"])


def _timer(row: brokers.BrokerRow) -> str:
    congested = row.timer_congest_num / 10_000
    return (
        f"{row.timer_read_behind}-{row.timer_offset_behind}"
        f"({congested:.1f}w, {row.timer_enqueue_tps:.1f}, {row.timer_dequeue_tps:.1f})"
    )


def _cluster_view(result: brokers.ClusterBrokers | brokers.ClusterTotals, args: Args) -> list[Part]:
    if isinstance(result, brokers.ClusterTotals):
        totals = {
            "Cluster Name": "cluster",
            "Broker Name": "broker_name",
            "InTotalYest": "in_total_yesterday",
            "OutTotalYest": "out_total_yesterday",
            "InTotalToday": "in_total_today",
            "OutTotalToday": "out_total_today",
        }
        return [table(result.brokers, totals)]
    columns: dict[str, Any] = {
        "Cluster Name": "cluster",
        "Broker Name": "broker_name",
        "BID": "broker_id",
        "Addr": "address",
        "Version": "version",
        "Release": "release",
        "InTPS(LOAD)": lambda r: f"{r.in_tps:.2f}({r.send_queue_size},{r.send_queue_wait_ms}ms)",
        "OutTPS(LOAD)": lambda r: (
            f"{r.out_tps:.2f}({r.pull_queue_size},{r.pull_queue_wait_ms}ms"
            f"|{r.ack_queue_size},{r.ack_queue_wait_ms}ms)"
        ),
        "Timer(Progress)": _timer,
        "PCWait(ms)": "page_cache_lock_ms",
        "Hour": lambda r: f"{r.hours:.2f}",
        "SPACE": lambda r: f"{r.disk_ratio:.4f}",
        "ACTIVATED": "active",
    }
    silent = [f"{row.address}: {row.error}" for row in result.brokers if row.error]
    return [table(result.brokers, columns, human=frozenset({"Release"})), Lines(silent)]


def _rates_view(result: stats.TopicRates, args: Args) -> list[Part]:
    columns: dict[str, Any] = {
        "Topic": "topic",
        "Consumer Group": "group",
        "Accumulation": "accumulation",
        "InTPS": lambda r: f"{r.in_tps:.2f}",
        "OutTPS": lambda r: f"{r.out_tps:.2f}" if r.group else "",
        "InMsg24Hour": "in_msg24_hour",
        "OutMsg24Hour": lambda r: r.out_msg24_hour if r.group else "NO_CONSUMER",
    }
    return [table(result.topics, columns)]


def _rt_view(result: sending.ClusterRt, args: Args) -> list[Part]:
    if args["printLog"]:
        room = args["machineRoom"] or "noname"
        return [
            Lines([f"{second(now)}|{room}|{row.cluster}|{row.broker_name}|{row.rt_ms:.0f}"])
            for now in [result.timestamp]
            for row in result.brokers
        ]
    columns: dict[str, Any] = {
        "Cluster Name": "cluster",
        "Broker Name": "broker_name",
        "RT": lambda r: f"{r.rt_ms:.2f}",
        "successCount": "success_count",
        "failCount": "fail_count",
    }
    return [table(result.brokers, columns)]


COMMANDS: Final = (
    Command(
        name="clusterList",
        help="Brokers of all clusters: version, load, oldest message, disk.",
        flags=(
            Flag(names=("-m", "--moreStats"), help="Messages in and out, yesterday and today.", switch=True),
            CLUSTER,
            INTERVAL,
        ),
        call=_cluster_list,
        view=_cluster_view,
        results=(brokers.ClusterBrokers, brokers.ClusterTotals),
    ),
    Command(
        name="clusterRT",
        help="How long a send to each broker takes.",
        flags=(
            Flag(names=("-a", "--amount"), help="Messages to each broker [100].", kind=int),
            Flag(names=("-s", "--size"), help="Bytes of a message [128].", kind=int),
            Flag(names=("-c", "--cluster"), help="Only this cluster.", completes="cluster"),
            Flag(names=("-p", "--printLog"), help="Print log lines.", kind=bool),
            Flag(names=("-m", "--machineRoom"), help="Machine room named in those lines [noname]."),
            INTERVAL,
        ),
        call=lambda admin, a: sending.cluster_rt(
            admin, cluster=a["cluster"], amount=a["amount"] or 100, size=a["size"] or 128
        ),
        view=_rt_view,
        results=(sending.ClusterRt,),
    ),
    Command(
        name="statsAll",
        help="Rates, sums of a day and backlog of topics and groups.",
        flags=(
            Flag(names=("-a", "--activeTopic"), help="Only topics with messages.", switch=True),
            topic_flag("Only this topic.", required=False),
        ),
        call=lambda admin, a: stats.stats_all(admin, a["topic"], active_only=a["activeTopic"]),
        view=_rates_view,
        results=(stats.TopicRates,),
    ),
)
