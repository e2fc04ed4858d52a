"""Stores whether groups pull or pop a topic (Apache: MessageRequestModeManager, file ``messageRequestMode.json``)."""

from __future__ import annotations

from orbitmq.broker.config import BrokerConfig
from orbitmq.model.names import RETRY_PREFIX
from orbitmq.runtime.safe_file import SafeFile
from orbitmq.wire import bodies, javajson

__all__ = ["POP_MODE", "PULL_MODE", "RequestModes"]

PULL_MODE = "PULL"
POP_MODE = "POP"
_BYTES_MAX = 256 << 20


class RequestModes:
    """The request modes by topic and group. Every change is saved immediately."""

    def __init__(self, config: BrokerConfig, file: SafeFile) -> None:
        self._config = config
        self._file = file
        self._modes: dict[str, dict[str, bodies.MessageRequestMode]] = {}

    def load(self) -> None:
        """Load the file if it exists. Raises ``CorruptionError``."""
        saved = self._file.load(_parse)
        if saved is not None:
            self._modes = saved

    def find(self, topic: str, group: str) -> bodies.MessageRequestMode:
        """Returns the mode set for a topic and group, or else the default: pull for retry topics, the broker's
        default for others."""
        found = self._modes.get(topic, {}).get(group)
        if found is not None:
            return found
        mode = PULL_MODE if topic.startswith(RETRY_PREFIX) else self._config.default_request_mode
        return bodies.MessageRequestMode(
            topic=topic,
            consumer_group=group,
            mode=mode,
            pop_share_queue_num=self._config.default_share_count,
        )

    def is_pulled(self, topic: str, group: str) -> bool:
        """Whether the group is explicitly configured to pull the topic. A default mode does not count."""
        found = self._modes.get(topic, {}).get(group)
        return found is not None and found.mode == PULL_MODE

    def put(self, mode: bodies.MessageRequestMode) -> None:
        """Set the mode of a topic and group. Raises ``OSError`` if it cannot be saved; the mode takes effect
        anyway."""
        assert mode.topic is not None
        assert mode.consumer_group is not None
        self._modes.setdefault(mode.topic, {})[mode.consumer_group] = mode
        self._save()

    def forget(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Remove the modes of a deleted topic or group."""
        before = self.encode()
        if topic is not None:
            self._modes.pop(topic, None)
        for groups in self._modes.values():
            if group is not None:
                groups.pop(group, None)
        self._modes = {name: groups for name, groups in self._modes.items() if groups}
        if self.encode() != before:
            self._save()

    def take(self, content: bytes) -> None:
        """Replace a slave's table with its master's. Raises ``BodyError`` and ``OSError``."""
        modes = _parse(content)
        if modes != self._modes:
            self._modes = modes
            self._save()

    def encode(self) -> bytes:
        """Returns the response body of GET_ALL_MESSAGE_REQUEST_MODE."""
        return self._body().encode()

    def _body(self) -> bodies.MessageRequestModes:
        return bodies.MessageRequestModes(message_request_mode_map=self._modes)

    def _save(self) -> None:
        self._file.save(javajson.encode_pretty(self._body()))


def _parse(content: bytes) -> dict[str, dict[str, bodies.MessageRequestMode]]:
    return javajson.decode(content, bodies.MessageRequestModes, bytes_max=_BYTES_MAX).message_request_mode_map
