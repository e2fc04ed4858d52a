"""Fetches the real Apache RocketMQ and builds the drivers that speak to it.

Everything is stored in a cache outside the repository (`~/.cache/orbitmq/apache`, or `ORBITMQ_APACHE_CACHE`). Each
product has a marker file with a hash of its inputs, so it is built once and rebuilt when its source changes. A file
lock keeps concurrent test runs from doing the same work twice.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

__all__ = [
    "LATEST",
    "LEGACY",
    "VERSIONS",
    "ApacheUnavailable",
    "build_product",
    "cache_dir",
    "classpath",
    "driver_classes",
    "go_driver",
    "jars",
    "missing_tools",
    "prepare",
    "require",
    "run_tool",
    "source_digest",
    "unavailable",
]

LATEST: Final = "5.5.0"
LEGACY: Final = "4.9.7"
VERSIONS: Final = (LATEST, LEGACY)

HERE: Final = Path(__file__).parent
FETCH_TIMEOUT_S: Final = 900
BUILD_TIMEOUT_S: Final = 300
MARKER: Final = ".made-from"


class ApacheUnavailable(RuntimeError):
    """The artifacts could not be fetched or a driver could not be built; the text contains the tool's output."""


def cache_dir() -> Path:
    """Returns the folder of the artifacts and the built drivers."""
    configured = os.environ.get("ORBITMQ_APACHE_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "orbitmq" / "apache"


def missing_tools(*, go: bool = False) -> list[str]:
    """Returns the names of required programs that are not on the PATH. Maven and Go count only while their product is
    not in the cache.
    """
    needed = ["java", "javac"]
    if not all(_current(_lib_dir(version), _digest([_pom(version)])) for version in VERSIONS):
        needed.append("mvn")
    if go and not _current(*_go_product()):
        needed.append("go")
    return [tool for tool in needed if shutil.which(tool) is None]


def require(*, go: bool = False) -> None:
    """Skips the calling test when Java, Maven or Go is missing, but fails it where skipping is not allowed (`CI=true`
    or `ORBITMQ_REQUIRE_APACHE=1`).
    """
    missing = missing_tools(go=go)
    if missing:
        unavailable(
            f"no {', '.join(missing)} on this machine: tests against the real Apache RocketMQ cannot run"
        )


def unavailable(reason: str) -> None:
    """Skips the calling test, or fails it where skipping is not allowed (see ``require``)."""
    import pytest  # benchmarks use this module too, and need no pytest

    if os.environ.get("CI") == "true" or os.environ.get("ORBITMQ_REQUIRE_APACHE") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def jars(version: str) -> Path:
    """Returns the folder with the jars of that release, fetched by Maven on first use."""
    lib = _lib_dir(version)
    pom = _pom(version)

    def fetch(target: Path) -> None:
        # A copy of the pom, because Maven may write next to the file it reads.
        workspace = target.parent / "fetch"
        shutil.rmtree(workspace, ignore_errors=True)
        workspace.mkdir(parents=True)
        shutil.copy(pom, workspace / "pom.xml")
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"]
        command.append(f"-DoutputDirectory={target}")
        _run(command, cwd=workspace, timeout_s=FETCH_TIMEOUT_S, attempts=2)
        shutil.rmtree(workspace, ignore_errors=True)

    return _make(lib, _digest([pom]), fetch)


def driver_classes(version: str) -> Path:
    """Returns the folder with our Java driver compiled against that release."""
    sources = sorted((HERE / "java").rglob("*.java"))
    lib = jars(version)

    def compile_into(target: Path) -> None:
        command = ["javac", "-J-XX:TieredStopAtLevel=1", "-nowarn", "-Xlint:none", "-d", str(target)]
        _run([*command, "-cp", f"{lib}/*", *map(str, sources)], cwd=HERE, timeout_s=BUILD_TIMEOUT_S)

    digest = _digest([*sources, _pom(version)])
    # Keyed by its source: a run that started before an edit keeps the classes it loaded lazily.
    return _make(cache_dir() / version / f"driver-{digest[:12]}", digest, compile_into)


def classpath(version: str) -> str:
    """Returns the class path of every JVM the harness starts: our driver, then Apache's jars."""
    return f"{driver_classes(version)}:{jars(version)}/*"


def go_driver() -> Path:
    """Returns the Go driver's executable, built on first use."""

    def build_into(target: Path) -> None:
        command = ["go", "build", "-mod=readonly", "-buildvcs=false", "-o", str(target / "driver"), "."]
        _run(command, cwd=HERE / "go", timeout_s=FETCH_TIMEOUT_S, attempts=2)

    return _make(*_go_product(), build_into) / "driver"


def build_product(
    name: str, made_from: str, build: Callable[[Path], None], *, in_place: bool = False
) -> Path:
    """Returns a folder of the cache filled by ``build``, once per input text. ``in_place``: it cannot be moved."""
    digest = hashlib.sha256(made_from.encode()).hexdigest()
    product = cache_dir() / f"{name}-{digest[:12]}"
    if not in_place:
        return _make(product, digest, build)
    product.parent.mkdir(parents=True, exist_ok=True)
    with _locked(product.with_name(product.name + ".lock")):
        if not _current(product, digest):
            shutil.rmtree(product, ignore_errors=True)
            product.mkdir()
            build(product)
            (product / MARKER).write_text(digest)
    return product


def source_digest(sources: Iterable[Path]) -> str:
    return _digest(sources)


def run_tool(command: list[str], cwd: Path) -> None:
    """Runs a build step. Raises ``ApacheUnavailable`` with the tool's output."""
    _run(command, cwd=cwd, timeout_s=FETCH_TIMEOUT_S, attempts=2)


def prepare(*, go: bool = False) -> None:
    """Fetches and builds everything that is missing: about a minute on first use, nothing later."""
    for version in VERSIONS:
        driver_classes(version)
    if go:
        go_driver()


def _lib_dir(version: str) -> Path:
    return cache_dir() / version / "lib"


def _go_product() -> tuple[Path, str]:
    sources = sorted(path for path in (HERE / "go").iterdir() if path.suffix in {".go", ".mod", ".sum"})
    digest = _digest(sources)
    return cache_dir() / f"go-{digest[:12]}", digest


def _pom(version: str) -> Path:
    pom = HERE / "poms" / f"{version}.xml"
    if not pom.exists():
        raise ValueError(f"no pom for Apache RocketMQ {version}; there is {', '.join(VERSIONS)}")
    return pom


def _digest(sources: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()


def _current(product: Path, digest: str) -> bool:
    try:
        return (product / MARKER).read_text() == digest
    except OSError:
        return False


def _make(product: Path, digest: str, build: Callable[[Path], None]) -> Path:
    """Builds `product` in a directory next to it and renames it when complete."""
    if _current(product, digest):
        return product
    product.parent.mkdir(parents=True, exist_ok=True)
    with _locked(product.with_name(product.name + ".lock")):
        if _current(product, digest):
            return product
        partial = product.with_name(product.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        build(partial)
        (partial / MARKER).write_text(digest)
        shutil.rmtree(product, ignore_errors=True)
        partial.rename(product)
    return product


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _run(command: list[str], *, cwd: Path, timeout_s: float, attempts: int = 1) -> None:
    output = ""
    for _ in range(attempts):
        try:
            done = subprocess.run(
                command,
                cwd=cwd,
                timeout=timeout_s,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            output = str(error)
            continue
        if done.returncode == 0:
            return
        output = done.stdout
    raise ApacheUnavailable(f"{' '.join(command[:4])} failed:\n{output[-4000:]}")
