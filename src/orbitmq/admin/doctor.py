"""Checks a whole cluster for common problems. Each finding states what to do.

Nothing is changed and nothing is sent to a topic. A broker that does not answer is a finding, not a failure.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from orbitmq.admin.base import Result
from orbitmq.admin.brokers import config_of, options_without_effect, runtime_info
from orbitmq.admin.census import BrokerPlace, all_groups, all_lags, all_topics, gather_bounded
from orbitmq.admin.deadletters import dead_groups
from orbitmq.admin.errors import UnreachableError
from orbitmq.admin.groups import GroupConnection, consumer_connection, group_members
from orbitmq.admin.ha import ha_status
from orbitmq.admin.session import Admin
from orbitmq.errors import OrbitError, TopicNotFound
from orbitmq.model.names import AUTO_CREATE_TOPIC, is_system_group
from orbitmq.model.route import MASTER_ID
from orbitmq.requests import RequestCode
from orbitmq.runtime.words import counted
from orbitmq.wire.bodies import ClusterInfo

__all__ = ["Checkup", "Finding", "Level", "checkup"]

DISK_WARN: Final = 0.75
"""Above this disk usage ratio, the broker deletes expired segments at any hour (diskMaxUsedSpaceRatio)."""
DISK_FORCED: Final = 0.85
"""Above this ratio, the broker also deletes segments that have not expired (diskSpaceCleanForciblyRatio)."""
DISK_FULL: Final = 0.90
"""Above this ratio, the broker refuses messages (diskSpaceWarningLevelRatio)."""
CLOCK_WARN_MS: Final = 5_000
REPLICATION_LAG_WARN_BYTES: Final = 256 << 20
"""The lag in bytes from which a SYNC_MASTER no longer counts a slave (haSlaveFallbehindMax)."""
BACKLOG_WARN: Final = 100_000
PERM_WRITE: Final = 2
_GROUPS_NAMED: Final = 5


class Level(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(Result, kw_only=True):
    level: Level
    what: str
    remedy: str = ""


class Checkup(Result, kw_only=True):
    findings: list[Finding]

    @property
    def failed(self) -> bool:
        return any(one.level is Level.FAIL for one in self.findings)


class _Notes:
    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def ok(self, what: str) -> None:
        self.findings.append(Finding(level=Level.OK, what=what))

    def warn(self, what: str, remedy: str) -> None:
        self.findings.append(Finding(level=Level.WARN, what=what, remedy=remedy))

    def fail(self, what: str, remedy: str) -> None:
        self.findings.append(Finding(level=Level.FAIL, what=what, remedy=remedy))


async def checkup(admin: Admin, topic: str | None = None) -> Checkup:
    """Check name servers, brokers, clocks, disks, versions, replication and groups, and the route of ``topic`` if
    given.
    """
    notes = _Notes()
    infos = await _name_servers(admin, notes)
    if infos:
        places = _places(infos)
        if not places:
            notes.fail(
                "no broker is registered",
                "Start one with `orbitmq broker -n ADDRESS`; its log says if it cannot register.",
            )
        answering = await _brokers(admin, places, notes)
        await _replication(admin, answering, notes)
        await _groups(admin, answering, notes)
        await _dead_letters(admin, notes)
        if topic is not None:
            await _route(admin, topic, answering, notes)
    return Checkup(findings=notes.findings)


# -- name servers ------------------------------------------------------------------------------------------


async def _name_servers(admin: Admin, notes: _Notes) -> dict[str, ClusterInfo]:
    infos: dict[str, ClusterInfo] = {}
    for address in admin.required_name_servers():
        began_ms = admin.clock.now_ms()
        try:
            answer = await admin.ask(address, RequestCode.GET_BROKER_CLUSTER_INFO, role="name server")
        except OrbitError as error:
            notes.fail(
                f"name server {address}: {error}",
                "Start it (`orbitmq namesrv`, or `orbitmq up` for all), or correct -n. A server that takes only "
                "encrypted connections needs --tls.",
            )
            continue
        infos[address] = ClusterInfo.decode(answer.body)
        notes.ok(f"name server {address} answers in {admin.clock.now_ms() - began_ms} ms")
    known = {address: _addresses(info) for address, info in infos.items()}
    everywhere = set().union(*known.values()) if known else set()
    for address, brokers in known.items():
        if missing := sorted(everywhere - brokers):
            notes.fail(
                f"name server {address} does not know {', '.join(missing)}, others do",
                "Give every broker the same list in namesrvAddr: name servers do not tell each other.",
            )
    return infos


def _addresses(info: ClusterInfo) -> set[str]:
    return {address for data in info.broker_addr_table.values() for address in data.broker_addrs.values()}


def _places(infos: dict[str, ClusterInfo]) -> list[BrokerPlace]:
    found: dict[str, BrokerPlace] = {}
    for info in infos.values():
        for cluster, names in sorted(info.cluster_addr_table.items()):
            for name in sorted(names):
                data = info.broker_addr_table.get(name)
                for broker_id, address in sorted(data.broker_addrs.items()) if data else ():
                    found.setdefault(
                        address,
                        BrokerPlace(cluster=cluster, broker_name=name, broker_id=broker_id, address=address),
                    )
    return list(found.values())


# -- brokers -----------------------------------------------------------------------------------------------


async def _brokers(admin: Admin, places: list[BrokerPlace], notes: _Notes) -> list[BrokerPlace]:
    answering: list[BrokerPlace] = []
    versions: Counter[str] = Counter()
    for place in places:
        who = f"broker {place.broker_name} ({place.address})"
        began_ms = admin.clock.now_ms()
        try:
            table = await runtime_info(admin, place.address)
        except UnreachableError as error:
            notes.fail(
                f"{who}: {error.reason}",
                f"If it runs, it registered an address that this machine cannot reach: set brokerIP1 to one that "
                f"clients reach, and open port {place.address.rpartition(':')[2]}.",
            )
            continue
        except OrbitError as error:
            notes.fail(f"{who}: {error}", "Its log has the reason; with access control give --accessKey.")
            continue
        answering.append(place)
        version = " ".join(
            part for part in (table.get("brokerVersionDesc"), table.get("orbitmqRelease")) if part
        )
        versions[version] += 1
        kernel = f", {table['orbitmqKernel']} kernel" if "orbitmqKernel" in table else ""
        notes.ok(
            f"{who} answers in {admin.clock.now_ms() - began_ms} ms, {version or 'version unknown'}{kernel}"
        )
        _disk(who, table, notes)
        _damage(who, table, notes)
        _clock(who, table, admin.clock.now_ms(), notes)
        await _options(admin, place, who, notes)
    if len(versions) > 1:
        listed = ", ".join(f"{count} x {version}" for version, count in versions.items())
        notes.warn(
            f"the brokers have different versions: {listed}", "Finish the upgrade, slaves before masters."
        )
    for cluster, name in sorted({(place.cluster, place.broker_name) for place in places}):
        ids = {place.broker_id for place in places if place.broker_name == name}
        if MASTER_ID not in ids:
            notes.fail(
                f"broker {name} of cluster {cluster} has no master: it can be read and takes no message",
                "Start its master again, or make a slave the master: `orbitmq admin changeRole`.",
            )
    return answering


async def _options(admin: Admin, place: BrokerPlace, who: str, notes: _Notes) -> None:
    try:
        idle = await options_without_effect(admin, place.address)
    except OrbitError:
        return  # an access control without the right to read options
    if idle:
        notes.warn(
            f"{who}: options without effect: {', '.join(idle)}",
            "Delete them from its file; the reference of options says why they have no effect.",
        )


def _disk(who: str, table: dict[str, str], notes: _Notes) -> None:
    ratio = _number(table.get("commitLogDiskRatio"))
    if ratio is None:
        return
    text = f"{who}: the disk of the log is {ratio:.0%} full"
    remedy = (
        "Free space, or keep messages for a shorter time: `orbitmq admin updateBrokerConfig -k fileReservedTime "
        "-v HOURS`."
    )
    if ratio >= DISK_FULL:
        notes.fail(f"{text}: messages are refused", remedy)
    elif ratio >= DISK_FORCED:
        notes.warn(f"{text}: the oldest messages are deleted before their time", remedy)
    elif ratio >= DISK_WARN:
        notes.warn(f"{text}: expired messages are deleted at any hour", remedy)
    else:
        notes.ok(text)


def _damage(who: str, table: dict[str, str], notes: _Notes) -> None:
    text = table.get("orbitmqDamage")
    if text is None:
        return
    if any(_number(part.rpartition(" ")[2]) for part in text.split(", ")):
        notes.warn(
            f"{who}: damage found since its start: {text}",
            "Check its disk. Messages that no replica could replace are in its log (`damaged`); see `orbitmq store "
            "repair`.",
        )


def _clock(who: str, table: dict[str, str], now_ms: int, notes: _Notes) -> None:
    """Check a broker's clock, which is the sum of the start time and the uptime that it reports."""
    started = _number(table.get("bootTimestamp"))
    ran = [_number(word) for word in table.get("runtime", "").replace(",", "").split()]
    numbers = [one for one in ran if one is not None]
    if started is None or len(numbers) != 4:
        return
    days, hours, minutes, seconds = numbers
    theirs_ms = started + 1000 * (seconds + 60 * (minutes + 60 * (hours + 24 * days)))
    off_ms = theirs_ms - now_ms
    if abs(off_ms) > CLOCK_WARN_MS:
        notes.warn(
            f"{who}: its clock is {abs(off_ms) / 1000:.0f} s {'ahead of' if off_ms > 0 else 'behind'} this machine's",
            "Run NTP on both: delays, retention and searches by time go by the broker's clock.",
        )
    else:
        notes.ok(f"{who}: its clock agrees with this machine's")


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None


