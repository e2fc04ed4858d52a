"""Stores the config files of a broker, such as ``config/topics.json`` (Apache: ConfigManager). See
``runtime.safe_file``."""

from __future__ import annotations

from orbitmq.runtime.safe_file import SafeFile as ConfigFile

__all__ = ["ConfigFile"]
