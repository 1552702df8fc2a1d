"""What is installed, pinned, built and composed: checked without network and engine."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cron_leader import __version__
from cron_leader.config import load

ROOT = Path(__file__).resolve().parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINNED_EXTRAS = ("embedded", "dashboard", "holidays", "http", "test", "dev")


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def _requirements() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"]
    texts = [*PROJECT["dependencies"], *(text for extra in PINNED_EXTRAS for text in extras[extra])]
    found = [Requirement(text) for text in texts]
    return [requirement for requirement in found if requirement.name != PROJECT["name"]]


@pytest.mark.parametrize("requirement", _requirements(), ids=str)
def test_every_requirement_is_pinned_to_a_version_it_allows(requirement: Requirement) -> None:
    assert requirement.specifier.contains(_pins()[canonicalize_name(requirement.name)])


def test_what_the_requirements_require_is_pinned_too() -> None:
    pins, seen = _pins(), set[str]()
    waiting = [canonicalize_name(requirement.name) for requirement in _requirements()]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        assert name in pins
        waiting += [canonicalize_name(Requirement(text).name) for text in _needs(name)]


def _needs(name: str) -> list[str]:
    """What an installed distribution requires here; nothing if it is not installed."""
    try:
        texts = distribution(name).requires or []
    except ModuleNotFoundError:
        return []
    return [t for t in texts if (m := Requirement(t).marker) is None or m.evaluate({"extra": ""})]


def test_pins_name_no_address() -> None:
    for name in ("constraints.txt", "Makefile", ".ci/run", "deploy/Dockerfile", "pyproject.toml"):
        assert "://" not in (ROOT / name).read_text(), name


def test_the_wheel_holds_the_package_with_its_data_and_nothing_else(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith(f"cron_leader-{__version__}-py3-none-any")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {
        "cron_leader",
        f"cron_leader-{__version__}.dist-info",
    }
    package = ROOT / "cron_leader"
    files = [p for p in package.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    assert {f"cron_leader/{p.relative_to(package)}" for p in files} <= set(names)
    assert any(name.endswith(".sql") for name in names)


def test_make_help_names_every_target() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, check=True, capture_output=True, text=True)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z-]+)", shown.stdout)) == targets
    assert targets >= {"help", "demo", "test", "lint", "bench", "chaos"}


def test_the_ci_script_is_valid_shell_and_runs_what_the_readme_says() -> None:
    script = ROOT / ".ci/run"
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert {"make lint", "make test"} <= {
        " ".join(line.split()[:2]) for line in script.read_text().splitlines()
    }


# ------------------------------------------------------------------ containers


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.etcd.yml").read_text())
    return loaded


def test_the_compose_file_has_three_members_one_postgres_and_three_nodes(
    compose: dict[str, Any],
) -> None:
    plain = {name for name, service in compose["services"].items() if "profiles" not in service}
    assert plain == {"etcd1", "etcd2", "etcd3", "postgres", "a", "b", "c"}
    for name in ("etcd1", "etcd2", "etcd3"):
        service = compose["services"][name]
        assert service["environment"]["ETCD_NAME"] == name
        assert "${ETCD_TAG:-v3.6" in service["image"]


def test_the_chaos_profile_delays_one_node(compose: dict[str, Any]) -> None:
    netem = compose["services"]["netem"]
    assert netem["profiles"] == ["chaos"]
    command = [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", word) for word in netem["command"]]
    assert {"netem", "--egress-port=2379", "delay"} <= set(command)
    pattern = command[-1].removeprefix("re2:").replace("$$", "$")
    (struck,) = [
        name for name in compose["services"] if re.fullmatch(pattern, f"{compose['name']}-{name}-1")
    ]
    assert struck == "a"
    words = dict(word.split("=") for word in command if "=" in word)
    assert int(words["--time"]) > 3333  # a renewal's time at the TTL that is the default


def test_services_wait_only_for_services_with_a_health_check(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for name, condition in service.get("depends_on", {}).items():
            assert condition == {"condition": "service_healthy"}
            assert "healthcheck" in compose["services"][name]


def test_a_container_may_take_longer_to_stop_than_its_node_drains(compose: dict[str, Any]) -> None:
    for name in ("a", "b", "c"):
        service = compose["services"][name]
        config = load(
            ROOT / "deploy/cron-leader.toml",
            environ={
                k: re.sub(r"\$\{\w+:-(\w+)\}", r"\1", v) for k, v in service["environment"].items()
            },
        )
        assert config.node_id == name
        assert len(config.etcd.endpoints) == 3
        assert config.ledger.url.startswith("postgresql://")
        assert float(service["stop_grace_period"].removesuffix("s")) > config.run.drain_s + 5


def test_the_image_runs_the_supervisor_as_pid_1_and_not_as_root() -> None:
    lines = (ROOT / "deploy/Dockerfile").read_text().splitlines()
    final = lines[max(i for i, line in enumerate(lines) if line.startswith("FROM ")) :]
    assert (
        'ENTRYPOINT ["cron-leader"]' in final
    )  # not a shell: it would be PID 1 and forward nothing
    assert 'CMD ["run"]' in final
    (user,) = [line.split()[1] for line in final if line.startswith("USER ")]
    assert int(user) > 0
