"""The released package: its contents, the requirements of a client-only installation, and that it installs."""

from __future__ import annotations

import email
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Final

import pytest
from scripts import build_package, build_wheels
from scripts.wheel_hook import platform_tag
from tests.apache.kernels import load

import orbitmq
from orbitmq.testing import run_broker

ROOT: Final = Path(__file__).resolve().parents[2]
LOCKS: Final = ("server", "run", "spark")
PERMISSIVE: Final = frozenset(
    [
        "0BSD",
        "Apache-2.0",
        "BSD",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "CC0-1.0",
        "ISC",
        "MIT",
        "MIT-0",
        "MPL-2.0",
        "PSF-2.0",
        "Unlicense",
        "Zlib",
    ]
)
SEND: Final = """
from orbitmq import Message
from orbitmq.sync import Producer
with Producer("shop", "{name_server}") as producer:
    print(producer.send(Message("Orders", "10 EUR")).status.name)
"""
CLIENT_ONLY: Final = """
import importlib.metadata, sys
ALLOWED = {{"msgspec", "lz4", "backports", "typing_extensions", "orbitmq", "orbitmq_kernel", *{more!r}}}
class Only:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in sys.stdlib_module_names | ALLOWED:
            return None
        return self.finder.find_spec(name, path, target)
sys.meta_path[:] = [Only(finder) for finder in sys.meta_path]
{program}
"""
"""Runs a program as in an installation without extras: no other package is found."""


