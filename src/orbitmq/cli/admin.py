"""``orbitmq admin``: mqadmin's commands, for this project's clusters and for Apache's.

A command is declared in the module of its area and loaded when it is called. This module only maps commands to areas.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

import click

from orbitmq.cli.completion import completion_command

if TYPE_CHECKING:
    from orbitmq.cli.admin_kit.declare import Command

__all__ = ["AREAS", "admin_commands", "declarations"]

AREAS: Final[dict[str, tuple[str, ...]]] = {
    "clusters": ("clusterList", "clusterRT", "statsAll"),
    "topics": (
        "topicList",
        "topicRoute",
        "topicStatus",
        "topicClusterList",
        "allocateMQ",
        "updateTopic",
        "updateTopicList",
        "updateTopicPerm",
        "deleteTopic",
        "updateOrderConf",
    ),
    "groups": (
        "consumerProgress",
        "consumerConnection",
        "consumerStatus",
        "getConsumerConfig",
        "producerConnection",
        "producer",
        "updateSubGroup",
        "updateSubGroupList",
        "deleteSubGroup",
        "setConsumeMode",
        "startMonitoring",
    ),
    "offsets": ("resetOffsetByTime", "skipAccumulatedMessage", "cloneGroupOffset"),
    "messages": (
        "queryMsgById",
        "queryMsgByKey",
        "queryMsgByUniqueKey",
        "queryMsgByOffset",
        "queryMsgTraceById",
    ),
    "queues": (
        "queryCq",
        "printMsg",
        "printMsgByQueue",
        "consumeMessage",
        "sendMessage",
        "checkMsgSendRT",
        "sendMsgStatus",
    ),
    "brokers": (
        "brokerStatus",
        "brokerConsumeStats",
        "getBrokerConfig",
        "updateBrokerConfig",
        "changeRole",
        "cleanExpiredCQ",
        "cleanUnusedTopic",
        "deleteExpiredCommitLog",
        "resetMasterFlushOffset",
        "getColdDataFlowCtrInfo",
        "updateColdDataFlowCtrGroupConfig",
        "removeColdDataFlowCtrGroupConfig",
        "setCommitLogReadAheadMode",
        "switchTimerEngine",
        "addBroker",
        "removeBroker",
    ),
    "namesrv": (
        "getNamesrvConfig",
        "updateNamesrvConfig",
        "updateKvConfig",
        "deleteKvConfig",
        "wipeWritePerm",
        "addWritePerm",
    ),
    "ha": (
        "haStatus",
        "getSyncStateSet",
        "getBrokerEpoch",
        "getControllerMetaData",
        "getControllerConfig",
        "updateControllerConfig",
        "electMaster",
        "cleanBrokerMetadata",
    ),
    "export": ("exportMetadata", "exportConfigs", "exportMetrics", "exportPopRecord"),
    "auth": (
        "createUser",
        "updateUser",
        "deleteUser",
        "getUser",
        "listUser",
        "copyUser",
        "createAcl",
        "updateAcl",
        "deleteAcl",
        "getAcl",
        "listAcl",
        "copyAcl",
    ),
}
"""Command names by area, in the order of the help. A test compares them with the declarations."""

_AREA_OF: Final = {name: area for area, names in AREAS.items() for name in names}
_TITLES: Final = {
    "ha": "Replication",
    "namesrv": "Name servers",
    "auth": "Users and access lists (Apache 5.3 and up)",
}
_COMPLETION: Final = "completion"


def declarations(area: str) -> tuple[Command, ...]:
    """Returns the declarations of an area's commands."""
    found: tuple[Command, ...] = importlib.import_module(f"orbitmq.cli.admin_areas.{area}").COMMANDS
    return found


class _AdminGroup(click.Group):
    """A group that imports an area when one of its commands is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_AREA_OF, _COMPLETION]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == _COMPLETION:
            return completion_command
        area = _AREA_OF.get(cmd_name)
        if area is None:
            return None
        from orbitmq.cli.admin_kit.run import build

        return build(next(one for one in declarations(area) if one.name == cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in _AREA_OF and name != _COMPLETION and not name.startswith("-"):
            from orbitmq.cli.admin_kit.explain import nearest

            meant = nearest(name, self.list_commands(ctx))
            hint = f" Did you mean {' or '.join(meant)}?" if meant else " See `orbitmq admin --help`."
            ctx.fail(f"No such command {name!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for area in AREAS:
            rows = [(one.name, one.help.partition("\n")[0]) for one in declarations(area)]
            with formatter.section(_TITLES.get(area, area.capitalize())):
                formatter.write_dl(rows)
        with formatter.section("Shell"):
            formatter.write_dl([(_COMPLETION, str(completion_command.short_help))])


class _LazyOptions(_AdminGroup):
    """A group that also accepts the connection options before the name of a command."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if not self.params:
            from orbitmq.cli.admin_kit.connect import connection_options

            self.params = list(connection_options())
        return super().get_params(ctx)


@click.group("admin", cls=_LazyOptions, context_settings={"help_option_names": ["-h", "--help"]})
@click.pass_context
def admin_commands(ctx: click.Context, /, **settings: Any) -> None:
    """Look at a cluster and change it: commands, flags and columns of mqadmin 5.5.0."""
    ctx.obj = settings