async def _replication(admin: Admin, places: list[BrokerPlace], notes: _Notes) -> None:
    slaves = {place.broker_name for place in places if place.broker_id != MASTER_ID}
    for place in places:
        if place.broker_id != MASTER_ID or place.broker_name not in slaves:
            continue
        try:
            (row,) = (await ha_status(admin, broker=place.address, cluster=None)).brokers
        except OrbitError:
            continue  # before 5.0 there is no such request
        who = f"master {place.broker_name}"
        if not row.slaves:
            notes.fail(
                f"{who}: a slave is registered and none is connected",
                "See the slave's log; the master's haListenPort (10912) must be reachable from it, at brokerIP2.",
            )
        for slave in row.slaves:
            if slave.diff > REPLICATION_LAG_WARN_BYTES:
                notes.warn(
                    f"{who}: slave {slave.address} is {slave.diff:,} bytes behind",
                    "Look at the slave's disk and network. A SYNC_MASTER no longer counts it.",
                )
            else:
                notes.ok(f"{who}: slave {slave.address} is {slave.diff:,} bytes behind")


# -- groups ------------------------------------------------------------------------------------------------


async def _groups(admin: Admin, places: list[BrokerPlace], notes: _Notes) -> None:
    masters = [place for place in places if place.broker_id == MASTER_ID]
    backlog: Counter[str] = Counter()
    behind: list[str] = []
    names: set[str] = set()
    for place in masters:
        try:
            names.update(name for name in await all_groups(admin, place.address) if not is_system_group(name))
            for lag in await all_lags(admin, place.address):
                backlog[lag.group] += lag.diff
        except OrbitError as error:
            notes.warn(f"groups of {place.address}: {error}", "Its log has the reason.")
    for group, found in zip(
        sorted(names),
        await gather_bounded(lambda name: consumer_connection(admin, name), sorted(names)),
        strict=True,
    ):
        waiting = backlog[group]
        if isinstance(found, OrbitError):
            if waiting:
                notes.warn(
                    f"group {group}: no member is connected, {counted(waiting, 'message')} not consumed",
                    "Start its consumers, or delete the group if it is not needed: `orbitmq admin deleteSubGroup`.",
                )
            continue
        _members(group, found, notes)
        if waiting:
            behind.append(group)
        if waiting >= BACKLOG_WARN:
            notes.warn(
                f"group {group}: {counted(waiting, 'message')} not consumed by "
                f"{counted(len(found.connections), 'member')}",
                f"See which queues: `orbitmq admin consumerProgress -g {group}`; add members, up to the number "
                "of queues.",
            )

    await _hung_members(admin, behind, notes)


