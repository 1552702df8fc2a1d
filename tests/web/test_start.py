"""[http] at the start of a node: what is refused, and what it costs those who do not want it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cron_leader.config import Config, HttpConfig, load
from cron_leader.errors import ConfigError
from cron_leader.etcd.embedded import Ports
from cron_leader.web.server import bind
from tests.kit import BEAT, Town
from tests.web.kit import served

COMMAND = "import sys; from cron_leader.cli import main; sys.exit(main())"
RUN = "import sys; from cron_leader.__main__ import main; sys.exit(main({args}))"


def _daemon(folder: Path, config: str, *, before: str = "") -> subprocess.CompletedProcess[str]:
    """The daemon's own process without a supervisor, to its end."""
    file = folder / "c.toml"
    file.write_text(config)
    return subprocess.run(
        [sys.executable, "-c", before + RUN.format(args=["--config", str(file)])],
        capture_output=True,
        text=True,
        timeout=60,
    )


def _refused(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    """Exit 2, and one line on stderr with these parts."""
    assert done.returncode == 2, done
    (line,) = done.stderr.splitlines()
    for part in parts:
        assert part in line
    assert line.startswith("error: [http] listen")


def test_a_port_in_use_is_exit_2_and_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (tmp_path / "c.toml").write_text(f'[http]\nlisten = "127.0.0.1:{port}"\n{BEAT}')
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, "run", "--config", "c.toml"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
    _refused(done, f"127.0.0.1:{port}", "another process listens there")


def test_an_address_of_another_machine_is_exit_2_and_one_line(tmp_path: Path) -> None:
    done = _daemon(tmp_path, f'[http]\nlisten = "192.0.2.1:8080"\n{BEAT}')
    _refused(done, "192.0.2.1:8080", "no address of this machine")


@pytest.mark.parametrize("missing", ["uvicorn", "starlette", "prometheus_client"])
def test_without_the_extra_installed_it_is_named_and_exit_is_2(
    tmp_path: Path, missing: str
) -> None:
    done = _daemon(
        tmp_path,
        f'[http]\nlisten = "127.0.0.1:8080"\n{BEAT}',
        before=f"import sys; sys.modules['{missing}'] = None; ",
    )
    _refused(done, "dashboard", missing, 'pip install "cron-leader[dashboard]"')


def test_a_node_without_http_imports_nothing_of_it(tmp_path: Path) -> None:
    nowhere = f"127.0.0.1:{Ports.draw().client}"
    (tmp_path / "c.toml").write_text(f'[etcd]\nendpoints = ["{nowhere}"]\n{BEAT}')
    telling = "import atexit, sys; atexit.register(lambda: print(*sys.modules)); "
    args = ["--config", str(tmp_path / "c.toml"), "--log-format", "json"]
    with subprocess.Popen(
        [sys.executable, "-c", telling + RUN.format(args=args)], stdout=subprocess.PIPE, text=True
    ) as daemon:
        assert daemon.stdout is not None
        while "etcd.unreachable" not in daemon.stdout.readline():
            assert daemon.poll() is None
        daemon.terminate()
        modules = daemon.stdout.read().splitlines()[-1].split()
    assert daemon.returncode == 0
    assert "cron_leader.daemon" in modules
    roots = {name.partition(".")[0] for name in modules}
    assert not roots & {"starlette", "uvicorn", "prometheus_client", "h11", "anyio"}


async def test_signals_stay_the_daemons(town: Town) -> None:
    async with served(town, "a") as node:
        await node.start("gate.opened")
        node.fleet.signal("a", signal.SIGINT)
        assert await node.fleet.ended("a") == 0
        stopped = node.fleet.timeline.last("node.stopped", node="a")
        assert stopped is not None
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", node.port), timeout=5)


async def test_serving_says_nothing_on_the_nodes_streams(town: Town) -> None:
    async with served(town, "a") as node:
        await node.start("gate.opened")
        for path in ("/readyz", "/nowhere"):
            await node.get(path)
        await asyncio.to_thread(_garbage, node.port)
        node.fleet.signal("a", signal.SIGTERM)
        said = node.fleet._nodes["a"].said
        assert await node.fleet.ended("a") == 0
        assert list(said) == []


def _garbage(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
        while connection.recv(4096):
            pass


# ------------------------------------------------------------------ the section


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _read(text: str, **environ: str) -> Config:
    Path("c.toml").write_text(text)
    return load(Path("c.toml"), environ=environ)


def test_nothing_is_served_unless_it_is_asked_for() -> None:
    assert _read("").http is None
    assert _read("[http]\n").http is None


@pytest.mark.parametrize(
    ("listen", "host", "port", "loopback"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080, True),
        ("127.1.2.3:1", "127.1.2.3", 1, True),
        ("[::1]:8080", "::1", 8080, True),
        ("localhost:8080", "localhost", 8080, True),
        ("0.0.0.0:8080", "0.0.0.0", 8080, False),
        ("[::]:65535", "::", 65535, False),
        ("10.0.0.7:80", "10.0.0.7", 80, False),
        ("node.example:80", "node.example", 80, False),
    ],
)
def test_an_address_is_host_and_port(listen: str, host: str, port: int, loopback: bool) -> None:
    http = _read("", CRON_LEADER_HTTP_LISTEN=listen).http
    assert http == HttpConfig(host, port)
    assert http.loopback is loopback


@pytest.mark.parametrize(
    "listen", ["8080", ":8080", "h:", "h:0", "h:65536", "::1:80", "http://h:1"]
)
def test_what_is_no_address_is_refused(listen: str) -> None:
    with pytest.raises(ConfigError, match="must be host:port"):
        _read(f'[http]\nlisten = "{listen}"')


def test_the_token_is_read_from_its_file_and_never_shown(folder: Path) -> None:
    (folder / "t").write_text("sesame\nrest\n")
    config = _read('[http]\nlisten = "0.0.0.0:80"\ntoken_file = "t"')
    assert config.http == HttpConfig("0.0.0.0", 80, "sesame")
    assert "sesame" not in repr(config)


def test_the_section_is_no_matter_of_the_fleet() -> None:
    assert _read('[http]\nlisten = "0.0.0.0:80"').digest == _read("").digest


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('[http]\nlisten = "h:1"\ntoken_file = "gone"', "gone: no such file"),
        ('[http]\nlisten = "h:1"\ntoken_file = "empty"', "is empty"),
        ('[http]\ntoken_file = "full"', "needs [http] listen"),
        ('[http]\nlisten = "h:1"\ntoken = "x"', "did you mean token_file?"),
        ("[http]\nlisten = 8080", "must be text in quotes"),
    ],
)
def test_what_is_wrong_with_the_section_is_named(folder: Path, text: str, part: str) -> None:
    (folder / "empty").touch()
    (folder / "full").write_text("x")
    with pytest.raises(ConfigError) as caught:
        _read(text)
    assert part in str(caught.value)


@pytest.mark.skipif(not os.path.exists("/proc/net/if_inet6"), reason="no IPv6 here")
def test_an_ipv6_address_can_be_listened_on() -> None:
    with bind(HttpConfig("::1", _free_port())) as listener:
        assert listener.family is socket.AF_INET6


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
