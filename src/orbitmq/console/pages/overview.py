"""The home page, charts, producers and the audit log."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from orbitmq.admin.census import gather_bounded
from orbitmq.admin.groups import ProducerRow, producers
from orbitmq.codes import version_name
from orbitmq.console.sampler import BrokerSample, Snapshot
from orbitmq.console.view import View, listing
from orbitmq.errors import OrbitError

__all__ = ["audit", "chart", "needs_attention", "overview", "producer_list"]

_SERIES_MAX = 12
_DISK_FULL = 0.85
_LAG_OLD_MS = 15 * 60_000


async def overview(view: View) -> Response:
    """Shows clusters, brokers, problems, and the groups with the largest lag."""
    snapshot = await view.console.sampler.ready()
    masters = [sample for sample in snapshot.brokers if sample.place.is_master]
    groups = [group for group in snapshot.groups.values() if group.lag]
    groups.sort(key=lambda group: -(group.lag or 0))
    dead = [group for group in snapshot.groups.values() if group.dead]
    dead.sort(key=lambda group: -(group.dead or 0))
    clusters: dict[str, list[BrokerSample]] = {}
    for sample in snapshot.brokers:
        clusters.setdefault(sample.place.cluster, []).append(sample)
    lags = [group.lag for group in snapshot.groups.values() if group.lag is not None]
    return view.page(
        "overview.html",
        snapshot=snapshot,
        clusters=clusters,
        in_rate=_sum([sample.in_rate for sample in masters]),
        out_rate=_sum([sample.out_rate for sample in masters]),
        lag=sum(lags) if snapshot.known and not snapshot.problems else None,
        dead_count=_dead_count(snapshot),
        groups=groups[:8],
        dead=dead[:8],
        wrong=needs_attention(snapshot, view.now_ms),
        topic_count=len(snapshot.own_topics) if snapshot.known else None,
        group_count=len(snapshot.own_groups) if snapshot.known else None,
        now_ms=view.now_ms,
    )


def _dead_count(snapshot: Snapshot) -> float | None:
    if not snapshot.known:
        return None
    return _sum([group.dead for group in snapshot.groups.values()]) if snapshot.groups else 0


def _sum(values: list[float | None] | list[int | None]) -> float | None:
    """Returns the sum, or None (unknown) if a value is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if values and len(known) == len(values) else None


def needs_attention(snapshot: Snapshot, now_ms: int) -> list[str]:
    """Returns one sentence for each problem that needs an operator's attention."""
    found = list(snapshot.problems)
    names = {sample.place.broker_name for sample in snapshot.brokers}
    with_master = {sample.place.broker_name for sample in snapshot.brokers if sample.place.is_master}
    found += (
        f"broker {name} has no master: nothing can be sent to it" for name in sorted(names - with_master)
    )
    for sample in snapshot.brokers:
        where = f"{sample.place.broker_name} ({sample.place.address})"
        if sample.disk_ratio is not None and sample.disk_ratio > _DISK_FULL:
            found.append(f"the disk of {where} is {sample.disk_ratio:.0%} full; messages are deleted early")
        if sample.replication is not None:
            found += (
                f"slave {slave.address} of {where} is not in sync, {slave.diff:,} bytes behind"
                for slave in sample.replication.slaves
                if not slave.in_sync
            )
    versions = {sample.version for sample in snapshot.brokers if sample.version}
    if len(versions) > 1:
        found.append(f"the brokers have different versions: {', '.join(sorted(versions))}")
    for group in snapshot.groups.values():
        age_ms = group.lag_ms(now_ms)
        if group.lag and age_ms is not None and age_ms > _LAG_OLD_MS:
            found.append(
                f"group {group.name} is {group.lag:,} messages and {age_ms // 60_000:,} minutes behind"
            )
    found += (f"group {name}: {line}" for name, lines in snapshot.stalled.items() for line in lines)
    dead = [group for group in snapshot.groups.values() if group.dead]
    dead.sort(key=lambda group: -(group.dead or 0))
    found += (
        f"group {group.name} has {group.dead:,} dead letter{'s' if group.dead != 1 else ''} to resend or drop"
        for group in dead
    )
    return found


async def chart(view: View) -> Response:
    """Returns series of the history as JSON, for a URL such as ``?series=all/in&series=all/out&hours=1``."""
    hours = min(max(view.number("hours", 1), 1), view.console.settings.history_hours)
    now_ms = view.now_ms
    names = view.request.query_params.getlist("series")[:_SERIES_MAX]
    found = {name: view.console.history.read(name, now_ms - hours * 3_600_000, now_ms + 1) for name in names}
    times = sorted({at for points in found.values() for at, _ in points})
    tables = {name: dict(points) for name, points in found.items()}
    body = {
        "times": [at / 1000 for at in times],
        "values": [[tables[name].get(at) for at in times] for name in names],
    }
    return JSONResponse(body, headers={"cache-control": "no-store"})


async def producer_list(view: View) -> Response:
    """Shows the producers connected to each broker."""
    snapshot = await view.console.sampler.ready()
    masters = [sample.place for sample in snapshot.brokers if sample.place.is_master]
    answers = await gather_bounded(lambda place: producers(view.admin, place.address), masters)
    rows: dict[tuple[str, str], ProducerRow] = {}
    problems = []
    for place, answer in zip(masters, answers, strict=True):
        if isinstance(answer, OrbitError):
            problems.append(f"{place.broker_name}: {answer}")
            continue
        rows.update(((row.group, row.client_id), row) for row in answer.producers)
    columns = {
        "group": lambda row: row.group,
        "client": lambda row: row.client_id,
        "address": lambda row: row.remote_ip,
        "language": lambda row: row.language,
        "seen": lambda row: row.last_update_timestamp,
        "any": lambda row: f"{row.group} {row.client_id} {row.remote_ip}",
    }
    found = listing(view, rows.values(), columns, "group", "any")
    return view.page("producers.html", list=found, problems=problems, version_name=version_name)


async def audit(view: View) -> Response:
    """Shows the log of changes and who made them."""
    columns = {
        "at": lambda row: row.get("at"),
        "user": lambda row: str(row.get("user")),
        "action": lambda row: str(row.get("action")),
        "any": lambda row: " ".join(str(row.get(key, "")) for key in ("user", "action", "target", "text")),
    }
    found = listing(view, view.console.audit.last(), columns, "-at", "any")
    return view.page("audit.html", list=found)
