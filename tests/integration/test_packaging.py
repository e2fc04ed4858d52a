"""What is shipped beside the code: units, image, compose file, dashboard, sample configuration."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.statistics.metrics import BROKER_FAMILIES
from orbitmq.cli.settings import read_broker_settings, read_config
from orbitmq.metrics.families import Kind
from orbitmq.metrics.process import ProcessMetrics
from orbitmq.namesrv.config import NameServerConfig
from orbitmq.namesrv.metrics import NAME_SERVER_FAMILIES
from orbitmq.store.config import StoreConfig

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"
UNITS = sorted((PACKAGING / "systemd").glob("*.service"))
INSTALLED = "/usr/lib/orbitmq/bin/orbitmq"


class _Unit(configparser.RawConfigParser):
    """A unit file: keys keep their case, and the last of several counts."""

    def __init__(self) -> None:
        super().__init__(strict=False)

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def unit(path: Path) -> _Unit:
    parser = _Unit()
    parser.read(path)
    return parser


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_unit_runs_a_command_there_is_with_a_file_that_can_be_read(path: Path) -> None:
    service = unit(path)["Service"]
    program, command, flag, config = service["ExecStart"].split()
    assert (program, flag) == (INSTALLED, "-c")
    sample = PACKAGING / "conf" / Path(config).name
    types = {"namesrv": (NameServerConfig,), "broker": (BrokerConfig, StoreConfig)}[command]
    unknown = [set(read_config(kind, str(sample), ())[2]) for kind in types]
    assert set.intersection(*unknown) == set(), "unknown keys"
    for key in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "RestrictSUIDSGID", "LockPersonality"):
        assert service[key] == "yes", key
    assert service["ProtectSystem"] == "strict"
    # What it writes lies in its state directory, or a strict system lets it write nothing.
    text = sample.read_text()
    for written in re.findall(r"^(?:storePathRootDir|kvConfigPath)=(.*)$", text, re.MULTILINE):
        assert written.startswith("/var/lib/orbitmq/"), written


@pytest.mark.slow
def test_units_pass_the_checks_of_systemd_itself_where_it_is_installed(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        return
    copies = []
    for path in UNITS:
        # The program must exist for the check; what is checked is everything else.
        copy = tmp_path / path.name
        copy.write_text(path.read_text().replace(INSTALLED, shutil.which("true") or INSTALLED))
        copies.append(str(copy))
    done = subprocess.run(
        [analyze, "verify", *copies], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for checked in copies:
        judged = subprocess.run(
            [analyze, "security", "--offline=true", "--no-pager", checked],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        found = re.search(r"exposure level for .*: ([\d.]+)", judged.stdout)
        assert found, judged.stdout + judged.stderr
        assert float(found.group(1)) <= 2.0, judged.stdout


@pytest.mark.slow
def test_dockerfile_has_nothing_for_hadolint_to_say() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run(
        [str(hadolint), "--no-color", str(PACKAGING / "docker" / "Dockerfile")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_dockerfile_copies_only_what_the_ignore_file_lets_through() -> None:
    text = (PACKAGING / "docker" / "Dockerfile").read_text()
    ignored = (PACKAGING / "docker" / "Dockerfile.dockerignore").read_text().split()
    for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE):
        for name in line.split()[:-1]:
            assert (ROOT / name).exists(), name
            assert f"!{name}" in ignored, name


def compose() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((PACKAGING / "docker" / "compose.yaml").read_text())
    return content


@pytest.mark.parametrize("name", ["namesrv", "broker"])
def test_compose_service_starts_with_options_there_are_and_is_locked_down(name: str) -> None:
    service = compose()["services"][name]
    command, *arguments = service["command"]
    assert command == name
    settings = [text.removeprefix("--set=") for text in arguments if text.startswith("--set=")]
    types = {"namesrv": (NameServerConfig,), "broker": (BrokerConfig, StoreConfig)}[name]
    configs = [read_config(kind, None, settings) for kind in types]
    assert set.intersection(*(set(unknown) for _, _, unknown in configs)) == set()
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    config: Any = configs[0][0]
    # The check of its health asks the port its metrics are on, and nothing but loopback is open unasked.
    assert f":{config.metrics_port}/readyz" in service["healthcheck"]["test"][-1]
    assert all(port.startswith(("127.0.0.1:", "${BIND:-127.0.0.1}:")) for port in service["ports"])
    assert any(port.endswith(f":{config.listen_port}") for port in service["ports"])
    volumes = [text.split(":")[1] for text in service["volumes"]]
    assert all(text.partition("=")[2].startswith(volumes[0]) for text in settings if "Path" in text)


def test_compose_files_of_monitoring_are_there_and_name_the_ports() -> None:
    services = compose()["services"]
    for name in ("prometheus", "grafana"):
        assert services[name]["profiles"] == ["monitoring"]
        for volume in services[name]["volumes"]:
            assert (PACKAGING / "docker" / volume.split(":")[0]).resolve().exists(), volume
    scraped = yaml.safe_load((PACKAGING / "prometheus" / "prometheus.yml").read_text())
    targets = scraped["scrape_configs"][0]["static_configs"][0]["targets"]
    assert targets == [f"broker:{BrokerConfig().metrics_port}", f"namesrv:{NameServerConfig().metrics_port}"]


def known_names() -> set[str]:
    names: set[str] = set()
    for family in (*BROKER_FAMILIES, *NAME_SERVER_FAMILIES, *ProcessMetrics().declared()):
        ends = ("_bucket", "_count", "_sum") if family.kind is Kind.HISTOGRAM else ("",)
        names.update(family.name + end for end in ends)
    return names


def test_dashboard_asks_only_for_metrics_there_are() -> None:
    dashboard = json.loads((PACKAGING / "grafana" / "orbitmq.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    expressions = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    assert len(expressions) > 30
    known = known_names()
    asked: set[str] = set()
    for expression in expressions:
        names = set(re.findall(r"\b(?:rocketmq|orbitmq|process)_\w+", expression))
        assert names, expression
        assert names <= known, names - known
        asked |= names
    # Nothing important was forgotten.
    for family in BROKER_FAMILIES[:13]:
        assert any(name.startswith(family.name) for name in asked) or family.name.endswith(
            ("ready_messages", "queueing_latency_milliseconds")
        ), family.name
    spots = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(spots)) == len(spots), "panels on top of each other"


# -- Kubernetes --------------------------------------------------------------------------------------------

MANIFESTS = sorted((PACKAGING / "kubernetes").glob("*.yaml"))
RESOURCES = [path for path in MANIFESTS if path.name != "kustomization.yaml"]
KUBERNETES_VERSION = "1.30"


def resources() -> list[dict[str, Any]]:
    return [one for path in RESOURCES for one in yaml.safe_load_all(path.read_text())]


@pytest.mark.slow
def test_manifests_are_valid_for_the_schema_of_kubernetes() -> None:
    for one in resources():
        kubernetes_validate.validate(one, KUBERNETES_VERSION, strict=True)
    listed = yaml.safe_load((PACKAGING / "kubernetes" / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(path.name for path in RESOURCES)


@pytest.mark.slow
def test_manifests_build_with_kubectl_where_it_is_installed() -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        return
    command = [kubectl, "kustomize", str(PACKAGING / "kubernetes")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert all(
        one["metadata"].get("namespace")
        for one in yaml.safe_load_all(done.stdout)
        if one["kind"] != "Namespace"
    )


@pytest.mark.parametrize(
    "one",
    [one for one in resources() if one["kind"] == "StatefulSet"],
    ids=lambda one: one["metadata"]["name"],
)
def test_pod_starts_with_options_there_are_is_probed_and_locked_down(one: dict[str, Any]) -> None:
    pod = one["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    command, *arguments = container["args"]
    settings = [
        text.removeprefix("--set=").replace("$(POD_IP)", "10.0.0.1") for text in arguments if "--set=" in text
    ]
    if command == "broker":
        config: Any = read_broker_settings(None, settings).config
    else:
        config, _, unknown = read_config(NameServerConfig, None, settings)
        assert unknown == []
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports["remoting"] == config.listen_port
    assert ports["metrics"] == config.metrics_port
    assert config.metrics_host == "0.0.0.0", "probes come from the node"
    for probe, path in (
        ("startupProbe", "/healthz"),
        ("livenessProbe", "/healthz"),
        ("readinessProbe", "/readyz"),
    ):
        assert container[probe]["httpGet"] == {"path": path, "port": "metrics"}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["securityContext"]["runAsNonRoot"] is True
    (mount,) = container["volumeMounts"]
    written = [text.partition("=")[2] for text in settings if "Path" in text]
    assert written
    assert all(path.startswith(mount["mountPath"]) for path in written)
    # A service finds its pods.
    service = next(
        two
        for two in resources()
        if two["kind"] == "Service" and two["metadata"]["name"] == one["spec"]["serviceName"]
    )
    assert service["spec"]["selector"].items() <= one["spec"]["template"]["metadata"]["labels"].items()


def test_manifests_are_two_masters_with_a_slave_each() -> None:
    found = set()
    for one in resources():
        if one["kind"] != "StatefulSet" or not one["metadata"]["name"].startswith("broker"):
            continue
        arguments = one["spec"]["template"]["spec"]["containers"][0]["args"]
        values = dict(
            text.removeprefix("--set=").split("=", 1) for text in arguments if text.startswith("--set=")
        )
        found.add((values["brokerName"], values["brokerId"], values["brokerRole"]))
    assert found == {
        ("broker-a", "0", "SYNC_MASTER"),
        ("broker-a", "1", "SLAVE"),
        ("broker-b", "0", "SYNC_MASTER"),
        ("broker-b", "1", "SLAVE"),
    }
