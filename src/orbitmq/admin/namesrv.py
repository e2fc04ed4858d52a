"""Name servers: their settings, their key-value tables, and the write permission of a broker."""

from __future__ import annotations

from orbitmq.admin.base import Change, Changed, Result, properties_text, read_properties
from orbitmq.admin.errors import UnknownNameError
from orbitmq.admin.session import Admin
from orbitmq.requests import RequestCode
from orbitmq.wire.header import decode_header
from orbitmq.wire.headers import (
    AddWritePermOfBrokerRequest,
    AddWritePermOfBrokerResponse,
    DeleteKvConfigRequest,
    PutKvConfigRequest,
    WipeWritePermOfBrokerRequest,
    WipeWritePermOfBrokerResponse,
)

__all__ = [
    "PermChange",
    "PermChanges",
    "ServerConfig",
    "ServerConfigs",
    "add_write_perm",
    "delete_kv",
    "name_server_configs",
    "put_kv",
    "update_name_server_config",
    "wipe_write_perm",
]


class ServerConfig(Result, kw_only=True):
    address: str
    role: str = ""
    """``master`` or ``slave`` for a broker of a cluster, otherwise empty."""
    master: str = ""
    config: dict[str, str]


class ServerConfigs(Result, kw_only=True):
    servers: list[ServerConfig]


class PermChange(Result, kw_only=True):
    broker_name: str
    name_server: str
    topic_count: int


class PermChanges(Result, kw_only=True):
    name_servers: list[PermChange]


async def name_server_configs(admin: Admin) -> ServerConfigs:
    """Returns the settings of every name server."""
    answers = await admin.tell_name_servers(RequestCode.GET_NAMESRV_CONFIG)
    rows = [ServerConfig(address=a, config=read_properties(f.body, a)) for a, f in answers.items()]
    return ServerConfigs(servers=rows)


async def update_name_server_config(admin: Admin, key: str, value: str) -> Changed:
    """Change one setting of every name server."""
    body = properties_text({key: value})
    answers = await admin.tell_name_servers(RequestCode.UPDATE_NAMESRV_CONFIG, None, body)
    return Changed(
        changes=[Change(target=a, action="config stored", detail=f"{key}={value}") for a in answers]
    )


async def put_kv(admin: Admin, namespace: str, key: str, value: str) -> Changed:
    """Set a key of a namespace in every name server."""
    header = PutKvConfigRequest(namespace=namespace, key=key, value=value)
    answers = await admin.tell_name_servers(RequestCode.PUT_KV_CONFIG, header)
    detail = f"namespace={namespace} key={key} value={value}"
    return Changed(changes=[Change(target=a, action="key stored", detail=detail) for a in answers])


async def delete_kv(admin: Admin, namespace: str, key: str) -> Changed:
    """Delete a key of a namespace from every name server."""
    header = DeleteKvConfigRequest(namespace=namespace, key=key)
    answers = await admin.tell_name_servers(RequestCode.DELETE_KV_CONFIG, header)
    detail = f"namespace={namespace} key={key}"
    return Changed(changes=[Change(target=a, action="key deleted", detail=detail) for a in answers])


async def _check_broker(admin: Admin, broker_name: str) -> None:
    """Raise ``UnknownNameError`` for an unknown broker, because name servers report success for any name."""
    known = (await admin.cluster_info()).broker_addr_table
    if broker_name not in known:
        raise UnknownNameError("broker", broker_name, known)


async def wipe_write_perm(admin: Admin, broker_name: str) -> PermChanges:
    """Stop sends to a broker: its topics become read-only in every name server.

    Raises ``UnknownNameError``.
    """
    await _check_broker(admin, broker_name)
    header = WipeWritePermOfBrokerRequest(broker_name=broker_name)
    answers = await admin.tell_name_servers(RequestCode.WIPE_WRITE_PERM_OF_BROKER, header)
    rows = [
        PermChange(
            broker_name=broker_name,
            name_server=address,
            topic_count=decode_header(WipeWritePermOfBrokerResponse, frame).wipe_topic_count,
        )
        for address, frame in answers.items()
    ]
    return PermChanges(name_servers=rows)


async def add_write_perm(admin: Admin, broker_name: str) -> PermChanges:
    """Allow sends to a broker again. Raises ``UnknownNameError``."""
    await _check_broker(admin, broker_name)
    header = AddWritePermOfBrokerRequest(broker_name=broker_name)
    answers = await admin.tell_name_servers(RequestCode.ADD_WRITE_PERM_OF_BROKER, header)
    rows = [
        PermChange(
            broker_name=broker_name,
            name_server=address,
            topic_count=decode_header(AddWritePermOfBrokerResponse, frame).add_topic_count,
        )
        for address, frame in answers.items()
    ]
    return PermChanges(name_servers=rows)