def run(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", CLIENT_ONLY.format(program=program, more=())]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.slow
def test_client_without_extras_sends_and_tests_without_a_server_package() -> None:
    with run_broker() as broker:
        done = run(SEND.format(name_server=broker.name_server))
    assert (done.returncode, done.stdout) == (0, "OK\n"), done.stderr


@pytest.mark.slow
def test_testing_kit_runs_without_extras() -> None:
    kit = "from orbitmq.testing import run_broker\nwith run_broker() as b: print(b.create_topic('T'))"
    done = run(kit)
    assert (done.returncode, done.stdout) == (0, "T\n"), done.stderr


@pytest.mark.slow
def test_command_without_its_packages_says_which_extra_to_install() -> None:
    done = run("from orbitmq.cli.entry import main; main()")
    assert done.returncode == 1
    assert done.stderr == "orbitmq: this needs the package click: pip install 'orbitmq[server]'\n"


@pytest.mark.slow
def test_up_with_the_packages_of_servers_only_runs_and_says_what_is_not_installed(tmp_path: Path) -> None:
    server = ("click", "rich", "yaml", "uvloop", "prometheus_client", "cryptography", "cffi", "_cffi_backend")
    arguments = ["up", "--data", str(tmp_path), "--port", "0", "--broker-port", "0", "--metrics-port", "0"]
    program = f"from orbitmq.cli.main import main; main({arguments!r})"
    process = subprocess.Popen(
        [sys.executable, "-c", CLIENT_ONLY.format(program=program, more=server)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = list(itertools.takewhile(lambda line: not line.startswith("Or give"), process.stdout))
        assert "  console      not installed; to have it: pip install 'orbitmq[console]'\n" in lines, lines
        assert "  gRPC         not installed; to have it: pip install 'orbitmq[proxy]'\n" in lines
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_release_files_hold_the_package_and_nothing_of_the_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORBITMQ_BUILD_KERNEL", "no")
    build_package.build(tmp_path)
    release = orbitmq.__version__
    with zipfile.ZipFile(tmp_path / f"orbitmq-{release}-py3-none-any.whl") as wheel:
        names = wheel.namelist()
        about = email.message_from_bytes(wheel.read(f"orbitmq-{release}.dist-info/METADATA"))
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"orbitmq", "pyspark_rocketmq", "pyspark_rocketmq_store", f"orbitmq-{release}.dist-info"}
    assert "orbitmq/py.typed" in names
    assert not [name for name in names if name.endswith((".pyc", ".orig", ".log"))]
    assert about["License-Expression"] == "Apache-2.0"
    plain = [text for text in about.get_all("Requires-Dist") or () if "extra ==" not in text]
    assert sorted(re.split(r"[><=;]", text)[0].strip() for text in plain) == [
        "backports-zstd",
        "lz4",
        "msgspec",
    ]
    with tarfile.open(tmp_path / f"orbitmq-{release}.tar.gz") as sdist:
        folders = {name.split("/")[1] for name in sdist.getnames()}
    assert {"src", "kernel", "LICENSE", "README.md"} <= folders
    assert not folders & {"tests", "benchmarks", ".venv", "data"}
    bill = json.loads((tmp_path / f"orbitmq-{release}.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    assert {"msgspec", "pyspark", "mcp"} <= {one["name"] for one in bill["components"]}
    assert "| msgspec | " in (tmp_path / "LICENCES.md").read_text()


def build_wheel(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder), "-t", "wheel"]
    given = {**os.environ, **environment}
    return subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, check=False)


def only_wheel(folder: Path) -> Path:
    (found,) = folder.glob("*.whl")
    return found


def fake_cargo(folder: Path, script: str) -> str:
    """Returns a search path whose only program is a ``cargo`` that runs ``script``."""
    folder.mkdir()
    cargo = folder / "cargo"
    cargo.write_text(f"#!/bin/sh\n{script}\n")
    cargo.chmod(0o755)
    return str(folder)


@pytest.mark.slow
def test_wheel_with_cargo_holds_the_compiled_kernel_for_this_platform(tmp_path: Path) -> None:
    module = load("fast").orbitmq_kernel
    copy = f'"{shutil.which("cp")}" "{module.__file__}" "$7/release/liborbitmq_kernel.so"'
    (tmp_path / "target" / "release").mkdir(parents=True)
    done = build_wheel(
        tmp_path,
        PATH=fake_cargo(tmp_path / "bin", f'[ "$1" = rustc ] && [ "$6" = --target-dir ] && {copy}'),
        CARGO_TARGET_DIR=str(tmp_path / "target"),
        ORBITMQ_BUILD_KERNEL="require",
    )
    assert done.returncode == 0, done.stderr
    wheel = only_wheel(tmp_path)
    assert wheel.name == f"orbitmq-{orbitmq.__version__}-cp311-abi3-{platform_tag()}.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        assert {"orbitmq_kernel/__init__.py", "orbitmq_kernel/orbitmq_kernel.abi3.so"} <= names
        archive.extractall(tmp_path / "site")
    program = "from orbitmq.kernel import NAME; import orbitmq; print(NAME, orbitmq.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "ORBITMQ_KERNEL": "fast"}
    said = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True, cwd=tmp_path)
    assert said == f"fast {tmp_path / 'site' / 'orbitmq' / '__init__.py'}\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (None, "cargo was not found (Debian, Ubuntu: apt-get install cargo)"),
        ("echo 'no such crate' >&2; exit 101", "cargo failed with exit code 101:\nno such crate"),
    ],
)
def test_wheel_without_a_kernel_is_a_pure_one_and_says_why(
    script: str | None, reason: str, tmp_path: Path
) -> None:
    path = str(tmp_path) if script is None else fake_cargo(tmp_path / "bin", script)
    done = build_wheel(tmp_path, PATH=path)
    assert done.returncode == 0, done.stderr
    assert only_wheel(tmp_path).name == f"orbitmq-{orbitmq.__version__}-py3-none-any.whl"
    said = f"the wheel has only the plain kernel, which is slower: {reason}"
    assert said in done.stdout + done.stderr
    refused = build_wheel(tmp_path / "required", PATH=path, ORBITMQ_BUILD_KERNEL="require")
    assert refused.returncode != 0
    assert f"no compiled kernel: {reason}" in refused.stderr


