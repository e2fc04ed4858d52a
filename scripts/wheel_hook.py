"""Adds the compiled kernel to the wheel. hatchling runs it for ``pip install .`` and for every wheel that is built.

With cargo the wheel is a platform wheel of Python's stable ABI: one file for Python 3.11 and newer. Without cargo, or
when cargo fails, the wheel is a pure one that uses the plain kernel, and the reason is printed (``pip install -v``
shows it). An editable installation contains no kernel: ``scripts/setup.sh`` builds it into the environment.

``ORBITMQ_BUILD_KERNEL`` is ``auto`` (the default), ``no``, or ``require``, which fails instead of falling back.
``ORBITMQ_KERNEL_LIBRARY`` names a prebuilt library, for the platform tag in ``ORBITMQ_KERNEL_PLATFORM``;
``scripts/build_wheels.py`` uses both to build for other platforms.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

__all__ = ["KernelHook", "platform_tag"]

ROOT: Final = Path(__file__).resolve().parents[1]
MODULE: Final = "orbitmq_kernel"
PYTHON_TAG: Final = "cp311-abi3"
"""As in ``kernel/Cargo.toml`` (feature ``abi3-py311``)."""
INIT: Final = f'"""The compiled kernel of orbitmq (crate kernel/)."""\n\nfrom .{MODULE} import *\n'


class _NoKernelError(Exception):
    """The reason why there is no compiled kernel."""


class KernelHook(BuildHookInterface[Any]):
    """The hatchling build hook; see the module docstring."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the library to ``build_data``, or prints why the wheel is built without it."""
        wanted = os.environ.get("ORBITMQ_BUILD_KERNEL", "auto")
        if wanted not in ("auto", "no", "require"):
            raise ValueError(f"ORBITMQ_BUILD_KERNEL is {wanted!r}; it may be auto, no or require")
        if version == "editable" or wanted == "no":
            return
        try:
            library = _given_library() or _build()
        except _NoKernelError as error:
            if wanted == "require":
                raise RuntimeError(f"no compiled kernel: {error}") from error
            self.app.display_warning(f"the wheel has only the plain kernel, which is slower: {error}")
            return
        folder = ROOT / "build" / "wheel"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").write_text(INIT, "utf-8")
        build_data["force_include"] |= {
            str(library): f"{MODULE}/{MODULE}.abi3.so",
            str(folder / "__init__.py"): f"{MODULE}/__init__.py",
        }
        build_data["pure_python"] = False
        build_data["tag"] = f"{PYTHON_TAG}-{os.environ.get('ORBITMQ_KERNEL_PLATFORM') or platform_tag()}"


def platform_tag() -> str:
    """Returns the tag of wheels that are compiled on and for this machine."""
    if platform.system() != "Darwin":
        return sysconfig.get_platform().replace("-", "_").replace(".", "_")
    machine = platform.machine()
    release = os.environ.get("MACOSX_DEPLOYMENT_TARGET") or ("11.0" if machine == "arm64" else "10.12")
    return f"macosx_{release.replace('.', '_')}_{machine}"


def _given_library() -> Path | None:
    given = os.environ.get("ORBITMQ_KERNEL_LIBRARY")
    if not given:
        return None
    if not Path(given).is_file():
        raise FileNotFoundError(f"ORBITMQ_KERNEL_LIBRARY: there is no file {given}")
    return Path(given).resolve()


def _build() -> Path:
    """Compiles the crate; cargo does nothing if nothing has changed."""
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise _NoKernelError("this interpreter does not have CPython's stable ABI")
    if platform.system() not in ("Linux", "Darwin"):
        raise _NoKernelError(f"it is not built on {platform.system()}")
    cargo = shutil.which("cargo")
    if cargo is None:
        raise _NoKernelError("cargo was not found (Debian, Ubuntu: apt-get install cargo)")
    target = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "kernel" / "target")
    command = [cargo, "rustc", "--release", "--lib", "--manifest-path", str(ROOT / "kernel" / "Cargo.toml")]
    command += ["--target-dir", str(target), "--"]
    if platform.system() == "Darwin":  # symbols of the interpreter are resolved when it loads the module
        command += ["-C", "link-arg=-undefined", "-C", "link-arg=dynamic_lookup"]
    environment = {**os.environ, "PYO3_PYTHON": sys.executable}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise _NoKernelError(f"cargo failed with exit code {done.returncode}:\n{done.stderr[-2000:]}")
    suffix = "dylib" if platform.system() == "Darwin" else "so"
    library = target / "release" / f"lib{MODULE}.{suffix}"
    _check(library)
    return library


def _check(library: Path) -> None:
    """Checks that the library loads here: cargo may compile for another processor than the interpreter's."""
    folder = ROOT / "build" / "wheel" / "check"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(library, folder / f"{MODULE}.abi3.so")
    command = [sys.executable, "-c", f"import {MODULE}; {MODULE}.API"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(folder)}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise _NoKernelError(f"{library} cannot be imported:\n{done.stderr[-2000:]}")
