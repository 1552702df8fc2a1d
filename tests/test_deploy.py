"""The systemd unit and the Kubernetes manifest keep what the handover needs; checked statically."""

from __future__ import annotations

import configparser
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from cron_leader.cli.app import app
from cron_leader.config import Config, load
from cron_leader.daemon import ALIVE_NS

ROOT = Path(__file__).resolve().parents[1]
HEADROOM_S = 10
"""Between the end of the drain and the SIGKILL to everything: rows, keys, lease."""
DEFAULT_DRAIN_S = 30.0

# ------------------------------------------------------------------ systemd


class _Unit(configparser.RawConfigParser):
    """Keys of a unit are case-sensitive and may be given without a value."""

    def optionxform(self, optionstr: str) -> str:
        return optionstr


@pytest.fixture(scope="module")
def unit() -> configparser.RawConfigParser:
    parsed = _Unit(delimiters="=", comment_prefixes="#", strict=True)
    parsed.read_string((ROOT / "deploy/cron-leader.service").read_text())
    return parsed


def test_the_unit_signals_the_supervisor_alone_and_waits_longer_than_the_drain(
    unit: configparser.RawConfigParser,
) -> None:
    service = unit["Service"]
    assert service["KillMode"] == "mixed"
    assert float(service["TimeoutStopSec"]) >= DEFAULT_DRAIN_S + HEADROOM_S
    assert "KillSignal" not in service
    assert "ExecStop" not in service


def test_the_unit_restarts_for_ever_but_for_what_a_person_must_mend(
    unit: configparser.RawConfigParser,
) -> None:
    service = unit["Service"]
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("always", "2")
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"
    assert service["OOMPolicy"] == "continue"


def test_the_unit_is_told_by_the_supervisor_and_waits_for_the_services(
    unit: configparser.RawConfigParser,
) -> None:
    service = unit["Service"]
    assert (service["Type"], service["NotifyAccess"]) == ("notify", "main")
    assert service["TimeoutStartSec"] == "infinity"
    assert float(service["WatchdogSec"]) >= 5 * ALIVE_NS / 1e9
    assert "WatchdogSignal" not in service  # SIGABRT: what the supervisor expects
    assert "AF_UNIX" in service["RestrictAddressFamilies"].split()


def test_the_unit_starts_our_command_with_options_it_has(
    unit: configparser.RawConfigParser,
) -> None:
    program, command, *rest = shlex.split(unit["Service"]["ExecStart"])
    assert (Path(program).name, command) == ("cron-leader", "run")
    assert {word for word in rest if word.startswith("--")} <= _options("run")


def test_the_unit_names_the_node_and_gives_up_privileges(
    unit: configparser.RawConfigParser,
) -> None:
    service = unit["Service"]
    assert service["Environment"] == "NODE_ID=%H"
    assert service["User"] not in {"", "root", "0"}
    assert service["CapabilityBoundingSet"] == ""
    assert (service["NoNewPrivileges"], service["ProtectSystem"]) == ("yes", "strict")
    assert service["WorkingDirectory"] == f"/var/lib/{service['StateDirectory']}"


# ------------------------------------------------------------------ Kubernetes


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    documents = yaml.safe_load_all((ROOT / "deploy/kubernetes.yaml").read_text())
    return {document["kind"]: document for document in documents}


@pytest.fixture(scope="module")
def pod(manifest: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = manifest["Deployment"]["spec"]["template"]["spec"]
    return spec


@pytest.fixture(scope="module")
def node(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["containers"]
    found: dict[str, Any] = container
    return found


@pytest.fixture
def config(manifest: dict[str, Any], tmp_path: Path) -> Config:
    """What a node of the Deployment reads, with its secrets in place."""
    (text,) = manifest["ConfigMap"]["data"].values()
    secrets = re.search(r'token_file = "(.+)/http-token"', text)
    assert secrets is not None
    (tmp_path / "http-token").write_text("sesame")
    (tmp_path / "c.toml").write_text(text.replace(secrets[1], str(tmp_path)))
    url = "postgresql://cron@db/cron"
    environ = {"NODE_ID": "cron-leader-7d9f-abcde", "CRON_LEADER_LEDGER_URL": url}
    return load(tmp_path / "c.toml", environ=environ)


def test_the_pods_wait_longer_than_their_drain(pod: dict[str, Any], config: Config) -> None:
    assert pod["terminationGracePeriodSeconds"] >= config.run.drain_s + HEADROOM_S


def test_the_pods_are_nodes_named_by_their_pod_with_one_ledger(node: dict[str, Any]) -> None:
    sources = {entry["name"]: entry["valueFrom"] for entry in node["env"]}
    assert sources["NODE_ID"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert "secretKeyRef" in sources["CRON_LEADER_LEDGER_URL"]


def test_the_container_runs_the_supervisor_with_options_it_has(
    node: dict[str, Any], manifest: dict[str, Any]
) -> None:
    assert "command" not in node  # the image's entry point: the supervisor is PID 1
    command, *rest = node["args"]
    assert command == "run"
    assert {word for word in rest if word.startswith("--")} <= _options("run")
    mounts = {mount["name"]: mount["mountPath"] for mount in node["volumeMounts"]}
    file = Path(rest[rest.index("--config") + 1])
    assert str(file.parent) == mounts["config"]
    assert file.name in manifest["ConfigMap"]["data"]


def test_the_probes_ask_what_is_served_where_it_is_served(
    node: dict[str, Any], config: Config
) -> None:
    assert config.http is not None
    (port,) = node["ports"]
    assert port["containerPort"] == config.http.port
    assert not config.http.loopback
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert node[probe]["httpGet"] == {"path": path, "port": port["name"]}
    assert "startupProbe" not in node  # alive while etcd is away, so no deadline for a start


def test_every_volume_mounted_exists(node: dict[str, Any], pod: dict[str, Any]) -> None:
    mounted = {mount["name"] for mount in node["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_the_fleet_is_three_and_loses_one_at_a_time(manifest: dict[str, Any]) -> None:
    spec = manifest["Deployment"]["spec"]
    assert spec["replicas"] == 3
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    budget = manifest["PodDisruptionBudget"]["spec"]
    assert budget["maxUnavailable"] == 1
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == budget["selector"]["matchLabels"] == labels


def test_the_pods_have_no_privileges(pod: dict[str, Any], node: dict[str, Any]) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["automountServiceAccountToken"] is False
    assert node["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_image_can_serve() -> None:
    assert "'.[dashboard]'" in (ROOT / "deploy/Dockerfile").read_text()


def _options(command: str) -> set[str]:
    commands: Any = typer.main.get_command(app)
    found = commands.commands[command]
    return {option for parameter in found.params for option in parameter.opts}