async def _hung_members(admin: Admin, groups: list[str], notes: _Notes) -> None:
    """Report members that hold messages and finish none.

    Checks only groups with a lag, because each member costs a request.
    """
    for group, found in zip(
        groups, await gather_bounded(lambda name: group_members(admin, name), groups), strict=True
    ):
        if isinstance(found, OrbitError):
            continue  # no member is left, or the broker cannot ask it
        for text in found.findings:
            notes.warn(
                f"group {group}: {text}",
                f"Its handler may hang: `orbitmq admin consumerStatus -g {group} -i CLIENT_ID -s` shows its stacks.",
            )


async def _dead_letters(admin: Admin, notes: _Notes) -> None:
    """Report one finding for all groups, because dead letters may be normal and many groups may have them."""
    try:
        groups = [one for one in (await dead_groups(admin)).groups if one.count]
    except OrbitError:
        return  # reported above: no name server or broker answers
    if groups:
        total = sum(one.count for one in groups)
        named = ", ".join(f"{one.group} ({one.count:,})" for one in groups[:_GROUPS_NAMED])
        more = f" and {len(groups) - _GROUPS_NAMED} more" if len(groups) > _GROUPS_NAMED else ""
        notes.warn(
            f"{counted(total, 'dead letter')} stored: {named}{more}",
            f"See why: `orbitmq dlq list {groups[0].group}`; then `orbitmq dlq resend` or `drop`.",
        )


