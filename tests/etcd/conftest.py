"""One etcd for the tests that leave it as it was, and a private one for those that do not."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cron_leader.etcd.embedded import EmbeddedEtcd
from tests.etcd_kit import QUICK, Authority, Fleet, Hand, binaries, fleet_of


@pytest.fixture(scope="session", params=binaries(), ids=lambda path: path.parent.name)
def each_etcd(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedEtcd]:
    """Every etcd at hand, in turn."""
    folder = tmp_path_factory.mktemp("etcd")
    with EmbeddedEtcd(folder / "data", binary=request.param, options=QUICK) as etcd:
        yield etcd


@pytest.fixture(scope="session")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedEtcd]:
    with EmbeddedEtcd(tmp_path_factory.mktemp("etcd") / "data", options=QUICK) as etcd:
        yield etcd


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[EmbeddedEtcd]:
    """To be frozen, stopped and killed."""
    with EmbeddedEtcd(tmp_path / "data", options=QUICK) as etcd:
        yield etcd


@pytest.fixture
async def fleet(shared_etcd: EmbeddedEtcd) -> AsyncIterator[Fleet]:
    async with fleet_of(shared_etcd.endpoint) as made:
        yield made


@pytest.fixture
def hand(fleet: Fleet) -> Hand:
    return Hand(fleet.client())


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    if shutil.which("openssl") is None:
        if os.environ.get("CRON_LEADER_REQUIRE_ALL") == "1":
            pytest.fail("needs the openssl program")
        pytest.skip("needs the openssl program")
    return Authority(tmp_path_factory.mktemp("tls") / "ours")
