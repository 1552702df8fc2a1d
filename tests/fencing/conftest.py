"""The ledgers of tests/ledger, for what users do beside them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.ledger.conftest import lab, pglab, server, servers, url

__all__ = ["lab", "pglab", "server", "servers", "url"]


@pytest.fixture
def thread() -> Any:
    """Run something that has an event loop of its own, beside the test's."""
    return asyncio.to_thread
