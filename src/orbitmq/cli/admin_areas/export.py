"""Commands that export topics and groups, settings and load of a cluster to JSON files, and POP checkpoints to the
log.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from orbitmq.admin import Admin, Result, export
from orbitmq.admin.base import Changed
from orbitmq.admin.errors import AdminError
from orbitmq.cli.admin_kit.declare import BROKER, Args, Command, Flag, targets
from orbitmq.cli.admin_kit.output import Lines, Part, changed
from orbitmq.wire import javajson

__all__ = ["COMMANDS"]

_TARGET: Final = targets()
_CLUSTER: Final = Flag(names=("-c", "--clusterName"), help="Cluster.", required=True, completes="cluster")
_DIRECTORY: Final = Flag(
    names=("-f", "--filePath"), help="Directory for the file; created if missing.", default="export"
)


class Exported(Result, kw_only=True):
    path: str
    data: dict[str, Any]


def _view(result: Exported, args: Args) -> list[Part]:
    return [Lines([f"written: {result.path}"])]


def _write(args: Args, name: str, data: dict[str, Any]) -> Exported:
    directory = Path(args["filePath"])
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_bytes(msgspec.json.format(msgspec.json.encode(data), indent=2))
    return Exported(path=str(path), data=data)


async def _metadata(admin: Admin, args: Args) -> Exported:
    special = args["specialTopic"]
    if args["brokerAddr"] is not None:
        address = await admin.address(args["brokerAddr"])
        if args["topic"]:
            wrapper = await export.user_topics(admin, address, special=special)
            return _write(args, "topic.json", javajson.loads(javajson.encode_standard(wrapper)))
        if args["subscriptionGroup"]:
            groups = await export.user_groups(admin, address)
            return _write(args, "subscriptionGroup.json", javajson.loads(javajson.encode_standard(groups)))
        raise AdminError("with a broker, export either topics (-t) or groups (-g)")
    data = await export.cluster_metadata(admin, args["clusterName"], special=special)
    if args["topic"]:
        del data["subscriptionGroupTable"]
        return _write(args, "topic.json", data)
    if args["subscriptionGroup"]:
        del data["topicConfigTable"]
        return _write(args, "subscriptionGroup.json", data)
    return _write(args, "metadata.json", data)


async def _configs(admin: Admin, args: Args) -> Exported:
    return _write(args, "configs.json", await export.cluster_configs(admin, args["clusterName"]))


async def _metrics(admin: Admin, args: Args) -> Exported:
    return _write(args, "metrics.json", await export.cluster_metrics(admin, args["clusterName"]))


async def _pop_records(admin: Admin, args: Args) -> Changed:
    return await export.pop_records(
        admin, broker=args["brokerAddr"], cluster=args["clusterName"], dry_run=bool(args["dryRun"])
    )


COMMANDS: Final = (
    Command(
        name="exportMetadata",
        help="Write the topics and groups of a cluster or a broker to a file.",
        flags=(
            *_TARGET.flags,
            _DIRECTORY,
            Flag(names=("-t", "--topic"), help="Only topics.", switch=True),
            Flag(names=("-g", "--subscriptionGroup"), help="Only groups.", switch=True),
            Flag(names=("-s", "--specialTopic"), help="With retry and dead-letter topics.", switch=True),
        ),
        one_of=_TARGET.keys,
        call=_metadata,
        view=_view,
        results=(Exported,),
    ),
    Command(
        name="exportConfigs",
        help="Write the important settings of the masters of a cluster to a file.",
        flags=(_CLUSTER, _DIRECTORY),
        call=_configs,
        view=_view,
        results=(Exported,),
    ),
    Command(
        name="exportMetrics",
        help="Write the load and the size of a cluster to a file.",
        flags=(_CLUSTER, _DIRECTORY),
        call=_metrics,
        view=_view,
        results=(Exported,),
    ),
    Command(
        name="exportPopRecord",
        help="Have brokers write the POP checkpoints they keep elsewhere to their log.",
        flags=(
            BROKER,
            Flag(names=("-c", "--clusterName"), help="All brokers of this cluster.", completes="cluster"),
            Flag(
                names=("-d", "--dryRun"),
                help="Only show which brokers would be asked [false].",
                kind=bool,
                default=False,
            ),
        ),
        one_of=_TARGET.keys,
        call=_pop_records,
        view=changed,
        results=(Changed,),
    ),
)
