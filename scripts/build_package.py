"""Builds the release files other than wheels into dist/: sdist, bill of materials (CycloneDX), list of licences.

Usage: python scripts/build_package.py [target folder]. The wheels are built by ``scripts/build_wheels.py``.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

import orbitmq

ROOT: Final = Path(__file__).resolve().parents[1]
EXTRAS: Final = ("console", "decode", "failover", "lake", "mcp", "otel", "proxy", "server", "spark")
"""What the extra ``all`` installs."""

_SPOKEN: Final = (
    (re.compile(r"apache", re.IGNORECASE), "Apache-2.0"),
    (re.compile(r"^PSF|python software foundation", re.IGNORECASE), "PSF-2.0"),
    (re.compile(r"mozilla|MPL", re.IGNORECASE), "MPL-2.0"),
    (re.compile(r"bsd", re.IGNORECASE), "BSD"),
    (re.compile(r"mit\b", re.IGNORECASE), "MIT"),
    (re.compile(r"isc\b", re.IGNORECASE), "ISC"),
    (re.compile(r"unlicense", re.IGNORECASE), "Unlicense"),
)
"""How packages without an SPDX expression say it."""


def closure(extras: tuple[str, ...]) -> dict[str, set[str]]:
    """Returns every package that ``orbitmq[extras]`` installs here, with the extras it is installed with."""
    reached: dict[str, set[str]] = {}
    waiting = [Requirement(f"orbitmq[{','.join(extras)}]")]
    while waiting:
        wanted = waiting.pop()
        name = canonical(wanted.name)
        known = reached.get(name)
        if known is not None and wanted.extras <= known:
            continue
        reached.setdefault(name, set()).update(wanted.extras)
        if name == "orbitmq":
            waiting += own_requirements(wanted.extras)
            continue
        for requirement in map(Requirement, importlib.metadata.requires(name) or ()):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *wanted.extras)):
                waiting.append(requirement)
    reached.pop("orbitmq", None)
    return reached


def own_requirements(extras: Iterable[str]) -> list[Requirement]:
    """Returns the requirements in pyproject.toml for this interpreter; an editable installation may have an older
    list.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    texts = [*project["dependencies"]]
    for extra in extras:
        texts += project["optional-dependencies"][extra]
    found = [Requirement(text) for text in texts]
    return [one for one in found if one.marker is None or one.marker.evaluate()]


def canonical(name: str) -> str:
    """Returns a package's name as indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def licence(name: str) -> str:
    """Returns the licence a package declares: SPDX if it has one, otherwise from its classifiers or its free text."""
    about = importlib.metadata.metadata(name)
    if "License-Expression" in about:
        return about["License-Expression"]
    classifiers = [text for text in about.get_all("Classifier") or () if text.startswith("License ::")]
    spoken = "; ".join(text.rpartition(" :: ")[2] for text in classifiers) or "".join(
        about.get_all("License") or ()
    )
    found = [short for pattern, short in _SPOKEN if pattern.search(spoken.partition("\n")[0])]
    return " AND ".join(dict.fromkeys(found)) or "unknown"


def licence_lines() -> Iterator[str]:
    """Yields the list of licences, as Markdown."""
    yield f"# Packages that orbitmq {orbitmq.__version__} may install"
    yield ""
    core = closure(())
    yield "| package | release | licence | in a client-only installation |"
    yield "| --- | --- | --- | --- |"
    for name in sorted(closure(EXTRAS)):
        release = importlib.metadata.version(name)
        yield f"| {name} | {release} | {licence(name)} | {'yes' if name in core else ''} |"


def build(target: Path, kinds: Iterable[str] = ("sdist", "wheel")) -> None:
    """Builds everything into an empty folder; the wheel is the one that this machine builds for itself."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", target, *(f"-t{kind}" for kind in kinds)],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    pins = [f"{name}=={importlib.metadata.version(name)}" for name in sorted(closure(EXTRAS))]
    subprocess.run(
        [
            *(sys.executable, "-W", "ignore", "-m", "cyclonedx_py", "requirements", "-"),
            *("--pyproject", ROOT / "pyproject.toml", "--output-reproducible", "--output-format", "JSON"),
            *("--output-file", target / f"orbitmq-{orbitmq.__version__}.cdx.json"),
        ],
        input="\n".join(pins),
        text=True,
        check=True,
    )
    (target / "LICENCES.md").write_text("\n".join(licence_lines()) + "\n", "utf-8")


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist"
    build(folder, ["sdist"])
    for path in sorted(folder.iterdir()):
        sys.stdout.write(f"{path.name} {path.stat().st_size} bytes\n")
