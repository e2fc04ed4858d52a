"""Commands for topics."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from orbitmq.admin import Admin, Result, topics
from orbitmq.admin.base import Changed
from orbitmq.cli.admin_kit.declare import Args, Command, Flag, targets, topic_flag
from orbitmq.cli.admin_kit.output import Lines, Part, Table, changed, java_map, moment, table
from orbitmq.model.topic import parse_attribute_changes
from orbitmq.wire import javajson

__all__ = ["COMMANDS"]

_TARGET: Final = targets()


def _list_view(result: topics.TopicNames | topics.TopicOwners, args: Args) -> list[Part]:
    if isinstance(result, topics.TopicNames):
        hidden = frozenset[str]() if args["all"] else frozenset(result.system)
        return [Lines(result.topics, hidden, "system topics; --all shows them")]
    return [table(result.topics, {"Cluster Name": "cluster", "Topic": "topic", "Consumer Group": "group"})]


def _status_view(result: topics.TopicStatus, args: Args) -> list[Part]:
    columns: dict[str, Any] = {
        "Broker Name": "broker_name",
        "QID": "queue_id",
        "Min Offset": "min_offset",
        "Max Offset": "max_offset",
        "Last Updated": lambda r: moment(r.last_update_timestamp),
    }
    return [table(result.queues, columns), Lines(["", f"Topic Put TPS: {result.topic_put_tps}"])]


def _route_view(result: topics.TopicRouting, args: Args) -> list[Part]:
    if not args["list"]:
        return [Lines(javajson.encode_pretty(result.route).decode().splitlines())]
    columns: dict[str, Any] = {
        "ClusterName": "cluster",
        "BrokerName": "broker_name",
        "BrokerAddrs": lambda r: java_map(r.broker_addrs),
        "ReadQueue": "read_queue_nums",
        "WriteQueue": "write_queue_nums",
        "Perm": "perm",
    }
    rows = table(result.brokers, columns)
    total = [
        "Total:",
        str(len(result.brokers)),
        "",
        str(sum(row.read_queue_nums for row in result.brokers)),
        str(sum(row.write_queue_nums for row in result.brokers)),
        "",
    ]
    return [Table(rows.titles, [*rows.rows, total])]


def _allocation_view(result: topics.Allocations, args: Args) -> list[Part]:
    columns = {"Client": "client", "Broker Name": "broker", "QID": "queue_id"}
    rows = [
        _Allocated(one.client, queue.broker_name, queue.queue_id)
        for one in result.allocations
        for queue in one.queues
    ]
    return [table(rows, columns)]


class _Allocated(msgspec.Struct):
    client: str
    broker: str
    queue_id: int


def _update(admin: Admin, args: Args) -> Awaitable[Changed]:
    config = topics.new_topic(
        args["topic"], read=args["readQueueNums"], write=args["writeQueueNums"], perm=args["perm"]
    )
    flag = topics.system_flag(unit=bool(args["unit"]), unit_subscription=bool(args["hasUnitSub"]))
    config = msgspec.structs.replace(config, order=bool(args["order"]), topic_sys_flag=flag)
    return topics.update_topic(
        admin,
        config,
        parse_attribute_changes(args["attributes"]),
        broker=args["brokerAddr"],
        cluster=args["clusterName"],
    )


def _update_list(admin: Admin, args: Args) -> Awaitable[Changed]:
    configs = topics.read_topic_list(Path(args["filename"]).read_bytes())
    return topics.update_topic_list(admin, configs, broker=args["brokerAddr"], cluster=args["clusterName"])


def _order_conf(admin: Admin, args: Args) -> Awaitable[Result]:
    match args["method"]:
        case "put":
            if not args["orderConf"]:
                raise click.UsageError("put needs a value: -v broker-a:4;broker-b:4")
            return topics.put_order_conf(admin, args["topic"], args["orderConf"])
        case "delete":
            return topics.delete_order_conf(admin, args["topic"])
        case _:
            return topics.order_conf(admin, args["topic"])


def _order_view(result: topics.OrderConf | Changed, args: Args) -> list[Part]:
    if isinstance(result, Changed):
        return changed(result)
    return [Lines([f"topic={result.topic} orderConf={result.order_conf}"])]


COMMANDS: Final = (
    Command(
        name="topicList",
        help="Topics registered with the name server.",
        flags=(
            Flag(names=("-c", "--clusterModel"), help="With cluster and consumer groups.", switch=True),
            Flag(
                names=("-a", "--all"),
                help="Also show system, retry and dead-letter topics on a terminal; a pipe gets all topics.",
                switch=True,
            ),
        ),
        call=lambda admin, a: (
            topics.topic_owners(admin) if a["clusterModel"] else topics.listed_topics(admin)
        ),
        view=_list_view,
        results=(topics.TopicNames, topics.TopicOwners),
    ),
    Command(
        name="topicRoute",
        help="Where the queues of a topic are.",
        flags=(
            topic_flag(),
            Flag(names=("-l", "--list"), help="Print a table instead of the raw response.", switch=True),
        ),
        call=lambda admin, a: topics.topic_route(admin, a["topic"]),
        view=_route_view,
        results=(topics.TopicRouting,),
    ),
    Command(
        name="topicStatus",
        help="Offsets and last message of every queue of a topic.",
        flags=(
            topic_flag(),
            Flag(names=("-c", "--cluster"), help="Topic or cluster whose route finds the brokers."),
        ),
        call=lambda admin, a: topics.topic_status(admin, a["topic"], route_topic=a["cluster"] or ""),
        view=_status_view,
        results=(topics.TopicStatus,),
    ),
    Command(
        name="topicClusterList",
        help="Clusters that have a topic.",
        flags=(topic_flag(),),
        call=lambda admin, a: topics.topic_clusters(admin, a["topic"]),
        view=lambda result, a: [Lines(result.clusters)],
        results=(topics.TopicClusters,),
    ),
    Command(
        name="allocateMQ",
        help="Which client would get which queue of a topic.",
        flags=(
            topic_flag(),
            Flag(names=("-i", "--ipList"), help="Clients, joined by commas.", required=True),
        ),
        call=lambda admin, a: topics.allocation(admin, a["topic"], a["ipList"].split(",")),
        view=_allocation_view,
        results=(topics.Allocations,),
    ),
    Command(
        name="updateTopic",
        help="Create or change a topic.",
        flags=(
            *_TARGET.flags,
            topic_flag(),
            Flag(names=("-r", "--readQueueNums"), help="Queues to read [8].", kind=int),
            Flag(names=("-w", "--writeQueueNums"), help="Queues to write [8].", kind=int),
            Flag(names=("-p", "--perm"), help="2: write, 4: read, 6: both [6].", kind=int),
            Flag(names=("-o", "--order"), help="Keep its queues in order over all brokers.", kind=bool),
            Flag(names=("-u", "--unit"), help="Belongs to a unit.", kind=bool),
            Flag(names=("-s", "--hasUnitSub"), help="Has subscriptions of units.", kind=bool),
            Flag(names=("-a", "--attributes"), help="Changes to attributes: +a=b,-c."),
        ),
        one_of=_TARGET.keys,
        call=_update,
        view=changed,
        results=(Changed,),
    ),
    Command(
        name="updateTopicList",
        help="Create or change the topics of a JSON file.",
        flags=(
            *_TARGET.flags,
            Flag(names=("-f", "--filename"), help="A JSON array of topics.", required=True),
        ),
        one_of=_TARGET.keys,
        call=_update_list,
        view=changed,
        results=(Changed,),
    ),
    Command(
        name="updateTopicPerm",
        help="Change the permission of a topic.",
        flags=(
            *_TARGET.flags,
            topic_flag(),
            Flag(names=("-p", "--perm"), help="2: write, 4: read, 6: both.", kind=int, required=True),
        ),
        one_of=_TARGET.keys,
        call=lambda admin, a: topics.update_topic_perm(
            admin, a["topic"], a["perm"], broker=a["brokerAddr"], cluster=a["clusterName"]
        ),
        view=changed,
        results=(Changed,),
    ),
    Command(
        name="deleteTopic",
        help="Delete a topic from the brokers of a cluster and from the name servers.",
        flags=(
            topic_flag(),
            Flag(names=("-c", "--clusterName"), help="Cluster.", required=True, completes="cluster"),
        ),
        call=lambda admin, a: topics.delete_topic(admin, a["topic"], a["clusterName"]),
        view=changed,
        results=(Changed,),
    ),
    Command(
        name="updateOrderConf",
        help="Set, show or delete which broker has how many queues of an ordered topic.",
        flags=(
            topic_flag(),
            Flag(
                names=("-m", "--method"), help="What to do.", required=True, choices=("put", "get", "delete")
            ),
            Flag(names=("-v", "--orderConf"), help="broker-a:4;broker-b:4"),
        ),
        call=_order_conf,
        view=_order_view,
        results=(topics.OrderConf, Changed),
    ),
)
