"""Builds the wheels of a release: one per platform with the compiled kernel, and checks each of them.

Usage: python scripts/build_wheels.py [--target TRIPLE]... [target folder, default: dist]

On Linux: x86-64 and aarch64 for glibc 2.17 (manylinux2014), linked with the zig of the package ``ziglang``; other
targets of the table by name. On macOS: a wheel for this machine. ``requirements/package.txt`` lists the tools, which
are installed in a separate virtual environment (build/package-venv); ``rustup`` adds missing targets. A wheel is
checked with abi3audit (nothing outside the stable ABI of Python 3.11) and auditwheel (no symbol newer than its tag
promises). A wheel that fits this machine is installed into an empty environment, must report the fast kernel there,
and runs the first example against ``orbitmq up``.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
TOOLS: Final = ROOT / "build" / "package-venv"
PLATFORMS: Final = {
    "x86_64-unknown-linux-gnu": "manylinux_2_17_x86_64.manylinux2014_x86_64",
    "aarch64-unknown-linux-gnu": "manylinux_2_17_aarch64.manylinux2014_aarch64",
    "x86_64-unknown-linux-musl": "musllinux_1_2_x86_64",
    "aarch64-unknown-linux-musl": "musllinux_1_2_aarch64",
}
"""Target of Rust: tag of the wheel."""
USUAL: Final = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu")
EXTRAS: Final = "server,console,proxy"


def main() -> None:
    """Builds, checks, installs and runs the wheels."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist")
    parser.add_argument("--target", action="append", choices=PLATFORMS, dest="targets")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if shutil.which("cargo") is None:
        raise SystemExit(
            "cargo was not found: wheels with the compiled kernel need it (rustup has every target)"
        )
    tools()
    if platform.system() == "Darwin":
        wheels = [build_wheel(given.folder, {"ORBITMQ_BUILD_KERNEL": "require"})]
    else:
        wheels = [build_for(target, given.folder) for target in given.targets or USUAL]
    for wheel in wheels:
        check(wheel)
    fitting = [wheel for wheel in wheels if fits_here(wheel)]
    for wheel in fitting:
        try_out(wheel)
    say(f"{len(wheels)} built and checked, {len(fitting)} installed and run")


def tools() -> None:
    """Creates the environment with maturin, zig and the two checkers."""
    if not (TOOLS / "bin" / "abi3audit").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", TOOLS], check=True)
        pip = [str(TOOLS / "bin" / "python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run([*pip, "--require-hashes", "-r", ROOT / "requirements" / "package.txt"], check=True)


def environment() -> dict[str, str]:
    """Returns the environment with the tools first on the path: maturin looks for ``python -m ziglang`` there."""
    return {**os.environ, "PATH": f"{TOOLS / 'bin'}{os.pathsep}{os.environ['PATH']}"}


def build_for(target: str, folder: Path) -> Path:
    """Builds the wheel of a platform: first the kernel, linked with zig, then everything else around it."""
    if rustup := shutil.which("rustup"):
        subprocess.run([rustup, "--quiet", "target", "add", target], cwd=ROOT / "kernel", check=True)
    begun = time.monotonic()
    kernel = ROOT / "build" / "kernel-wheels" / target
    shutil.rmtree(kernel, ignore_errors=True)
    policy = PLATFORMS[target].partition(".")[0].rpartition("_")[0].removesuffix("_x86")
    subprocess.run(
        [
            *(TOOLS / "bin" / "python", "-m", "maturin", "build", "--release", "--quiet", "--zig"),
            *("--target", target, "--compatibility", policy, "--out", kernel),
        ],
        cwd=ROOT / "kernel",
        env=environment(),
        check=True,
    )
    (built,) = kernel.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".so"))
        library = Path(archive.extract(name, kernel))
    settings = {"ORBITMQ_KERNEL_LIBRARY": str(library), "ORBITMQ_KERNEL_PLATFORM": PLATFORMS[target]}
    wheel = build_wheel(folder, {"ORBITMQ_BUILD_KERNEL": "require", **settings})
    say(f"{wheel.name}: {wheel.stat().st_size:,} bytes, built in {time.monotonic() - begun:.0f} s")
    return wheel


