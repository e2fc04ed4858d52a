"""Packaging: units, image, compose file, dashboard, sample configuration."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from scripts.render_chart import digest

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.statistics.metrics import BROKER_FAMILIES
from orbitmq.cli.settings import read_broker_settings, read_config
from orbitmq.metrics.families import Kind
from orbitmq.metrics.process import ProcessMetrics
from orbitmq.namesrv.advertised import read_addresses
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
    # It writes only to its state directory, because a strict system allows nothing else.
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
        # The program must exist for the check, which covers everything else.
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
    # The health check queries the metrics port, and by default only loopback is open.
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
    # No important option is missing.
    for family in BROKER_FAMILIES[:13]:
        assert any(name.startswith(family.name) for name in asked) or family.name.endswith(
            ("ready_messages", "queueing_latency_milliseconds")
        ), family.name
    spots = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(spots)) == len(spots), "panels on top of each other"


# -- Kubernetes --------------------------------------------------------------------------------------------

CHART = ROOT / "packaging/helm/orbitmq"
RENDERED = ROOT / "tests/integration/chart"
KUBERNETES_VERSION = "1.30"
CUSTOM = "PodMonitor"
"""Its schema is the Prometheus operator's."""
CASES = ("default", "full")


def resources(case: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((RENDERED / f"{case}.yaml").read_text()))


def pods(case: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Returns each StatefulSet and the spec of its pods."""
    sets = [one for one in resources(case) if one["kind"] == "StatefulSet"]
    return [(one, one["spec"]["template"]["spec"]) for one in sets]


def settings_of(container: dict[str, Any], index: str = "0") -> list[str]:
    """Returns the options of a server, with the variables of its pod filled in."""
    user = '{"username":"admin","password":"admin-password"}'
    inner = '{"accessKey":"inner","secretKey":"inner-password"}'
    known = {"POD_NAME": "pod", "POD_INDEX": index, "INIT_USER": user, "INNER_CREDENTIALS": inner}
    declared = {variable["name"] for variable in container.get("env", ())}
    settings = [text.removeprefix("--set=") for text in container["args"] if text.startswith("--set=")]

    def value(name: re.Match[str]) -> str:
        return known[name[1]] if name[1] in declared else "undeclared"

    return [re.sub(r"\$\((\w+)\)", value, one) for one in settings]


@pytest.mark.parametrize("case", CASES)
def test_rendered_chart_is_current_and_valid_for_the_schema_of_kubernetes(case: str) -> None:
    first, _, _ = (RENDERED / f"{case}.yaml").read_text().partition("\n")
    assert first == digest(RENDERED / f"{case}.values.yaml"), "run scripts/render_chart.py"
    for one in resources(case):
        if one["kind"] != CUSTOM:
            kubernetes_validate.validate(one, KUBERNETES_VERSION, strict=True)


@pytest.mark.soak
def test_chart_passes_lint_and_renders_as_committed(tmp_path: Path) -> None:
    helm = shutil.which("helm")
    if helm is None:
        environment = {**os.environ, "GOBIN": str(tmp_path), "GOFLAGS": "-modcacherw"}
        command = ["go", "install", "helm.sh/helm/v3/cmd/helm@v3.19.0"]
        subprocess.run(command, env=environment, timeout=3000, check=True)
        helm = str(tmp_path / "helm")
    command = [sys.executable, str(ROOT / "scripts/render_chart.py"), "--check"]
    done = subprocess.run(command, env={**os.environ, "HELM": helm}, timeout=300, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("case", CASES)
def test_pods_have_known_options_and_probes_and_are_locked_down(case: str) -> None:
    services = {one["metadata"]["name"]: one for one in resources(case) if one["kind"] == "Service"}
    for one, pod in pods(case):
        (container,) = pod["containers"]
        settings = settings_of(container, str(one["spec"].get("ordinals", {}).get("start", 0)))
        if container["args"][0] == "broker":
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
        mount = container["volumeMounts"][0]
        written = [text.partition("=")[2] for text in settings if "Path" in text and "tls" not in text]
        assert written
        assert all(path.startswith(mount["mountPath"]) for path in written)
        labels = one["spec"]["template"]["metadata"]["labels"]
        assert services[one["spec"]["serviceName"]]["spec"]["selector"].items() <= labels.items()
        assert one["spec"]["selector"]["matchLabels"].items() <= labels.items()


def members(case: str) -> set[tuple[str, str, str]]:
    """Returns name, id and role of every broker."""
    found = set()
    for one, pod in pods(case):
        (container,) = pod["containers"]
        first = one["spec"].get("ordinals", {}).get("start", 0)
        for index in range(first, first + one["spec"]["replicas"]):
            values = dict(text.split("=", 1) for text in settings_of(container, str(index)))
            if container["args"][0] == "broker":
                role = values.get("brokerRole", values.get("failoverRole", ""))
                found.add((values["brokerName"], values["brokerId"], role))
    return found


def test_chart_is_two_masters_with_a_slave_each_or_two_groups_that_elect_one() -> None:
    names = ("broker-a", "broker-b")
    roles = (("0", "SYNC_MASTER"), ("1", "SLAVE"))
    assert members("default") == {(name, *role) for name in names for role in roles}
    assert members("full") == {(name, number, "SYNC_MASTER") for name in names for number in "123"}


def test_every_broker_has_an_address_outside_that_leads_to_its_pod() -> None:
    """External clients see ports of the nodes, each forwarded to the pod that registered the other address."""
    outside = next(pod for one, pod in pods("full") if one["metadata"]["name"].endswith("namesrv-external"))
    config, _, _ = read_config(NameServerConfig, None, settings_of(outside["containers"][0]))
    advertised = read_addresses(config.advertised_addresses)
    forwarded = {
        port["nodePort"]: one["spec"]["selector"].get("statefulset.kubernetes.io/pod-name")
        for one in resources("full")
        if one["kind"] == "Service"
        for port in one["spec"]["ports"]
        if "nodePort" in port
    }
    registered = set()
    for one, pod in pods("full"):
        if pod["containers"][0]["args"][0] != "broker":
            continue
        (host,) = (text for text in pod["containers"][0]["args"] if "brokerIP1" in text)
        for index in range(1, 1 + one["spec"]["replicas"]):
            name = f"{one['metadata']['name']}-{index}"
            address = host.partition("=")[2].partition("=")[2].replace("$(POD_NAME)", name) + ":10911"
            registered.add(address)
            shown, _, port = advertised[address].partition(":")
            assert shown == "mq.example.com"
            assert forwarded.pop(int(port)) == name
    assert registered == set(advertised)
    assert list(forwarded) == [30976], "the name servers"
