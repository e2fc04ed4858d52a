"""Facts of the machine and the process. ``os.*`` stays in this package."""

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
    """The id of this process."""
    return os.getpid()


def boot_id() -> str:
    """Returns what identifies this run of the machine: it changes when the page cache is lost. Where the system does
    not say, empty."""
    try:
        with open(_BOOT_ID_PATH, encoding="ascii") as file:
            return file.read(64).strip()
    except (OSError, UnicodeDecodeError):
        return ""


def physical_memory_bytes() -> int:
    """Memory of the machine; 8 GiB where it cannot be found out."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 8 << 30


def environment(name: str) -> str:
    """A variable of the environment, empty when it is not set."""
    return os.environ.get(name, "")


def home_directory() -> str:
    """Where the user's own files are."""
    return os.path.expanduser("~")


def open_all_files_allowed() -> int:
    """Let the process open as many files and connections as it may at the most; returns the limit.

    Most systems start a process with 1,024, which is less than the connections a server is meant to hold.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # macOS: the hard limit may exceed what the kernel allows
            return soft
    return hard