def _members(group: str, connection: GroupConnection, notes: _Notes) -> None:
    twice = _repeated(client.client_id for client in connection.connections)
    for client_id in twice:
        notes.fail(
            f"group {group}: client id {client_id} is connected more than once: these members get the same queues",
            "Give every process its own instance name or client id (containers often share one).",
        )


def _repeated(items: Iterable[str]) -> list[str]:
    return sorted(item for item, count in Counter(items).items() if count > 1)


# -- one topic ---------------------------------------------------------------------------------------------


async def _route(admin: Admin, topic: str, places: list[BrokerPlace], notes: _Notes) -> None:
    masters = [place for place in places if place.broker_id == MASTER_ID]
    try:
        route = await admin.route(topic)
    except TopicNotFound:
        await _no_route(admin, topic, masters, notes)
        return
    closed = [data.broker_name for data in route.queue_datas if not data.perm & PERM_WRITE]
    if len(closed) == len(route.queue_datas):
        notes.fail(
            f"topic {topic}: no broker lets it be written",
            f"`orbitmq admin updateTopicPerm -t {topic} -p 6 -c CLUSTER`, or `addWritePerm` for a broker that was "
            "taken out of sending.",
        )
    elif closed:
        notes.warn(
            f"topic {topic}: not written on {', '.join(closed)}", "`orbitmq admin addWritePerm -b NAME`."
        )
    else:
        queues = sum(data.write_queue_nums for data in route.queue_datas)
        notes.ok(f"topic {topic}: {queues} queues on {len(route.queue_datas)} brokers")


async def _no_route(admin: Admin, topic: str, masters: list[BrokerPlace], notes: _Notes) -> None:
    """Report the causes of a client's "No route info of this topic"."""
    for place, found in zip(
        masters,
        await asyncio.gather(*(_has_topic(admin, place.address, topic) for place in masters)),
        strict=True,
    ):
        if found:
            notes.fail(
                f"topic {topic}: broker {place.broker_name} has it and the name server does not",
                "The broker registers every 30 s: wait, then see its log; its namesrvAddr may name another server.",
            )
            return
    creating = []
    for place in masters:
        try:
            config = await config_of(admin, place.address)
        except OrbitError:
            continue
        if config.get("autoCreateTopicEnable") == "true":
            creating.append(place.broker_name)
    create = f"`orbitmq admin updateTopic -t {topic} -c CLUSTER`"
    if not creating:
        notes.fail(
            f"topic {topic} does not exist, and no broker creates topics by itself (autoCreateTopicEnable=false)",
            f"Create it: {create}.",
        )
        return
    try:
        await admin.route(AUTO_CREATE_TOPIC)
        notes.warn(
            f"topic {topic} does not exist yet; the first send creates it on {', '.join(creating)}",
            f"A consumer waits until then. To have it now: {create}.",
        )
    except TopicNotFound:
        notes.fail(
            f"topic {topic} does not exist, and {AUTO_CREATE_TOPIC} has no route", f"Create it: {create}."
        )


async def _has_topic(admin: Admin, address: str, topic: str) -> bool:
    try:
        return topic in await all_topics(admin, address)
    except OrbitError:
        return False
