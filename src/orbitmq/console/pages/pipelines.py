"""Pipelines: the progress of each Spark query, read from its checkpoint.

A checkpoint has ``offsets/N`` (the end of batch N, written before it runs) and ``commits/N`` (written after it). The
newest file of each directory shows which batch is running, which one completed last and when. The difference between
the offsets and the ends of the queues is the lag.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from starlette.responses import Response

from orbitmq.admin.census import gather_bounded
from orbitmq.admin.topics import topic_status
from orbitmq.console.view import View

__all__ = ["Pipeline", "pipelines", "read_checkpoints"]

_DEPTH_MAX = 4
_FOUND_MAX = 200
_RECENT_MS = 120_000


@dataclass(slots=True)
class Pipeline:
    """One query, identified by its checkpoint."""

    name: str
    path: Path
    batch: int | None = None
    """Number of the last completed batch."""
    begun: int | None = None
    """Number of the last planned batch."""
    done_ms: int | None = None
    offsets: dict[str, dict[str, int]] = field(default_factory=dict)
    """The offsets at which the next batch starts, by topic and then by ``broker:queue``."""
    lag: int | None = None
    error: str = ""

    def state(self, now_ms: int) -> str:
        if self.error:
            return "unreadable"
        if self.begun is not None and self.begun != self.batch:
            return "in a batch"
        if self.done_ms is not None and now_ms - self.done_ms < _RECENT_MS:
            return "running"
        return "idle or stopped"


def read_checkpoints(roots: tuple[Path, ...]) -> list[Pipeline]:
    """Returns the checkpoints found below the directories, within limits of depth and number."""
    found: list[Pipeline] = []
    for root in roots:
        waiting = [(root, 0)]
        while waiting and len(found) < _FOUND_MAX:
            directory, depth = waiting.pop(0)
            try:
                if (directory / "offsets").is_dir() and (directory / "commits").is_dir():
                    relative = directory.relative_to(root)
                    name = root.name if relative == Path() else str(relative)
                    found.append(_read(Pipeline(name, directory)))
                elif depth < _DEPTH_MAX:
                    waiting += ((child, depth + 1) for child in sorted(directory.iterdir()) if child.is_dir())
            except OSError:
                continue  # removed meanwhile, or not readable
    return found


def _newest(directory: Path) -> int | None:
    numbers = [int(entry.name) for entry in directory.iterdir() if entry.name.isdigit()]
    return max(numbers, default=None)


def _read(pipeline: Pipeline) -> Pipeline:
    try:
        pipeline.begun = _newest(pipeline.path / "offsets")
        pipeline.batch = _newest(pipeline.path / "commits")
        if pipeline.batch is not None:
            pipeline.done_ms = int((pipeline.path / "commits" / str(pipeline.batch)).stat().st_mtime * 1000)
            lines = (pipeline.path / "offsets" / str(pipeline.batch)).read_text("utf-8").splitlines()
            for line in lines[2:]:
                pipeline.offsets.update(_offsets(line))
    except (OSError, ValueError) as error:
        pipeline.error = str(error)
    return pipeline


def _offsets(line: str) -> dict[str, dict[str, int]]:
    """Parse the offsets that our source writes, ``{topic: {broker: {queue: offset}}}``.

    Returns an empty dict for other sources. Names with a space are not topics but metadata about the offsets.
    """
    try:
        table = {
            topic: msgspec.json.decode(brokers, type=dict[str, dict[str, int]])
            for topic, brokers in msgspec.json.decode(line, type=dict[str, msgspec.Raw]).items()
            if " " not in topic
        }
    except (msgspec.DecodeError, msgspec.ValidationError):
        return {}
    return {
        topic: {
            f"{broker}:{queue}": offset
            for broker, numbers in brokers.items()
            for queue, offset in numbers.items()
        }
        for topic, brokers in table.items()
    }


async def pipelines(view: View) -> Response:
    """Shows all pipelines in the directories configured for the console."""
    roots = view.console.settings.pipelines
    found = await asyncio.to_thread(read_checkpoints, roots)
    topics = sorted({topic for one in found for topic in one.offsets})
    answers = await gather_bounded(lambda topic: topic_status(view.admin, topic), topics)
    ends = {
        topic: {f"{queue.broker_name}:{queue.queue_id}": queue.max_offset for queue in answer.queues}
        for topic, answer in zip(topics, answers, strict=True)
        if not isinstance(answer, Exception)
    }
    for one in found:
        if one.offsets and all(topic in ends for topic in one.offsets):
            one.lag = sum(
                max(0, end - one.offsets[topic].get(queue, 0))
                for topic in one.offsets
                for queue, end in ends[topic].items()
            )
    return view.page("pipelines.html", pipelines=found, roots=roots, now_ms=view.now_ms)
