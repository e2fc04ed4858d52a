"""Reads properties of the machine and the process. ``os.*`` is called only in this package."""

from __future__ import annotations

import os
import resource

__all__ = [
    "boot_id",
    "environment",
    "home_directory",
    "open_all_files_allowed",
    "physical_memory_bytes",
    "process_id",
]

_BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"


def process_id() -> int:
    """Returns the id of this process."""
    return os.getpid()


def boot_id() -> str:
    """Returns an id of the machine's current boot, which changes when the page cache is lost; empty if the system has
    no such id."""
    try:
        with open(_BOOT_ID_PATH, encoding="ascii") as file:
            return file.read(64).strip()
    except (OSError, UnicodeDecodeError):
        return ""


def physical_memory_bytes() -> int:
    """Returns the size of the machine's memory; 8 GiB if it cannot be determined."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 8 << 30


def environment(name: str) -> str:
    """Returns the value of an environment variable; empty if it is not set."""
    return os.environ.get(name, "")


def home_directory() -> str:
    """Returns the user's home directory."""
    return os.path.expanduser("~")


def open_all_files_allowed() -> int:
    """Raise the limit of open files and connections to the maximum allowed. Returns the new limit.

    Most systems start a process with a limit of 1,024, which is fewer than the connections of a busy server.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # macOS: the hard limit may exceed what the kernel allows
            return soft
    return hard
