"""Commands for name servers."""

from __future__ import annotations

from typing import Final

from orbitmq.admin import namesrv
from orbitmq.admin.base import Changed
from orbitmq.cli.admin_areas.brokers import configs_view
from orbitmq.cli.admin_kit.declare import BROKER_NAME, Args, Command, Flag
from orbitmq.cli.admin_kit.output import Part, changed, table

__all__ = ["COMMANDS"]

_KEY: Final = Flag(names=("-k", "--key"), help="Key.", required=True)
_VALUE: Final = Flag(names=("-v", "--value"), help="Value.", required=True)
_NAMESPACE: Final = Flag(names=("-s", "--namespace"), help="Namespace.", required=True)


def _perm_view(result: namesrv.PermChanges, args: Args) -> list[Part]:
    columns = {"Broker Name": "broker_name", "Name Server": "name_server", "Topics": "topic_count"}
    return [table(result.name_servers, columns)]


COMMANDS: Final = (
    Command(
        name="getNamesrvConfig",
        help="Settings of the name servers.",
        call=lambda admin, a: namesrv.name_server_configs(admin),
        view=configs_view,
        results=(namesrv.ServerConfigs,),
    ),
    Command(
        name="updateNamesrvConfig",
        help="Change a setting of the name servers.",
        flags=(_KEY, _VALUE),
        call=lambda admin, a: namesrv.update_name_server_config(admin, a["key"], a["value"]),
        view=changed,
        results=(Changed,),
    ),
    Command(
        name="updateKvConfig",
        help="Set a key in a namespace of the name servers.",
        flags=(_NAMESPACE, _KEY, _VALUE),
        call=lambda admin, a: namesrv.put_kv(admin, a["namespace"], a["key"], a["value"]),
        view=changed,
        results=(Changed,),
    ),
    Command(
        name="deleteKvConfig",
        help="Delete a key from a namespace of the name servers.",
        flags=(_NAMESPACE, _KEY),
        call=lambda admin, a: namesrv.delete_kv(admin, a["namespace"], a["key"]),
        view=changed,
        results=(Changed,),
    ),
    Command(
        name="wipeWritePerm",
        help="Take a broker out of sending, in every name server.",
        flags=(BROKER_NAME,),
        call=lambda admin, a: namesrv.wipe_write_perm(admin, a["brokerName"]),
        view=_perm_view,
        results=(namesrv.PermChanges,),
    ),
    Command(
        name="addWritePerm",
        help="Restore the write permission of a broker in every name server.",
        flags=(BROKER_NAME,),
        call=lambda admin, a: namesrv.add_write_perm(admin, a["brokerName"]),
        view=_perm_view,
        results=(namesrv.PermChanges,),
    ),
)
