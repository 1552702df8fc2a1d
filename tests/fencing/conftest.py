"""The ledgers of tests/ledger, for what users do beside them."""

from tests.ledger.conftest import lab, pglab, server, servers, url

__all__ = ["lab", "pglab", "server", "servers", "url"]
