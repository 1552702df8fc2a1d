"""One etcd for all fleets of a module."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cron_leader.etcd.embedded import EmbeddedEtcd
from tests.etcd_kit import QUICK
from tests.kit import Town
from tests.kit import town as make_town


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedEtcd]:
    with EmbeddedEtcd(tmp_path_factory.mktemp("etcd") / "data", options=QUICK) as server:
        yield server


@pytest.fixture
async def town(tmp_path: Path, etcd: EmbeddedEtcd) -> AsyncIterator[Town]:
    async with make_town(tmp_path, etcd.endpoint) as made:
        yield made
