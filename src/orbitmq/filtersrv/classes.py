"""The filter class of each group, uploaded by a consumer or put into a directory by the operator."""

from __future__ import annotations

import logging
import re
import zlib
from pathlib import Path
from typing import Final

from orbitmq.errors import InvalidParameter, NoPermission, ServerError, SystemBusy
from orbitmq.filtersrv.config import FilterServerConfig
from orbitmq.filtersrv.sandbox import FilterFailed, FilterProcess

__all__ = ["FilterClasses"]

logger = logging.getLogger(__name__)

_CLASS_NAME: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)


class FilterClasses:
    """The filter processes, by topic and group."""

    def __init__(self, config: FilterServerConfig) -> None:
        self._config = config
        self._uploaded: dict[tuple[str, str], tuple[int, FilterProcess]] = {}
        self._from_files: dict[tuple[str, str], tuple[tuple[str, int], FilterProcess]] = {}

    def uploaded(self, topic: str, group: str) -> FilterProcess | None:
        """Returns the process of the class that a consumer of the group has uploaded, or None."""
        found = self._uploaded.get((topic, group))
        return None if found is None else found[1]

    async def upload(self, topic: str, group: str, class_name: str, source: bytes, crc: int) -> None:
        """Accept a class. If it cannot be loaded, raises ``ServerError`` and keeps the previous class.

        Raises ``NoPermission`` if uploads are disabled, ``InvalidParameter`` for a bad name, size or checksum.
        """
        if not self._config.upload_allowed:
            raise NoPermission(
                "this filter server accepts no classes from consumers (clientUploadFilterClassEnable)"
            )
        if len(source) > self._config.source_bytes_max or not _CLASS_NAME.fullmatch(class_name):
            raise InvalidParameter(
                f"a filter class needs a name and at most {self._config.source_bytes_max} bytes of source"
            )
        actual = zlib.crc32(source) & 0x7FFFFFFF
        if crc not in (0, actual):
            raise InvalidParameter(f"the source of class {class_name} has CRC {actual}, not {crc}")
        known = self._uploaded.get((topic, group))
        if known is not None and known[0] == actual and known[1].class_name == class_name:
            return
        process = self._process(class_name, source, known is None)
        try:
            await process.check()
        except FilterFailed as error:
            raise ServerError(str(error)) from None
        if known is not None:
            await known[1].close()
        self._uploaded[topic, group] = (actual, process)
        logger.info(
            "filter class uploaded topic=%s group=%s class=%s crc=%d", topic, group, class_name, actual
        )

    async def from_directory(self, topic: str, group: str, class_name: str) -> FilterProcess:
        """Returns the process of a class in the operator's directory, as its file is now. Raises ``ServerError``."""
        if not self._config.class_directory or not _CLASS_NAME.fullmatch(class_name):
            raise ServerError(f"filter class {class_name!r} of group {group} is not known here")
        module, _, name = class_name.rpartition(".")
        path = Path(self._config.class_directory, *(module or name).split(".")).with_suffix(".py")
        try:
            changed_ns = path.stat().st_mtime_ns
            known = self._from_files.get((topic, group))
            if known is not None and known[0] == (class_name, changed_ns):
                return known[1]
            source = path.read_bytes()
        except OSError as error:
            raise ServerError(
                f"filter class {class_name} of group {group} cannot be read: {error.strerror}"
            ) from None
        process = self._process(class_name, source, known is None)
        self._from_files[topic, group] = ((class_name, changed_ns), process)
        if known is not None:
            await known[1].close()
        return process

    def _process(self, class_name: str, source: bytes, is_new: bool) -> FilterProcess:
        if is_new and len(self._uploaded) + len(self._from_files) >= self._config.classes_max:
            raise SystemBusy(
                f"this filter server already serves {self._config.classes_max} groups with a class"
            )
        try:
            text = source.decode()
        except UnicodeDecodeError:
            raise InvalidParameter(f"the source of class {class_name} is not UTF-8") from None
        return FilterProcess(
            class_name,
            text,
            memory_bytes=self._config.memory_bytes_max,
            batch_s=self._config.batch_time_ms_max / 1000,
        )

    async def close(self) -> None:
        """End all filter processes."""
        for _, process in [*self._uploaded.values(), *self._from_files.values()]:
            await process.close()