def test_tag_of_a_wheel_promises_no_older_system_than_its_symbols_need() -> None:
    allows = build_wheels.allows
    both = ["manylinux_2_17_x86_64", "manylinux2014_x86_64"]
    assert allows("manylinux_2_5_x86_64", both)
    assert allows("manylinux_2_17_x86_64", both)
    assert not allows("manylinux_2_28_x86_64", both)
    assert not allows("manylinux_2_17_aarch64", both)
    assert not allows("musllinux_1_2_x86_64", both)
    assert not allows("linux_x86_64", both)


def test_every_package_it_may_install_has_a_permissive_licence() -> None:
    for name in build_package.closure(build_package.EXTRAS):
        words = set(re.findall(r"[\w.-]+", build_package.licence(name))) - {"AND", "OR"}
        assert words, name
        assert words <= PERMISSIVE, f"{name}: {build_package.licence(name)}"


def pins(name: str) -> dict[str, str]:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    return dict(re.findall(r"^([\w.-]+)==([^ ;\\]+)", text, re.MULTILINE))


@pytest.mark.parametrize("name", LOCKS)
def test_smaller_lock_agrees_with_the_one_of_development(name: str) -> None:
    everything = pins("dev")
    assert pins(name).items() <= everything.items(), "run `make lock`"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = {re.split(r"[><=;\[]", text)[0].replace(".", "-") for text in project["dependencies"]}
    assert core <= pins(name).keys()


def test_demo_is_set_up_with_few_packages() -> None:
    assert not pins("server").keys() & {"pytest", "mypy", "pyspark", "starlette", "protobuf"}
    assert len(pins("server")) < 30
    assert not pins("spark").keys() & {"pytest", "mypy", "starlette"}


def interpreters() -> list[str]:
    """Returns Python 3.11 and later on this machine: on the PATH, of pyenv, of uv."""
    found: dict[str, str] = {f"{sys.version_info[0]}.{sys.version_info[1]}": sys.executable}
    home = Path.home()
    for minor in range(11, 15):
        version = f"3.{minor}"
        places = [
            *sorted((home / ".pyenv" / "versions").glob(f"{version}.*/bin/python")),
            *sorted((home / ".local" / "share" / "uv" / "python").glob(f"cpython-{version}.*/bin/python3")),
        ]
        on_path = shutil.which(f"python{version}")
        for place in [*map(str, places), *([on_path] if on_path else [])]:
            asked = subprocess.run([place, "-c", "import venv"], capture_output=True, check=False)
            if version not in found and asked.returncode == 0:
                found[version] = place
    return [found[version] for version in sorted(found)]


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["whl", "tar.gz"])
@pytest.mark.parametrize("python", interpreters())
def test_release_installs_into_a_fresh_environment_and_sends(python: str, kind: str, tmp_path: Path) -> None:
    build_package.build(tmp_path / "dist")
    (archive,) = (tmp_path / "dist").glob(f"*.{kind}")
    venv = tmp_path / "venv"
    subprocess.run([python, "-m", "venv", venv], check=True)
    pip = [str(venv / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with run_broker() as broker:
        subprocess.run([*pip, str(archive)], check=True, env=environment)
        program = SEND.format(name_server=broker.name_server)
        sent = subprocess.check_output([venv / "bin" / "python", "-c", program], text=True, cwd=tmp_path)
        assert sent == "OK\n"
        kernel = "from orbitmq.kernel import NAME; print(NAME)"
        name = subprocess.check_output([venv / "bin" / "python", "-c", kernel], text=True, cwd=tmp_path)
        assert name.strip() == ("fast" if shutil.which("cargo") else "plain")
        bare = subprocess.run([venv / "bin" / "orbitmq"], capture_output=True, text=True, check=False)
        assert "pip install 'orbitmq[server]'" in bare.stderr
        subprocess.run([*pip, f"{archive}[server,console,proxy]"], check=True, env=environment)
        command = [str(venv / "bin" / "orbitmq"), "admin", "topicList", "-n", broker.name_server]
        assert "Orders" in subprocess.check_output(command, text=True, cwd=tmp_path)
    done = subprocess.run(
        [venv / "bin" / "orbitmq", "demo", "--no-spark", "--orders", "60", "--data", tmp_path / "demo"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