def build_wheel(folder: Path, settings: dict[str, str]) -> Path:
    """Builds the wheel of this checkout with the kernel named in ``settings``."""
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-d", place, "-t", "wheel"],
            cwd=ROOT,
            env={**os.environ, **settings},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        (wheel,) = Path(place).glob("*.whl")
        return Path(shutil.move(wheel, folder / wheel.name))


def check(wheel: Path) -> None:
    """Checks the stable ABI and the symbols that the tag allows; exits if either is violated."""
    tool = TOOLS / "bin"
    subprocess.run([tool / "abi3audit", "--strict", wheel], check=True)
    if "manylinux" not in wheel.name:
        return  # auditwheel judges a wheel for musl only on such a system; maturin has checked its symbols
    shown = subprocess.run(
        [tool / "auditwheel", "show", wheel], check=True, capture_output=True, text=True, env=environment()
    ).stdout
    tags = wheel.stem.split("-")[-1].split(".")
    best = re.search(r'following platform tag:\s*"([^"]+)"', " ".join(shown.split()))
    if best is None or not allows(best[1], tags):
        raise SystemExit(f"{wheel.name}: auditwheel does not accept the tag\n{shown}")
    say(f"{wheel.name}: abi3audit and auditwheel ({best[1]}) found nothing")


def allows(found: str, tags: Sequence[str]) -> bool:
    """Returns whether a wheel with the compatibility in ``found`` keeps the promise of its own tags."""
    release = re.compile(r"(many|musl)linux_(\d+)_(\d+)_(\w+)")
    needed = release.fullmatch(found)
    if needed is None:
        return False
    promised = [one for tag in tags if (one := release.fullmatch(tag))]
    return bool(promised) and all(
        (one[1], one[4]) == (needed[1], needed[4])
        and (int(one[2]), int(one[3])) >= (int(needed[2]), int(needed[3]))
        for one in promised
    )


def fits_here(wheel: Path) -> bool:
    """Returns whether this machine can install the wheel."""
    machine = platform.machine()
    libc = "manylinux" if platform.libc_ver()[0] else "musllinux"
    kind = "macosx" if platform.system() == "Darwin" else libc
    return kind in wheel.name and machine in wheel.name


def try_out(wheel: Path) -> None:
    """Installs the wheel into an empty environment and runs the first example of the README."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        begun = time.monotonic()
        subprocess.run([sys.executable, "-m", "venv", place / "venv"], check=True)
        python = place / "venv" / "bin" / "python"
        pip = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run([*pip, f"{wheel}[{EXTRAS}]"], check=True, cwd=place)
        command = place / "venv" / "bin" / "orbitmq"
        version = subprocess.run(
            [command, "--version"], check=True, capture_output=True, text=True, cwd=place
        )
        if "fast kernel" not in version.stdout:
            raise SystemExit(f"{wheel.name}: {version.stdout.strip()}")
        say(f"installed in {time.monotonic() - begun:.0f} s: {version.stdout.strip()}")
        servers = subprocess.Popen(
            [command, "up", "--data", place / "data", "--port", "0", "--broker-port", "0"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=place,
        )
        try:
            said = subprocess.check_output(
                [python, "-c", first_program(name_server(servers))], text=True, cwd=place
            )
        finally:
            servers.terminate()
            servers.wait(60)
        if said.split() != ["hello"]:
            raise SystemExit(f"{wheel.name}: the first example printed {said!r}")
        say(f"first example printed {said.strip()!r} {time.monotonic() - begun:.0f} s after `python -m venv`")


def name_server(servers: subprocess.Popen[str]) -> str:
    """Returns the address that ``orbitmq up`` prints when it is ready."""
    assert servers.stdout is not None
    for line in servers.stdout:
        if found := re.match(r"  name server  (\S+)", line):
            return found[1]
    raise SystemExit("orbitmq up ended before it was ready")


def first_program(address: str) -> str:
    """Returns the first program of the README, with this name server."""
    readme = (ROOT / "README.md").read_text("utf-8")
    program = re.findall(r"^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)[0]
    return str(program).replace("127.0.0.1:9876", address)


def say(text: str) -> None:
    """Prints a line of progress."""
    sys.stdout.write(f"package: {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
